"""Servers and databases for tests: from the environment, or else embedded."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.common.server_errors import translated_errors
from taskbridge.embedded import Servers, serve
from taskbridge.errors import ConfigurationError
from taskbridge.store import connect, migrate
from taskbridge.store.db import parameters_of
from taskbridge.testing.databases import drop_database, make_database, set_search_path

__all__ = ["fresh_database", "migrated_template", "open_directory", "servers_for_tests"]


@contextmanager
def open_directory() -> Iterator[Path]:
    """Yield an empty directory that every user can enter, so that an embedded Postgres can use it.

    Postgres does not run as root, and pytest's own directories are private.
    """
    with tempfile.TemporaryDirectory(prefix="taskbridge-") as name:
        made = Path(name).resolve()
        made.chmod(0o755)
        yield made


@contextmanager
def servers_for_tests() -> Iterator[Servers]:
    """Yield Postgres and Redis, from TASKBRIDGE_TEST_POSTGRES_URL and TASKBRIDGE_TEST_REDIS_URL, or else embedded.

    Raises:
        ConfigurationError: only one of the two is set.
        TaskBridgeError: as `taskbridge.embedded.serve`.
    """
    postgres, gate = os.environ.get("TASKBRIDGE_TEST_POSTGRES_URL"), os.environ.get("TASKBRIDGE_TEST_REDIS_URL")
    if bool(postgres) != bool(gate):
        there, missing = ("POSTGRES", "REDIS") if postgres else ("REDIS", "POSTGRES")
        raise ConfigurationError(
            f"TASKBRIDGE_TEST_{there}_URL is set but TASKBRIDGE_TEST_{missing}_URL is not",
            "set both, or neither for embedded servers",
        )
    if postgres and gate:
        yield Servers(postgres, gate)
        return
    with open_directory() as directory, serve(directory / "servers", durable=False) as started:
        yield started


@contextmanager
def migrated_template(servers: Servers, schema: str = DEFAULT_SCHEMA) -> Iterator[str]:
    """Yield the name of an empty database with the newest schema, which is dropped after the block."""
    with _database(servers, f"taskbridge_template_{secrets.token_hex(6)}") as name:
        engine = connect(_with_database(servers, name), schema)
        migrate(engine)
        engine.dispose()
        yield name


@contextmanager
def fresh_database(servers: Servers, template: str) -> Iterator[str]:
    """Yield the URL of a copy of `template`, which is dropped after the block."""
    with _database(servers, f"test_{secrets.token_hex(6)}", template) as name:
        yield _with_database(servers, name)


@contextmanager
def _database(servers: Servers, name: str, template: str = "template1") -> Iterator[str]:
    with translated_errors(), _session(servers) as session:
        make_database(session, name, template)
        # As in an application's database, where unqualified names refer to its own tables.
        set_search_path(session, name, ["public"])
    try:
        yield name
    finally:
        with _session(servers) as session:
            drop_database(session, name)


def _with_database(servers: Servers, name: str) -> str:
    return make_url(servers.postgres_url).set(database=name).render_as_string(hide_password=False)


def _session(servers: Servers) -> psycopg.Connection[Any]:
    # Without SQLAlchemy, whose initial queries take longer than most statements here.
    parameters: dict[str, Any] = parameters_of(servers.postgres_url)
    return psycopg.connect(**parameters, autocommit=True)
