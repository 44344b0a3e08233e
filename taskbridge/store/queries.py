"""The named queries: one `.sql` file each, whose comment says what it is for.

`{schema}` in a text is the Postgres schema of TaskBridge's tables. `{after_cursor}`, `{pending}`, `{its_record}`,
`{pipeline_start}` and `{moves_cursor}` are the texts of the files of these names, so that each is written once.
`{document}` is where a record's document comes from: the text of `recorded_document.sql`, unless another one is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.store.sessions import Reader

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from taskbridge.store.sessions import Database

__all__ = ["SCHEMA_OPTION", "Queries", "queries", "query", "quoted", "schema_of"]

SCHEMA_OPTION: Final = "taskbridge_schema"
"""The execution option of an engine that names the schema; a reader has it as an attribute."""

Queries = Callable[[str], str]
"""The text of a query by its name."""

_SQL: Final = Path(__file__).parent / "sql"
_FRAGMENT: Final = re.compile(r"\{(after_cursor|pending|its_record|pipeline_start|moves_cursor)\}")


def queries(where: Database | Connection) -> Queries:
    """Return the queries for the schema of a database, or of a connection to it."""
    return partial(query, schema=schema_of(where))


@cache
def query(name: str, schema: str = DEFAULT_SCHEMA, document: str | None = None) -> str:
    """Return the text of `sql/{name}.sql` for a schema, with psycopg's `%(name)s` placeholders."""
    text = _SQL.joinpath(f"{name}.sql").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    text = _FRAGMENT.sub(lambda found: query(found[1], schema), text)
    text = text.replace("{schema}", quoted(schema))
    return text.replace("{document}", document or query("recorded_document", schema)) if "{document}" in text else text


def schema_of(where: Database | Connection) -> str:
    """Return the schema in which the tables lie."""
    if isinstance(where, Reader):
        return where.schema
    return str(where.get_execution_options().get(SCHEMA_OPTION, DEFAULT_SCHEMA))


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
