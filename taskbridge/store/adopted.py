"""Adopted tables: the description of a user's table as a source, and how a batch reads its rows.

The record of a row is thin: source, tenant and key, without a document. Triggers write it in the transaction that
changes the row (`adoptions.py`); a batch reads the row in its state at that time.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine

from taskbridge.errors import InvalidInput
from taskbridge.store.queries import LOCAL, filled, literal, queries, query, quoted, schema_of, setting

__all__ = [
    "Adopted",
    "Definition",
    "Due",
    "Known",
    "Table",
    "backfills_due",
    "described",
    "dropped",
    "known",
    "known_as",
    "present",
]

_KEYS: Final = frozenset(
    {"int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "citext", "uuid", "bool"}
    | {"date", "timestamp", "timestamptz"}
)
"""Types whose text identifies the value, whatever the session's settings are; so do enums."""
_WORDS: Final = frozenset(("text", "varchar", "bpchar", "citext", "numeric"))
_TIMES: Final = {
    "timestamp": 'YYYY-MM-DD"T"HH24:MI:SS.US',
    "timestamptz": 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"',
}
_DATED: Final = frozenset(("date", *_TIMES))
_FULL_PRECISION: Final = 6
"""Fractional digits of the seconds of a time, unless its column has fewer."""
_SAME_TEXT: Final = {"int2": "integer", "int4": "integer", "int8": "integer", "varchar": "text"}
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
MARKS: Final = ("$taskbridge$", "$statement$")
"""Delimiters of the parts of a trigger function."""


class Column(NamedTuple):
    """A column; see `adoptable_columns`.

    `written`: how its type is written; `bare`: the type below all domains. `is_numeric`: as JSON numbers, its values
    would lose digits in Python.
    """

    written: str
    bare: str
    operators: str
    collation: str | None
    is_not_null: bool
    is_virtual: bool
    is_enum: bool
    base: str
    is_numeric: bool
    is_array: bool
    modifier: int

    @property
    def kind(self) -> str:
        """How its values are written as text: types of the same kind write a value in the same way."""
        if self.is_enum:
            return "enum"
        if self.modifier >= 0 and self.base == "numeric":
            # The lowest 11 bits as a signed number.
            scale = ((self.modifier - 4 & 2047) ^ 1024) - 1024
            return f"numeric(,{scale})"
        if 0 <= self.modifier < _FULL_PRECISION and self.base in _TIMES:
            return f"{self.base}({self.modifier})"
        return _SAME_TEXT.get(self.base, self.base)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the database describes it.

    `unique`: the columns of the index by which a row is found. `emptied`: the tables that a TRUNCATE names, which are
    the partitions if there are any. `by_row`: statement triggers would miss changes. `may_ask`: Postgres can check
    whether a text is valid for a type. `rows`: an estimate. `is_readable`: by this role.
    """

    relation: int
    name: str
    columns: Mapping[str, Column]
    unique: tuple[str, ...]
    emptied: tuple[str, ...]
    by_row: bool
    may_ask: bool
    rows: int
    is_readable: bool


@dataclass(frozen=True, slots=True)
class Definition:
    """The columns of a source: tenant, keys, and the columns watched in addition to them (empty: all)."""

    source: str
    tenant: str
    keys: tuple[str, ...]
    watched: tuple[str, ...] = ()

    def command(self, table: str) -> str:
        """Return the command that adopts a table."""
        words = ["taskbridge", "adopt", table, "--tenant", self.tenant]
        for key in self.keys:
            words += ["--key", key]
        words += ["--source", self.source]
        if self.watched:
            words += ["--columns", ",".join(self.watched)]
        return shlex.join(words)


class Due(NamedTuple):
    """A source whose rows may have no records: the problem, and the commands, one of which fixes it.

    `missed`: changes of rows with a record may have been missed too.
    """

    source: str
    what: str
    remedy: str
    missed: bool


class Known(NamedTuple):
    """A table that was adopted as a source; `called`: its present name, None if it was dropped.

    `columns_called`: the present names of tenant, keys and watched columns. `columns_taken`: those of the names that
    belong to another column now; `columns_retyped`: those of columns that have another type now. `column_kinds`: how
    tenant and keys were written as text. `lacks_backfill`: the backfill has not begun or not ended, unless that was
    chosen; `backfilled`: how many rows it has processed. `again`: changes of rows with a record may have been missed.
    """

    source: str
    relation: int
    name: str
    tenant_column: str
    key_columns: Sequence[str]
    watched_columns: Sequence[str] | None
    digest: str
    version: str
    ended: bool
    called: str | None
    columns_called: Sequence[str]
    columns_taken: Sequence[str]
    columns_retyped: Sequence[str]
    column_kinds: Sequence[str] | None
    lacks_backfill: bool
    backfilled: int
    again: bool

    @property
    def definition(self) -> Definition:
        """The definition of the adoption, with the present names of the columns."""
        tenant, *others = self.columns_called
        keys = len(self.key_columns)
        return Definition(self.source, tenant, tuple(others[:keys]), tuple(others[keys:]))

    @property
    def renamed(self) -> dict[str, str]:
        """The renamed columns, with their present names."""
        adopted = (self.tenant_column, *self.key_columns, *(self.watched_columns or ()))
        return {name: now for name, now in zip(adopted, self.columns_called, strict=True) if name != now}

    @property
    def due(self) -> Due | None:
        """The backfill that the table needs; None: it needs none."""
        if self.ended or self.called is None or not self.lacks_backfill:
            return None
        command = self.definition.command(self.called)
        if self.backfilled:
            what = f"the backfill stopped after {self.backfilled:,} rows, or is still running"
            return Due(self.source, what, f"if none is running: {command} --backfill", self.again)
        what = "rows that existed before the table was adopted have no record until they change"
        if self.again:
            what = "changes may have been missed, and no backfill has been started since"
        remedy = f"run: {command} --backfill; or use --from-now-on to leave it so and hide this message"
        return Due(self.source, what, remedy, self.again)

    def makes_other_keys(self, present: Adopted, names: Sequence[str] | None = None) -> str | None:
        """Return why the existing records no longer match the present table; None: they do.

        `names`: the columns of tenant and key by which rows are looked up, if not those of the adoption.
        """
        for name in names or (self.tenant_column, *self.key_columns):
            if name in self.columns_taken:
                return f"{name} is another column than the one that was adopted"
        kinds = zip(present.names, self.column_kinds or present.kinds, present.kinds, strict=True)
        for name, before, now in kinds:
            # A change to text leaves most values with the same text.
            if before != now and (now != "text" or before.partition("(")[0] in _DATED):
                return f"the type of the column {name} changed from {before} to {now}"
        return None


@dataclass(frozen=True, slots=True)
class Adopted:
    """An adopted table, or one that is about to be."""

    definition: Definition
    table: Table
    schema: str

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of tenant and key."""
        return self.definition.tenant, *self.definition.keys

    @property
    def kinds(self) -> tuple[str, ...]:
        """How their values are written as text."""
        return tuple(self.table.columns[name].kind for name in self.names)

    @property
    def has_times(self) -> bool:
        """Whether tenant or key are dates or times, whose text depends on settings."""
        return any(self.table.columns[name].base in _DATED for name in self.names)

    def has_tenant_and_key(self, row: str) -> str:
        """Return the SQL condition that a row has a record: it needs a tenant and a key."""
        return " AND ".join(f"{row}.{quoted(name)} IS NOT NULL" for name in self.names)

    def tenant_of(self, row: str, *, as_owner: bool = False, typed: bool = True) -> str:
        """Return the tenant of a row as SQL.

        `as_owner`: for the trigger function, which has its owner's rights and its own settings. Unless `typed`, the
        column may be of any type there.
        """
        return f'({self.text_of(row, self.definition.tenant, as_owner, typed)}) COLLATE "C"'

    def key_of(self, row: str, *, as_owner: bool = False, typed: bool = True) -> str:
        """Return the key of a row's record: the text of the column, or a JSON array of the texts of several."""
        texts = [self.text_of(row, column, as_owner, typed) for column in self.definition.keys]
        text = texts[0] if len(texts) == 1 else f"jsonb_build_array({', '.join(texts)})::text"
        return f'({text}) COLLATE "C"'

    def records(self, changes: str, again: str, *, typed: bool = True, is_single: bool = False) -> str:
        """Return the statement that writes thin records of `changes`; `again`: the clause for existing records.

        Unless `typed`, the columns may be of any type. `is_single`: the changes are those of one row.
        """
        columns = [self.table.columns[name] for name in self.names]
        # A single number or id is short and has no spaces, so it is always allowed.
        fits = len(self.definition.keys) == 1 and not any(each.is_enum or each.base in _WORDS for each in columns)
        is_checked = not (fits and typed)
        if is_checked:
            changes = filled("adopted_checked", self.schema, {"changes": changes})
        source = literal(self.definition.source)
        numbers = "adopted_single" if is_single else "adopted_many"
        numbered = filled(numbers, self.schema, {"changes": changes, "source": source})
        parts = {"source": source, "changes": numbered, "again": again}
        return filled("adopted_unfit" if is_checked else "adopted_changes", self.schema, parts)

    @property
    def document(self) -> str:
        """The row of a record `r` as JSON, as a part of queries, with psycopg's placeholders."""
        row = "to_jsonb(t.*)"
        for name, column in self.table.columns.items():
            if column.is_numeric:
                texts = "::text[]" if column.is_array else "::text"
                row += f" || jsonb_build_object({literal(name)}, t.{quoted(name)}{texts})"
        key = self.definition.keys
        texts_of = ["r.external_id"] if len(key) == 1 else [f"r.external_id::jsonb ->> {at}" for at in range(len(key))]
        match = [self._is(column, text) for column, text in zip(key, texts_of, strict=True)]
        match.append(self._is(self.definition.tenant, "r.tenant"))
        match.append(f"{self.key_of('t')} = r.external_id AND {self.tenant_of('t')} = r.tenant")
        parts = {"json": row, "table": self.table.name, "match": " AND ".join(match)}
        escaped = {name: part.replace("%", "%%") for name, part in parts.items()}
        return filled("adopted_document", self.schema, escaped)

    def _is(self, name: str, text: str) -> str:
        """Return the condition that a column of the row `t` has the value of a text; it can use an index."""
        column = self.table.columns[name]
        if self.table.may_ask and column.base not in ("text", "varchar", "bpchar", "citext"):
            # The type of a column, or the labels of an enum, may have changed since then.
            text = f"CASE WHEN pg_input_is_valid({text}, {literal(column.bare)}) THEN {text} END"
        # A record with a document has no row, and its key may be any text.
        value = f"(CASE WHEN one.wanted AND r.document IS NULL THEN {text} END)::{column.bare}"
        if column.collation is not None:
            value += f" COLLATE {column.collation}"
        return f"t.{quoted(name)} OPERATOR({column.operators}.=) ({value})"

    def text_of(self, row: str, name: str, as_owner: bool = False, typed: bool = True) -> str:
        """Return the text of a column by the output of its type: after a change of type, a cast may be anybody's."""
        value, base = f"{row}.{quoted(name)}", self.table.columns[name].base
        text = f"concat({value})"
        if base in _TIMES and typed:
            # The output depends on the session, except for infinity.
            time = f"({text}::{base})" if as_owner else value
            if base == "timestamptz":
                time = f"({time} AT TIME ZONE 'UTC')"
            era = f"CASE WHEN {time} < '0001-01-01' THEN ' BC' ELSE '' END"
            return f"CASE WHEN isfinite({time}) THEN to_char({time}, '{_TIMES[base]}') || {era} ELSE {text} END"
        if base == "date" and not as_owner:
            # The same text as its ISO output; `to_char` would convert it to a timestamp, which has a smaller range.
            return f"(to_jsonb({value}) OPERATOR(pg_catalog.#>>) ARRAY[]::text[])"
        if base == "bpchar":
            return f"rtrim({text}, ' ')"
        return f"CASE {text} WHEN 't' THEN 'true' WHEN 'f' THEN 'false' ELSE {text} END" if base == "bool" else text


def described(connection: Connection, relation: int, definition: Definition, *, needs_rights: bool = False) -> Adopted:
    """Look up a table and check that it can be a source; with `needs_rights`, also that this role may adopt it.

    Raises:
        InvalidInput: it cannot; the message says why, and what to do.
    """
    schema, sql = schema_of(connection), queries(connection)
    # This makes `format_type` write types with their schemas.
    connection.exec_driver_sql(setting("search_path", "pg_catalog", LOCAL))
    parts = {"schema_name": literal(schema)}
    found = connection.exec_driver_sql(filled("adoptable", schema, parts), {"relation": relation}).one_or_none()
    if found is None:
        raise InvalidInput(
            f"the table of {definition.source} was dropped",
            f"adopt the one that took its place, or run `taskbridge unadopt {definition.source}`; pending records then "
            "count as deleted",
        )
    if unfit := _unfit(found, needs_rights=needs_rights):
        what, remedy = unfit
        raise InvalidInput(f"{found.name} {what}", remedy)
    described_columns = connection.exec_driver_sql(sql("adoptable_columns"), {"relation": relation})
    columns = {
        row.name: Column(**{field: getattr(row, field) for field in Column._fields}) for row in described_columns
    }
    _check_columns(found.name, definition, columns)
    names = list({definition.tenant, *definition.keys})
    unique = connection.exec_driver_sql(
        sql("adoptable_index"), {"relation": relation, "columns": names}
    ).scalar_one_or_none()
    if unique is None:
        raise InvalidInput(
            f"{found.name}: no unique index covers {', '.join(sorted(names))} or some of these columns alone, so two "
            "rows could share one record",
            "name the columns of the primary key with --key, or create a unique index (not partial, not deferrable)",
        )
    is_partitioned = found.kind == "p"
    table = Table(
        relation,
        found.name,
        columns,
        tuple(unique),
        tuple(found.partitions) if is_partitioned else (found.name,),
        is_partitioned or found.is_subscribed,
        found.may_ask,
        max(0, found.rows),
        found.is_readable,
    )
    return Adopted(definition, table, schema)


def present(connection: Connection, before: Known) -> Adopted:
    """Look up the present state of an adopted table.

    Raises:
        InvalidInput: it can no longer be a source; or its rows would not be found by the keys of its records, so that
            they would all seem to be deleted.
    """
    adopted = described(connection, before.relation, before.definition)
    table = adopted.table.name
    if other := before.makes_other_keys(adopted):
        watched = tuple(before.watched_columns or ())
        again = Definition(before.source, before.tenant_column, tuple(before.key_columns), watched).command(table)
        raise InvalidInput(
            f"the source {before.source} is stopped, because in {table}, {other}",
            f"run: {again} --again; each row is sent with its present key, and records of other keys as deleted",
        )
    return adopted


def _unfit(found: Any, *, needs_rights: bool) -> tuple[str, str] | None:
    """Return why a table cannot be a source, and the remedy; None: it can."""
    guarded = (
        "has row-level security, which may hide rows from this role, and a row that a worker cannot see would count as "
        "deleted"
    )
    both = "use a role with the rights of both owners, or let somebody who has them run the statements of --print-sql"
    checks = (
        (
            found.is_ours,
            "is in TaskBridge's own schema",
            "adopt one of yours; if this is one, move it with ALTER TABLE ... SET SCHEMA public",
        ),
        (
            found.kind not in ("r", "p"),
            f"is {_KINDS.get(found.kind, 'not a table')}",
            "adopt the table that has the rows",
        ),
        (found.is_partition, "is a partition", "adopt its parent, whose writes would be missed"),
        (found.inherits, "inherits, or is inherited from, so writes would be missed", "adopt tables that do not"),
        (
            found.has_foreign,
            "has a foreign table as a partition, whose writes no trigger here sees",
            "detach that, or adopt the table in the database that has its rows",
        ),
        (found.relpersistence == "t", "is temporary", "make it a permanent table"),
        (
            found.relpersistence == "u",
            "is unlogged, and a crash would empty it unnoticed",
            "make it logged with ALTER TABLE ... SET LOGGED",
        ),
        (found.is_guarded, guarded, "use a role with BYPASSRLS here and for workers"),
        (needs_rights and not found.is_readable, "cannot be read by this role", "grant it SELECT"),
        (needs_rights and not found.is_owned, "belongs to another role", both),
        (
            needs_rights and found.lacks,
            f"would get a function of this role, which has no {', no '.join(found.lacks)}",
            both,
        ),
    )
    return next(((what, remedy) for is_so, what, remedy in checks if is_so), None)


def _check_columns(table: str, definition: Definition, columns: Mapping[str, Column]) -> None:
    """Raise InvalidInput if a column is missing, or cannot be used."""
    for name in (definition.tenant, *definition.keys, *definition.watched):
        if name not in columns:
            raise InvalidInput(f"{table} has no column {name!r}", f"adopt it by some of {', '.join(columns)}")
        if mark := next((mark for mark in MARKS if mark in name), None):
            raise InvalidInput(
                f"{table}: the column {name} contains {mark}, which delimits a part of the function",
                "rename the column",
            )
        if columns[name].is_virtual:
            raise InvalidInput(
                f"{table}: {name} is a virtual generated column, which no trigger sees", "name a stored one"
            )
    for name in (definition.tenant, *definition.keys):
        if columns[name].base not in _KEYS and not columns[name].is_enum:
            raise InvalidInput(
                f"{table}: {name} is of type {columns[name].written}, whose text is not unique for each value",
                "use a column of numbers, text, uuid, boolean, date, time or an enum",
            )
    for name in definition.keys:
        if not columns[name].is_not_null:
            raise InvalidInput(f"{table}: {name} may be null, and a record needs a key", "make it NOT NULL")
    if len(set(definition.keys)) != len(definition.keys):
        raise InvalidInput(f"{table}: a key column is named twice", "name each once")


def dropped(schema: str) -> str:
    """Return the replacement of `Adopted.document` for a table that was unadopted and dropped: it finds no row."""
    parts = {"json": "NULL::jsonb", "table": query("adopted_none"), "match": "true"}
    return filled("adopted_document", schema, parts)


def known(connection: Connection, source: str | None = None) -> list[Known]:
    """Return the tables that were adopted as a source, or as any source."""
    rows = connection.exec_driver_sql(queries(connection)("adopted"), {"source": source})
    return [Known(**row._mapping) for row in rows]


def known_as(connection: Connection, source: str) -> Known | None:
    """Return the table that was adopted as a source; None: there is none."""
    return next(iter(known(connection, source)), None)


def backfills_due(engine: Engine) -> list[Due]:
    """Return the adopted tables whose backfill has not begun or not ended, unless that was chosen."""
    with engine.begin() as connection:
        return [each.due for each in known(connection) if each.due]
