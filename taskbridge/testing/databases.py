"""Create and drop the databases of a cluster, on an autocommit connection to another database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Composable, Identifier

from taskbridge.common.statements import statements

__all__ = ["drop_database", "make_database", "set_search_path"]

_SQL: Final = Path(__file__).parent / "sql"


def make_database(connection: psycopg.Connection[Any], name: str, template: str = "template1") -> None:
    """Create a database as a copy of `template`."""
    _execute(connection, "make_database", name=Identifier(name), template=Identifier(template))


def set_search_path(connection: psycopg.Connection[Any], name: str, schemas: Sequence[str]) -> None:
    """Set the default search path of a database."""
    _execute(connection, "search_path", name=Identifier(name), schemas=SQL(", ").join(map(Identifier, schemas)))


def drop_database(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a database, and terminate its sessions."""
    _execute(connection, "drop_database", name=Identifier(name))


def _execute(connection: psycopg.Connection[Any], query: str, **parts: Composable) -> None:
    connection.execute(SQL(statements(_SQL)[query]).format(**parts))
