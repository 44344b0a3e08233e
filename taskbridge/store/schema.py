"""The database's schema: bring it up to date, or refuse to work on one that this version does not know.

All tables of TaskBridge are in one Postgres schema, which has nothing else.

A transaction id means something in one cluster only, and a dump carries ids over as values. So the cluster's system
identifier is stored beside them: if it is another, triggers refuse to write records, and processes refuse to start,
until a rebase (`rebasing.py`) has put the ids of this cluster in place of the former ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from taskbridge.common.libraries import explained_imports
from taskbridge.common.server_errors import FOREIGN_CLUSTER
from taskbridge.errors import ForeignCluster, SchemaMismatch
from taskbridge.store.db import checked_out, driver_error, driver_of, fetch, scalar, within
from taskbridge.store.queries import LOCAL, filled, queries, query, quoted, schema_of, setting

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = [
    "VERSION_TABLE",
    "check_cluster",
    "check_schema",
    "current",
    "deployment",
    "head",
    "in_its_cluster",
    "migrate",
]

VERSION_TABLE: Final = "taskbridge_schema"
"""Where Alembic keeps the revision: a table of our own, so that an application's Alembic can share the database."""

ALL_DAYS: Final = 36_500
"""Days of run history that a migration keeps: more than there can be. Workers delete old ones as configured."""


def migrate(engine: Engine, revision: str = "head") -> tuple[str | None, str | None]:
    """Bring the schema to `revision` ("head": the newest; "base": none) and return the revisions before and after.

    Raises:
        SchemaMismatch: the database is at a revision that this version does not have, or Postgres refused a statement;
            nothing was changed.
        MissingExtra: Alembic is not installed.
    """
    with explained_imports():
        from alembic import command  # noqa: PLC0415 - slow, and nothing but a migration needs it
        from alembic.config import Config  # noqa: PLC0415

    schema = schema_of(engine)
    # Each statement must see what the lock waited for, whatever the database's default is.
    committed = engine.execution_options(isolation_level="READ COMMITTED")
    try:
        with committed.begin() as connection, within(connection, None):
            driver = driver_of(connection)
            driver.execute(queries(engine)("one_migration"))
            before = _current(driver, schema)
            _refuse_unknown(before)
            _make(driver, schema)
            if revision == "base":
                driver.execute(queries(engine)("drop_schema"))
            else:
                driver.execute(setting("search_path", schema, LOCAL))
                config = Config(attributes={"connection": connection, "schema": schema})
                config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
                command.upgrade(config, revision)
                # Runs that end while a worker creates the partition that they need may be missing from the history.
                driver.execute(queries(engine)("keep_runs"), {"days": ALL_DAYS})
            after = _current(driver, schema)
    except SchemaMismatch:
        raise
    except Exception as error:
        refusal = driver_error(error)
        if refusal is None or refusal.diag.message_primary is None or isinstance(refusal, psycopg.OperationalError):
            raise
        raise SchemaMismatch(
            f"the schema could not be changed, and is as it was: Postgres says {refusal.diag.message_primary!r}",
            "fix that and run `taskbridge migrate` again",
        ) from error
    # Open connections keep the search path that they began with.
    engine.dispose()
    return before, after


def _refuse_unknown(revision: str | None) -> None:
    if revision is not None and revision not in _known():
        raise SchemaMismatch(
            f"the database is at schema {revision}, which this version of TaskBridge does not know",
            "install the version that made it, or a newer one",
        )


def _refuse_foreign(driver: psycopg.Connection[Any], schema: str) -> None:
    """Raise SchemaMismatch if the schema is not ours: it has relations, but not our version table."""
    relation = scalar(driver, query("foreign_schema"), {"name": quoted(schema), "ours": VERSION_TABLE})
    if relation is not None:
        raise SchemaMismatch(
            f"the database has a schema {schema} that is not TaskBridge's (it contains {relation!r})",
            "set TASKBRIDGE_SCHEMA to another name in all processes, and run `taskbridge migrate`",
        )


def _make(driver: psycopg.Connection[Any], schema: str) -> None:
    """Create the schema if it is missing, and correct the search path if necessary."""
    _refuse_foreign(driver, schema)
    if scalar(driver, query("no_schema"), {"name": quoted(schema)}):
        driver.execute(query("make_schema", schema))
    if own_database := scalar(driver, query("own_schema_first")):
        # A role with the same name as the schema would find our tables first, and create its own among them.
        driver.execute(filled("search_path", schema, {"database": own_database}))


def check_schema(database: Engine) -> None:
    """Raise SchemaMismatch, with the command to run, unless the database has this version's schema."""
    revision = current(database)
    if revision == head():
        return
    if revision is None:
        with checked_out(database) as driver:
            _refuse_foreign(driver, schema_of(database))
        raise SchemaMismatch("the database has no schema of TaskBridge", "run `taskbridge migrate`")
    if revision in _known():
        raise SchemaMismatch(
            f"the database is at schema {revision}, this version needs {head()}", "run `taskbridge migrate`"
        )
    _refuse_unknown(revision)


def current(database: Engine) -> str | None:
    """Return the revision of the database's schema; None: there is no schema."""
    with checked_out(database) as driver:
        return _current(driver, schema_of(database))


def _current(driver: psycopg.Connection[Any], schema: str) -> str | None:
    table = f"{quoted(schema)}.{VERSION_TABLE}"
    if scalar(driver, query("has_revisions"), {"table": table}) is None:
        return None
    revision: str | None = scalar(driver, filled("revision", schema, {"table": table}))
    return revision


def head() -> str:
    """Return the newest revision that this version has."""
    return max(_known())


def _known() -> set[str]:
    """Return all revisions, from the names of the files. A test compares them with Alembic's."""
    return {file.name.partition("_")[0] for file in (_migrations() / "versions").glob("[0-9]*_*.py")}


def _migrations() -> Path:
    """Return the directory of the migrations: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def in_its_cluster(database: Engine) -> bool:
    """Return whether the database is in the cluster whose transaction ids it contains; its schema must be current."""
    with checked_out(database) as driver:
        return bool(scalar(driver, queries(database)("in_its_cluster")))


def check_cluster(database: Engine) -> None:
    """Raise ForeignCluster, with the command to run, unless the database is in the cluster whose ids it contains."""
    if not in_its_cluster(database):
        raise ForeignCluster(FOREIGN_CLUSTER)


def deployment(database: Engine) -> tuple[str, str]:
    """Return a unique identifier of this database and schema, without spaces, and a readable name."""
    schema = schema_of(database)
    (row,) = fetch(database, "deployment")
    return f"{row['cluster']}/{row['oid']}/{schema}", f"database {row['name']}, schema {schema}"
