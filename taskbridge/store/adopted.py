"""Adopted tables: what a table of the user's own is as a source, and how a batch reads its rows.

The record of a row is thin: source, tenant, key, and no document. Triggers write it in the transaction that changes the
row (`adoptions.py`); a batch reads the row as it is when the batch is read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from taskbridge.errors import InvalidInput
from taskbridge.store.queries import LOCAL, filled, literal, queries, query, quoted, schema_of, setting

__all__ = [
    "SETTINGS",
    "Adopted",
    "Definition",
    "Known",
    "Table",
    "adopting",
    "described",
    "dropped",
    "known",
    "present",
]

_KEYS: Final = frozenset(
    {"int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "citext", "uuid", "bool"}
    | {"date", "timestamp", "timestamptz"}
)
"""Types whose text says which value it is, whatever the session's settings are; enums as well."""
_WORDS: Final = frozenset(("text", "varchar", "bpchar", "citext", "numeric"))
_TIMES: Final = ("timestamp", "timestamptz")
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
SETTINGS: Final = "; ".join(
    setting(name, value, LOCAL) for name, value in (("datestyle", "ISO, YMD"), ("timezone", "UTC"))
)
"""How dates and times are written where their text is a part of a key."""
MARK: Final = "$taskbridge$"
"""What the body of a trigger function stands between."""


class Column(NamedTuple):
    """A column; see `adoptable_columns`.

    `written`: how its type is written; `bare`: that below all domains. `is_numeric`: Python would read numbers of JSON
    with fewer digits than it has.
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

    def text(self, value: str, schema: str) -> str:
        """Return the text of a value as SQL, in a session that writes times in ISO and UTC.

        It is made of what the type's own output writes: a cast may be anybody's, once the type was changed.
        """
        text = f"concat({value})"
        if self.base in _TIMES:
            return f"{quoted(schema)}.time_text({text})"
        if self.base == "bpchar":
            return f"rtrim({text}, ' ')"
        if self.base == "bool":
            text = f"CASE {text} WHEN 't' THEN 'true' WHEN 'f' THEN 'false' ELSE {text} END"
        return text


@dataclass(frozen=True, slots=True)
class Table:
    """What the database says of a table.

    `unique`: the columns of the index by which a row is found. `emptied`: the tables that a TRUNCATE names, which are
    the partitions where there are some. `by_row`: statement triggers would miss changes. `may_ask`: Postgres can say
    whether a text is one of a type. `rows`: an estimate.
    """

    relation: int
    name: str
    columns: Mapping[str, Column]
    unique: tuple[str, ...]
    emptied: tuple[str, ...]
    by_row: bool
    may_ask: bool
    rows: int


@dataclass(frozen=True, slots=True)
class Definition:
    """What a source is made of: tenant and key columns, and those that are watched beside them; none: all."""

    source: str
    tenant: str
    keys: tuple[str, ...]
    watched: tuple[str, ...] = ()

    def command(self, table: str) -> str:
        """Return the command that adopts a table so."""
        return adopting(self.source, table, self.tenant, self.keys, self.watched)


class Known(NamedTuple):
    """What was adopted as a source; `called`: the table's present name, None if it was dropped.

    `columns_called`: the present names of tenant, keys and watched columns. `columns_taken`: those of the names that
    are another column's now. `columns_retyped`: which of tenant and keys are written as another text now, in words.
    """

    source: str
    relation: int
    name: str
    tenant_column: str
    key_columns: Sequence[str]
    watched_columns: Sequence[str] | None
    version: str
    ended: bool
    called: str | None
    columns_called: Sequence[str]
    columns_taken: Sequence[str]
    columns_retyped: Sequence[str]
    has_other_types: bool
    has_missed: bool
    is_readable: bool
    is_due: bool
    backfilled: int
    again: bool

    @property
    def definition(self) -> Definition:
        """What was asked for, with the present names of the columns."""
        tenant, *others = self.columns_called
        keys = len(self.key_columns)
        return Definition(self.source, tenant, tuple(others[:keys]), tuple(others[keys:]))

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that are called otherwise now, and how."""
        adopted = (self.tenant_column, *self.key_columns, *(self.watched_columns or ()))
        return {name: now for name, now in zip(adopted, self.columns_called, strict=True) if name != now}

    def makes_other_keys(self, names: Sequence[str] = ()) -> str | None:
        """Return why the records that there are would not be found by what the table is now; None: they are.

        `names`: the columns of tenant and key by which they are looked for, if not those of their adoption.
        """
        taken = next(
            (one for one in names or (self.tenant_column, *self.key_columns) if one in self.columns_taken), None
        )
        if taken is not None:
            return f"{taken} is another column than the one that was adopted"
        return next(iter(self.columns_retyped), None)


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

    def parts_of(self, row: str) -> dict[str, str]:
        """Return, as SQL, what a row is in the log: tenant, key, whether it has a record, and what is watched of it.

        It holds in a session that writes times in ISO and UTC. Of one key the text is that of the column, of several
        a JSON array of theirs. A row without a tenant is nobody's.
        """
        tenant, *keys = (self.table.columns[name].text(f"{row}.{quoted(name)}", self.schema) for name in self.names)
        key = keys[0] if len(keys) == 1 else f"jsonb_build_array({', '.join(keys)})::text"
        watched = dict.fromkeys((*self.names, *self.definition.watched)) if self.definition.watched else ()
        # The columns of a trigger's row are not listed: a session would keep the list that it has planned with.
        whole = row if len(row) > 1 else f"ROW({row}.*)"
        image = f"ROW({', '.join(f'{row}.{quoted(name)}' for name in watched)})" if watched else whole
        return {
            "tenant": f'({tenant}) COLLATE "C"',
            "key": f'({key}) COLLATE "C"',
            "counts": " AND ".join(f"{row}.{quoted(name)} IS NOT NULL" for name in self.names),
            "watched": f"{image}::record",
        }

    def records(self, changes: str, muted: str, outdated: str) -> str:
        """Return the statement that writes thin records of changes, not of the tenant `muted`, over outdated ones."""
        parts = {"changes": changes, "muted": muted, "outdated": outdated, "source": literal(self.definition.source)}
        return filled("adopted_records", self.schema, parts)

    def places_of(self, row: str) -> str:
        """Return where a row stands in the order of the unique index, as an array of texts."""
        places = (
            f"CASE WHEN {row}.{quoted(one)} IS NOT NULL THEN concat({row}.{quoted(one)}) END"
            for one in self.table.unique
        )
        return f"ARRAY[{', '.join(places)}]"

    @property
    def document(self) -> str:
        """The row of a record `r` as JSON: a part of queries, with psycopg's placeholders."""
        row = "to_jsonb(t.*)"
        for name, column in self.table.columns.items():
            if column.is_numeric:
                texts = "::text[]" if column.is_array else "::text"
                row += f" || jsonb_build_object({literal(name)}, t.{quoted(name)}{texts})"
        key = self.definition.keys
        texts_of = ["r.external_id"] if len(key) == 1 else [f"r.external_id::jsonb ->> {at}" for at in range(len(key))]
        match = [self._is(*one) for one in zip(self.names, ("r.tenant", *texts_of), strict=True)]
        parts = {"json": row, "table": self.table.name, "match": " AND ".join(match)}
        escaped = {name: part.replace("%", "%%") for name, part in parts.items()}
        return filled("adopted_document", self.schema, escaped)

    def _is(self, name: str, text: str) -> str:
        """Return whether a column of the row `t` has the value of a text: an index can be used, and the text is it."""
        column = self.table.columns[name]
        # A record that has a document is no row's, and its key may be any text.
        text = f"CASE WHEN one.wanted AND r.document IS NULL THEN {text} END"
        value = f"({text})"
        if self.table.may_ask and column.base not in ("text", "varchar", "bpchar", "citext"):
            # The type of a column, and the labels of an enum, may have changed since.
            value = f"(CASE WHEN pg_input_is_valid({text}, {literal(column.bare)}) THEN {text} END)"
        value += f"::{column.bare}" if column.collation is None else f"::{column.bare} COLLATE {column.collation}"
        found = f"t.{quoted(name)} OPERATOR({column.operators}.=) ({value})"
        if column.base in _WORDS:
            # Two texts may be one value.
            found += f' AND ({column.text(f"t.{quoted(name)}", self.schema)}) COLLATE "C" = ({text}) COLLATE "C"'
        return found


def described(connection: Connection, relation: int, definition: Definition, *, needs_rights: bool = False) -> Adopted:
    """Look a table up, and see that it can be a source; if it `needs_rights`, that this role may adopt it.

    Raises:
        InvalidInput: it cannot; the message says why, and what to do.
    """
    schema, sql = schema_of(connection), queries(connection)
    parts = {"schema_name": literal(schema)}
    found = connection.exec_driver_sql(filled("adoptable", schema, parts), {"relation": relation}).one_or_none()
    if found is None:
        raise InvalidInput(
            f"the table of {definition.source} was dropped",
            f"adopt the one that took its place, or run `taskbridge unadopt {definition.source}`, and what is pending "
            "counts as deleted",
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
            f"{found.name}: two rows could be one record, for no unique index consists of {', '.join(sorted(names))} "
            "or some of these",
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
    )
    return Adopted(definition, table, schema)


def present(connection: Connection, one: Known) -> Adopted:
    """Look up what was adopted, as it is now.

    Raises:
        InvalidInput: it cannot be a source any more; or its rows would not be found by the keys of its records, so that
            each would pass for a deleted one.
    """
    found = described(connection, one.relation, one.definition)
    if other := one.makes_other_keys():
        names = (one.tenant_column, tuple(one.key_columns), tuple(one.watched_columns or ()))
        again = Definition(one.source, *names).command(found.table.name)
        raise InvalidInput(
            f"the source {one.source} stands still: of {found.table.name}, {other}",
            f"run: {again} --again; each row is sent with its present key, and records of other keys as deleted",
        )
    return found


def _unfit(found: Any, *, needs_rights: bool) -> tuple[str, str] | None:
    """Return what keeps a table from being a source, and the remedy; None: nothing."""
    guarded = (
        "has row-level security, which may hide rows from this role, and a row that a worker cannot see would count as "
        "deleted"
    )
    both = "take a role that has the rights of both owners, or give the statements of --print-sql to somebody who has"
    checks = (
        (
            found.is_ours,
            "is in TaskBridge's own schema",
            "adopt one of yours; where this is one, move it with ALTER TABLE ... SET SCHEMA public",
        ),
        (
            found.kind not in ("r", "p"),
            f"is {_KINDS.get(found.kind, 'no table')}",
            "adopt the table that has the rows",
        ),
        (found.is_partition, "is a partition", "adopt its parent, whose writes would be missed"),
        (found.inherits, "inherits, or is inherited from, so writes would be missed", "adopt tables that do not"),
        (
            found.has_foreign,
            "has a foreign table as a partition, whose writes no trigger here sees",
            "detach that, or adopt the table in the database where its rows are",
        ),
        (found.relpersistence == "t", "is temporary", "make it a permanent table"),
        (
            found.relpersistence == "u",
            "is unlogged, and a crash would empty it unseen",
            "make it logged by ALTER TABLE ... SET LOGGED",
        ),
        (found.is_guarded, guarded, "use a role with BYPASSRLS here and for workers"),
        (needs_rights and not found.is_readable, "cannot be read by this role", "grant it SELECT"),
        (needs_rights and not found.is_owned, "is another's", both),
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
        if MARK in name:
            raise InvalidInput(
                f"{table}: the column {name} holds {MARK}, which marks a part of the function", "rename the column"
            )
        if columns[name].is_virtual:
            raise InvalidInput(
                f"{table}: {name} is a virtual generated column, which no trigger sees", "name a stored one"
            )
    for name in (definition.tenant, *definition.keys):
        if columns[name].base not in _KEYS and not columns[name].is_enum:
            raise InvalidInput(
                f"{table}: {name} is of type {columns[name].written}, which has no text of its own for each value",
                "take a column of numbers, text, uuid, boolean, date, time or an enum",
            )
    for name in definition.keys:
        if not columns[name].is_not_null:
            raise InvalidInput(f"{table}: {name} may be null, and a record needs a key", "make it NOT NULL")
    if len(set(definition.keys)) != len(definition.keys):
        raise InvalidInput(f"{table}: a key column is named twice", "name each once")


def dropped(schema: str) -> str:
    """Return what takes the place of `Adopted.document` where the table was unadopted and dropped: no row is there."""
    parts = {"json": "NULL::jsonb", "table": query("adopted_none"), "match": "true"}
    return filled("adopted_document", schema, parts)


def known(connection: Connection, source: str | None = None) -> list[Known]:
    """Return what was adopted as a source, or as any."""
    rows = connection.exec_driver_sql(queries(connection)("adopted"), {"source": source})
    return [Known(**row._mapping) for row in rows]


def adopting(source: str, table: str, tenant: str, keys: Sequence[str], watched: Sequence[str] = ()) -> str:
    """Return the command that adopts a table."""
    words = ["taskbridge", "adopt", table, "--tenant", tenant]
    for key in keys:
        words += ["--key", key]
    words += ["--source", source]
    if watched:
        words += ["--columns", ",".join(watched)]
    return shlex.join(words)
