"""Dump a database and restore it into another cluster, and make that cluster's transaction ids go on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.embedded.binaries import find_postgres
from taskbridge.store import connect
from tests.ending import ended


def address(engine: Engine) -> str:
    """The database's URL as psql and pg_dump take it."""
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def dump(engine: Engine, *options: str) -> str:
    """What pg_dump says of the database."""
    return _run("pg_dump", *options, "--no-owner", f"--dbname={address(engine)}")


def restore(text: str, engine: Engine, *, keep_ids: bool = False) -> None:
    """Give a dump to psql, which must take all of it; rows keep their transaction ids and revisions if asked to."""
    options = {"PGOPTIONS": "-c taskbridge.keep_ids=on"} if keep_ids else {}
    arguments = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={address(engine)}")
    _run("psql", *arguments, text=text, options=options)


@contextmanager
def empty_database(servers: Servers) -> Iterator[Engine]:
    """A database without a schema; its pool begins with no connection."""
    name = f"restored_{secrets.token_hex(6)}"
    _administer(servers, f'CREATE DATABASE "{name}"')
    engine = connect(make_url(servers.postgres_url).set(database=name).render_as_string(hide_password=False))
    yield engine
    engine.dispose()
    _administer(servers, f'DROP DATABASE "{name}" WITH (FORCE)')


def next_xid(engine: Engine) -> int:
    """The transaction id that the cluster gives now."""
    with engine.begin() as connection:
        return int(connection.exec_driver_sql("SELECT pg_current_xact_id()::text").scalar_one())


def use_up(engine: Engine, until: int) -> None:
    """Let the cluster give ids until it has reached `until`."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            f"DO $$ BEGIN WHILE pg_current_xact_id()::text::bigint < {until} LOOP COMMIT; END LOOP; END $$"
        )


def _administer(servers: Servers, statement: str) -> None:
    engine = connect(servers.postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _run(program: str, *arguments: str, text: str | None = None, options: Mapping[str, str] | None = None) -> str:
    done = ended([find_postgres(None) / program, *arguments], {**os.environ, **(options or {})}, text=text)
    assert done.returncode == 0, done.stderr
    return done.stdout
