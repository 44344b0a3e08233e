"""The database's schema: bring it up to date, or refuse to work on one that this version does not know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from taskbridge.errors import SchemaMismatch
from taskbridge.store.engine import patiently
from taskbridge.store.queries import query

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["VERSION_TABLE", "check_schema", "current", "head", "migrate"]

VERSION_TABLE: Final = "taskbridge_schema"
"""Where Alembic keeps the revision: a table of our own, so that an application's Alembic can share the database."""


def migrate(engine: Engine, revision: str = "head") -> tuple[str | None, str | None]:
    """Bring the schema to `revision` ("head": the newest; "base": none) and return the revisions before and after.

    Raises:
        SchemaMismatch: the database is at a revision that this version does not have, or Postgres refused a statement;
            nothing was changed.
    """
    from alembic import command  # noqa: PLC0415 - slow, and nothing but a migration needs it

    # Each statement must see what the lock waited for, whatever the database's default is.
    committed = engine.execution_options(isolation_level="READ COMMITTED")
    try:
        with committed.begin() as connection, patiently(connection, None):
            connection.exec_driver_sql(query("one_migration"))
            before = _current(connection)
            _refuse_unknown(before)
            config = _config()
            config.attributes["connection"] = connection
            if revision == "base":
                command.downgrade(config, revision)
            else:
                command.upgrade(config, revision)
            return before, _current(connection)
    except DBAPIError as error:
        said = getattr(getattr(error.orig, "diag", None), "message_primary", None)
        if said is None or isinstance(error, OperationalError):
            raise
        raise SchemaMismatch(
            f"the schema could not be changed, and is as it was: Postgres says {said!r}; "
            "mend that and run `taskbridge migrate` again"
        ) from error


def _refuse_unknown(found: str | None) -> None:
    if found is not None and found not in _known():
        raise SchemaMismatch(
            f"the database is at schema {found}, which this version of TaskBridge does not know: "
            "install the version that made it, or a newer one"
        )


def check_schema(engine: Engine) -> None:
    """Raise SchemaMismatch, saying what to run, unless the database is at this version's schema."""
    found = current(engine)
    if found == head():
        return
    if found is None:
        raise SchemaMismatch("the database has no schema of TaskBridge: run `taskbridge migrate`")
    if found in _known():
        raise SchemaMismatch(
            f"the database is at schema {found}, this version needs {head()}: run `taskbridge migrate`"
        )
    _refuse_unknown(found)


def current(engine: Engine) -> str | None:
    """Return the database's revision, None where there is none."""
    with engine.connect() as connection:
        return _current(connection)


def _current(connection: Connection) -> str | None:
    if connection.exec_driver_sql("SELECT to_regclass(%s)", (VERSION_TABLE,)).scalar_one() is None:
        return None
    found: str | None = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()  # noqa: S608 - our own name
    return found


def head() -> str:
    """Return the newest revision that this version has."""
    return max(_known())


def _known() -> set[str]:
    """Return all revisions: what the names of the files begin with, in order. A test compares them with Alembic's."""
    return {file.name.partition("_")[0] for file in (_migrations() / "versions").glob("[0-9]*_*.py")}


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    return config


def _migrations() -> Path:
    """Where the migrations lie: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
