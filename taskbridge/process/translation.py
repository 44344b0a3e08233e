"""Errors of the servers, translated into one sentence with the next step; no address and no password."""

from __future__ import annotations

from typing import Final, NamedTuple

import psycopg
import redis

from taskbridge.common.lost_connections import POSTGRES_AWAY, causes, is_broker_error, loaded, sqlstate
from taskbridge.errors import ForeignCluster, Unavailable
from taskbridge.store import FOREIGN_CLUSTER, FOREIGN_CLUSTER_STATE

__all__ = ["translated_errors"]


class translated_errors:  # noqa: N801 - used as a function is
    """Translate errors of Postgres, Redis and the broker into `Unavailable`, or its subclass `ForeignCluster`.

    For the calls that people and producers make. A run does not translate them: it fails and is tried again.
    """

    # Not a generator with `contextmanager`, which costs each event three times as much.
    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise what `error` means, if that is known."""
        meaning = None if error is None else _meaning(error)
        if meaning is not None:
            raise meaning from error


def _meaning(error: BaseException) -> Unavailable | None:
    if isinstance(error, redis.RedisError):
        return Unavailable(_redis_text(error))
    if is_broker_error(error):
        return Unavailable(_broker_text(error))
    said = _said(error)
    if said is None:
        return None
    if said.state == FOREIGN_CLUSTER_STATE:
        return ForeignCluster(FOREIGN_CLUSTER)
    text = _postgres_text(said)
    return None if text is None else Unavailable(text)


class _Said(NamedTuple):
    """What a driver of Postgres says; `away`: that the server, or the connection, may be gone."""

    state: str
    text: str
    away: bool


def _said(error: BaseException) -> _Said | None:
    """Return what a driver says: psycopg, or any that a producer's connection has."""
    for one in (error, getattr(error, "orig", None), error.__cause__ if _is_of_django(error) else None):
        if isinstance(one, psycopg.Error):
            return _Said(one.sqlstate or "", str(one), isinstance(one, psycopg.OperationalError))
    kind = type(error)
    is_wrapped = _is_of_django(error) or isinstance(error, loaded("sqlalchemy.exc", "DBAPIError"))
    if not is_wrapped and kind.__module__.partition(".")[0] != "asyncpg":
        return None
    text = str(getattr(error, "orig", error))
    state = next((found for one in causes(error) if (found := sqlstate(one) or getattr(one, "pgcode", None))), "")
    is_closed = kind.__name__ == "OperationalError" or (kind.__name__ == "InterfaceError" and "closed" in text)
    return _Said(state, text, state.startswith(POSTGRES_AWAY) if state else is_closed)


def _is_of_django(error: BaseException) -> bool:
    return type(error).__module__ == "django.db.utils"


def _redis_text(error: redis.RedisError) -> str:
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return "Redis refuses the password: correct it in TASKBRIDGE_REDIS_URL"
    if isinstance(error, redis.TimeoutError):
        return "Redis does not answer in time: look at its load, and at TASKBRIDGE_REDIS_URL (rediss:// is for TLS)"
    if "Error -" in text:  # the resolver's error numbers are negative, the system's positive
        return "the host in TASKBRIDGE_REDIS_URL is not known: correct it, or the name service"
    if "SSL" in text or "certificate" in text:
        return "Redis and this process do not agree on TLS: correct rediss:// and its options in TASKBRIDGE_REDIS_URL"
    if isinstance(error, redis.ConnectionError):
        return "Redis cannot be reached: start it, or correct TASKBRIDGE_REDIS_URL (`taskbridge doctor` checks it)"
    return f"Redis refuses the command: {text}"


def _broker_text(error: BaseException) -> str:
    text = str(error).lower()
    if any(part in text for part in ("password", "authentication", "access_refused", "noauth")):
        return "the broker refuses the password: correct it in TASKBRIDGE_BROKER_URL"
    return "the broker cannot be reached: start it, or correct TASKBRIDGE_BROKER_URL (`taskbridge doctor` checks it)"


# Parts of libpq's texts in English. A text in another language gets the last sentence of `_postgres_text`.
_POSTGRES_TEXTS: Final = (
    (("password authentication", "no password"), "refuses the password: correct it in TASKBRIDGE_POSTGRES_URL"),
    (("does not exist",), "has no such database or role: create it, or correct TASKBRIDGE_POSTGRES_URL"),
    (("pg_hba.conf",), "does not let this machine in: add it to pg_hba.conf"),
    (("SSL", "certificate"), "and this process do not agree on TLS: correct sslmode in TASKBRIDGE_POSTGRES_URL"),
    (("too many clients", "connection slots"), "has no connection left: raise max_connections, or run fewer processes"),
    (("starting up", "shutting down", "recovery"), "is starting or stopping: try again in a moment"),
    (("timeout",), "does not answer in time: look at its load, and at TASKBRIDGE_POSTGRES_URL"),
)


_REFUSED: Final = ("28", "3D")
"""SQLSTATE classes of a login that is refused, and of a database that does not exist."""


def _postgres_text(said: _Said) -> str | None:
    """Say what keeps Postgres from being used; None where it is something else."""
    state, text, away = said
    if state == "42P01":  # undefined table
        return "the database has no schema of TaskBridge: run `taskbridge migrate`"
    if state == "42703":  # undefined column
        return f"the database has the schema of another version ({text.splitlines()[0]}): run `taskbridge migrate`"
    if state in ("25006", "42501"):  # read only, no privilege
        return f"Postgres refuses the statement: {text.splitlines()[0]}"
    if not away:
        return None
    if state and not state.startswith((*POSTGRES_AWAY, *_REFUSED)):
        return f"Postgres ended the statement: {text.splitlines()[0]}"
    # psycopg 3.2.1 has the system's text alone.
    if any(part in text for part in ("resolve host", "Name or service not known", "name resolution")):
        return "the host in TASKBRIDGE_POSTGRES_URL is not known: correct it, or the name service"
    for parts, sentence in _POSTGRES_TEXTS:
        if any(part in text for part in parts):
            return f"Postgres {sentence}"
    return "Postgres cannot be reached: start it, or correct TASKBRIDGE_POSTGRES_URL (`taskbridge doctor` checks it)"
