"""The database's schema: bring it up to date, or refuse to work on one that this version does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from taskbridge.errors import SchemaMismatch

__all__ = ["VERSION_TABLE", "check_schema", "current", "head", "migrate"]

VERSION_TABLE: Final = "taskbridge_schema"
"""Where Alembic keeps the revision: a table of our own, so that an application's Alembic can share the database."""


def migrate(engine: Engine, revision: str = "head") -> tuple[str | None, str | None]:
    """Bring the schema to `revision` ("head": the newest; "base": none) and return the revisions before and after.

    Raises:
        SchemaMismatch: the database is at a revision that this version does not have.
    """
    before = current(engine)
    if before is not None and before not in _known():
        raise SchemaMismatch(
            f"the database is at schema {before}, which this version of TaskBridge does not know: "
            "install the version that made it, or a newer one"
        )
    config = _config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        if revision == "base":
            command.downgrade(config, revision)
        else:
            command.upgrade(config, revision)
    return before, current(engine)


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
    raise SchemaMismatch(
        f"the database is at schema {found}, which this version of TaskBridge does not know: "
        "install the version that made it, or a newer one"
    )


def current(engine: Engine) -> str | None:
    """Return the database's revision, None where there is none."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def head() -> str:
    """Return the newest revision that this version has."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    assert newest is not None  # noqa: S101 - the package ships at least one migration
    return newest


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    return config


def _migrations() -> Path:
    """Where the migrations lie: inside an installed wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
