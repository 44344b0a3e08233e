"""The named queries: blocks of the files in `sql/`, each with a comment that describes it.

`{schema}` is replaced by the Postgres schema of TaskBridge's tables. The name of a block in braces is replaced by that
block, so that common parts are written once. `{document}` is the expression for a record's document: by default the
block `recorded_document`. `filled` replaces other placeholders by what cannot be a parameter: names, parts of SQL, and
values of statements without parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.common.statements import statements

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = [
    "LOCAL",
    "SCHEMA_OPTION",
    "SESSION",
    "Queries",
    "compact",
    "filled",
    "literal",
    "queries",
    "query",
    "quoted",
    "schema_of",
    "setting",
]

SCHEMA_OPTION: Final = "taskbridge_schema"
"""The execution option of an engine that names the schema."""
LOCAL: Final = "LOCAL"
SESSION: Final = "SESSION"

Queries = Callable[[str], str]
"""Returns the text of a query by its name."""

_SQL: Final = Path(__file__).parent / "sql"
_PLACE: Final = re.compile(r"\{(\w+)\}")
_INDENT: Final = re.compile(r"\n\s+")


def queries(where: Engine | Connection) -> Queries:
    """Return the queries for the schema of a database, or of a connection to it."""
    return partial(query, schema=schema_of(where))


@cache
def query(name: str, schema: str = DEFAULT_SCHEMA, document: str | None = None) -> str:
    """Return the text of the block `name` for a schema, with psycopg's `%(name)s` placeholders."""
    blocks = statements(_SQL)
    text = _PLACE.sub(lambda place: query(place[1], schema) if place[1] in blocks else place[0], blocks[name])
    text = text.replace("{schema}", quoted(schema))
    if "{document}" in text:
        # The inserted text stays as it is: it contains the names of users' columns.
        text = compact(text).replace("{document}", document or query("recorded_document", schema))
    return text


@cache
def compact(text: str) -> str:
    """Return a long query without its indentation, for queries that each run sends.

    psycopg (3.3, `MAX_CACHED_STATEMENT_LENGTH`) caches the parsed form of texts up to 4,096 characters. Parsing a
    longer one each time costs 0.1 ms.
    """
    return _INDENT.sub("\n", text)


def filled(name: str, schema: str, parts: Mapping[str, str]) -> str:
    """Return a query with its placeholders replaced. Braces in the replacements are left as they are."""
    return _PLACE.sub(lambda place: parts[place[1]], query(name, schema))


def setting(name: str, value: str | int | None, scope: str = SESSION) -> str:
    """Return the statement that sets a parameter of Postgres for the session or the transaction; None: its default."""
    written = "DEFAULT" if value is None else literal(str(value))
    return filled("setting", DEFAULT_SCHEMA, {"scope": scope, "name": name, "value": written})


def schema_of(where: Engine | Connection) -> str:
    """Return the schema of the tables."""
    return str(where.get_execution_options().get(SCHEMA_OPTION, DEFAULT_SCHEMA))


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
