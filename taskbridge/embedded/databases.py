"""The databases of a cluster: made and dropped by a session to another one, which commits each statement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Composable, Identifier

from taskbridge.common.statements import statement

__all__ = ["drop_database", "has_database", "make_database", "set_search_path"]

FIRST_WITH_STRATEGIES: Final = 15_00_00
"""The first version of Postgres that copies a database in more than one way."""

_SQL: Final = Path(__file__).parent / "sql"


def has_database(connection: psycopg.Connection[Any], name: str) -> bool:
    """Return whether there is a database of this name."""
    return connection.execute(statement(_SQL, "find_database"), {"name": name}).fetchone() is not None


def make_database(connection: psycopg.Connection[Any], name: str, template: str = "template1") -> None:
    """Make a database, as a copy of `template`."""
    parts = {"name": Identifier(name), "template": Identifier(template), "strategy": _strategy(connection)}
    _execute(connection, "make_database", **parts)


def set_search_path(connection: psycopg.Connection[Any], name: str, schemas: Sequence[str]) -> None:
    """Set in which schemas sessions of a database look up unqualified names."""
    _execute(connection, "search_path", name=Identifier(name), schemas=SQL(", ").join(map(Identifier, schemas)))


def drop_database(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a database, and end the sessions that are in it."""
    _execute(connection, "drop_database", name=Identifier(name))


def _strategy(connection: psycopg.Connection[Any]) -> SQL:
    # Files are copied in half of the time that pages take, but for two checkpoints.
    ((flushes,),) = connection.execute(statement(_SQL, "flushes"))
    return SQL("" if flushes or connection.info.server_version < FIRST_WITH_STRATEGIES else "STRATEGY FILE_COPY")


def _execute(connection: psycopg.Connection[Any], query: str, **parts: Composable) -> None:
    connection.execute(SQL(statement(_SQL, query)).format(**parts))
