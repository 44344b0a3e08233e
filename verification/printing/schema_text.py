"""Prints migrations/schema.sql: the schema as the migrations make it, on one page; `make docs` runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from taskbridge.store import connect
from taskbridge.store.schema import VERSION_TABLE
from taskbridge.testing.servers import fresh_database, migrated_template, servers_for_tests
from tests.store.restoring import dump

PAGE: Final = Path(__file__).resolve().parents[2] / "migrations" / "schema.sql"
HEAD: Final = """\
-- The schema that the migrations make, for readers: pg_dump prints it, and a test compares it with a database.
-- `make docs` prints it anew after a migration was written. Nothing runs this file.

"""
NOISE: Final = {
    r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n": "",
    r'pg_catalog\."C"': '"C"',
    r"CONSTRAINT \w+_not_null\d* ": "",
    r"\n{3,}": "\n\n",
    # Lines of one kind stand together.
    r"^((COMMENT ON|CREATE INDEX) .*;\n)\n(?=\2)": r"\1",
}


def schema_text(engine: Engine) -> str:
    """Return the page: what pg_dump says of the schema, without what it says about itself."""
    without = [f"--exclude-table=taskbridge.{name}" for name in (VERSION_TABLE, "runs_2*")]
    text = dump(engine, "--schema-only", "--schema=taskbridge", *without)
    for noise, rest in NOISE.items():
        text = re.sub(noise, rest, text, flags=re.MULTILINE)
    return f"{HEAD}{text.strip()}\n"


def main() -> None:
    """Write the page from a database of its own."""
    with (
        servers_for_tests() as servers,
        migrated_template(servers) as template,
        fresh_database(servers, template) as url,
    ):
        engine = connect(url)
        PAGE.write_text(schema_text(engine), encoding="utf-8")
        engine.dispose()


if __name__ == "__main__":
    main()
