"""Which errors of redis-py, kombu, psycopg and SQLAlchemy say that a server is away, or another one took its place.

Not every process loads kombu, psycopg and SQLAlchemy, and no error comes from a library that is not loaded. So this
module imports none of the three.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, Final

import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    ResponseError,
)

__all__ = [
    "POSTGRES_AWAY",
    "REDIS_AWAY",
    "REDIS_SWITCHED",
    "causes",
    "is_away",
    "is_broker_error",
    "is_refused",
    "is_switched",
    "loaded_class",
    "sqlstate",
]

REDIS_AWAY: Final = (redis.ConnectionError, redis.TimeoutError)
REDIS_SWITCHED: Final = (ReadOnlyError, BusyLoadingError, MasterDownError, ClusterDownError, MovedError)
"""Errors of a server that is not, or not yet, the one to talk to. An open connection leads to it after a switchover."""
_NESTED: Final = re.compile(r"\b(READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MOVED)\b")
"""The same errors in the text of a script's error, for which redis-py has no class."""
_REFUSED: Final = re.compile(r"\b(MISCONF|NOREPLICAS|OOM|BUSY)\b")
"""Errors of a server that refuses commands for a while."""

POSTGRES_AWAY: Final = ("08", "53", "57P")
"""SQLSTATE classes of Postgres for a lost connection, a lack of resources, and a server that stops."""


def is_away(error: BaseException) -> bool:
    """Whether the error itself says that Redis, the broker, Postgres or any other server cannot be used now."""
    if isinstance(error, (ConnectionError, TimeoutError, *REDIS_AWAY)):
        return True
    if isinstance(error, loaded_class("kombu.exceptions", "OperationalError")):
        return True
    if isinstance(error, loaded_class("sqlalchemy.exc", "DBAPIError")):
        wrapped: Any = error
        return bool(wrapped.connection_invalidated) or _is_postgres_away(wrapped.orig)
    return _is_postgres_away(error)


def is_switched(reply: object) -> bool:
    """Whether the reply is an error of a server that is not the one to talk to."""
    return isinstance(reply, REDIS_SWITCHED) or (isinstance(reply, ResponseError) and bool(_NESTED.search(str(reply))))


def is_refused(error: object) -> bool:
    """Whether Redis refuses a command for a reason that has nothing to do with it, and may take it later."""
    return is_switched(error) or (isinstance(error, ResponseError) and bool(_REFUSED.search(str(error))))


def is_broker_error(error: BaseException) -> bool:
    """Whether kombu raised it: the broker cannot be used."""
    return isinstance(error, loaded_class("kombu.exceptions", "KombuError"))


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error; "" where it has none, as when the connection broke."""
    try:
        state = getattr(error, "sqlstate", None)
    except Exception:  # a class that is not ours may have a property of this name, which may raise anything
        state = None
    return state if isinstance(state, str) else ""


def _is_postgres_away(error: BaseException | None) -> bool:
    # psycopg raises subclasses for what the server says, and OperationalError itself where the connection broke.
    state = sqlstate(error)
    return state.startswith(POSTGRES_AWAY) if state else type(error) is loaded_class("psycopg", "OperationalError")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error of a library, then what its driver raised, and what that was raised from."""
    while error is not None:
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def loaded_class(module: str, name: str) -> Any:
    """Return a class of a library, or () where the library is not loaded: no object is an instance of ()."""
    found = sys.modules.get(module)
    return () if found is None else getattr(found, name)
