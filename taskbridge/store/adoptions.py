"""Adopting a table as a source, and giving it up: the statements, and how they are run without holding writers up."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from psycopg.errors import QueryCanceled
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from taskbridge.common.names import check_source_name
from taskbridge.errors import InvalidInput, InvalidName, Unavailable
from taskbridge.store.adopted import MARK, Adopted, Definition, Known, described, known, present
from taskbridge.store.backfilling import backfills_due
from taskbridge.store.db import driver_error, is_busy, within
from taskbridge.store.queries import LOCAL, filled, literal, queries, query, quoted, schema_of, setting

__all__ = [
    "Fault",
    "Left",
    "adopt",
    "adopt_within",
    "adopted_before",
    "adoption",
    "adoption_statements",
    "check_adoptions",
    "choose_from_now_on",
    "from_now_on_statement",
    "removal_statements",
    "trigger_faults",
    "unadopt",
]

PAUSE: Final = 0.4
"""Seconds from a try to the next, in which writers go on."""
TIMEOUT: Final = 60.0
"""Seconds after which no further try is made."""
TRUNCATED: Final = "\0"
"""Stands for the table that a TRUNCATE names, which is known when the function runs; no text of SQL holds it."""
_TRUNCATED_TABLE: Final = "TG_RELID::regclass::text"
_WAIT: Final = "40ms"
"""How long writers are waited for, those of all partitions together; those that come after it wait as long."""
LIMIT: Final = setting("lock_timeout", _WAIT, LOCAL)
MISSED: Final = (
    "changes may have been missed, so send each row once more (with --from-now-on in place of --again: none): "
)
_FIRES: Final = {
    "A": "",
    "O": "does not fire where rows are replicated",
    "R": "fires only where rows are replicated",
    "D": "is off",
}
"""What is wrong with a trigger, by its `tgenabled`.

Source: https://www.postgresql.org/docs/current/catalog-pg-trigger.html
"""


class _Trigger(NamedTuple):
    name: str
    table: str
    kind: str

    @property
    def sees_rows(self) -> bool:
        """Whether it records what becomes of single rows: only then it fires after the statement."""
        return self.kind.startswith("AFTER")

    def statements(self, function: str, schema: str) -> list[str]:
        timing, each = self.kind.split("; ")
        parts = {"trigger": quoted(self.name), "timing": timing, "table": self.table, "each": each}
        return [filled(name, schema, {**parts, "function": function}) for name in ("adopt_trigger", "adopt_always")]


class Left(NamedTuple):
    """What was taken: the table, and the pipelines whose cursors remain, as the records do."""

    table: str
    pipelines: Sequence[str]


class Fault(NamedTuple):
    """What is wrong with an adopted table; `is_recorded`: changes of it are recorded all the same."""

    what: str
    remedy: str
    is_recorded: bool = False


@contextmanager
def _transaction(where: Engine | Connection) -> Iterator[Connection]:
    """Begin a transaction, unless the caller has begun one."""
    if isinstance(where, Connection):
        yield where
        return
    with where.begin() as connection:
        yield connection


def adoption(
    where: Engine | Connection,
    table: str,
    tenant: str,
    keys: Sequence[str],
    *,
    source: str | None = None,
    watched: Sequence[str] | None = (),
    needs_rights: bool = True,
    other_keys: bool = False,
) -> Adopted:
    """Look at a table, as SQL writes its name, that is to be adopted; nothing is changed.

    Only changes of the columns `watched` count; none: of all. None: of those that were chosen before. `other_keys`: the
    records that the source has may be of other tenant and key columns; a backfill is due then.

    Raises:
        InvalidInput, InvalidName: it cannot be adopted so; the message says why, and what to do.
    """
    with _transaction(where) as connection:
        relation, name = _named(connection, table)
        try:
            source = check_source_name(source or name)
        except InvalidName as error:
            raise error if source else InvalidName(f"{error}: give the source a name with --source") from None
        before = next(iter(known(connection, source)), None)
        if watched is None:
            watched = before.definition.watched if before and before.relation == relation else ()
        definition = Definition(source, tenant, tuple(keys), tuple(dict.fromkeys(watched)))
        found = described(connection, relation, definition, needs_rights=needs_rights)
        if before:
            _check_same(before, found, other_keys=other_keys)
        elif connection.exec_driver_sql(queries(connection)("has_records"), {"source": source}).scalar_one():
            raise InvalidInput(
                f"the source {source!r} has records that were written by record(): choose another with --source"
            )
        return found


def _named(connection: Connection, table: str) -> tuple[int, str]:
    try:
        with connection.begin_nested():
            found = connection.exec_driver_sql(queries(connection)("named_table"), {"table": table}).one_or_none()
    except DBAPIError:
        found = None
    if found is None:
        raise InvalidInput(
            f"there is no table {table}: write its name as SQL has it, with its schema where that is not in the search "
            "path, and with quotation marks where it has capital letters"
        )
    return found.relation, found.name


def _check_same(before: Known, found: Adopted, *, other_keys: bool) -> None:
    """Raise InvalidInput where the source has records that the table's would be mistaken for."""
    wanted, is_same_table = found.definition, before.relation == found.table.relation
    if not is_same_table and before.called is not None and not before.ended:
        raise InvalidInput(
            f"the source {wanted.source!r} is that of the table {before.called}: choose another with --source, "
            f"or run `taskbridge unadopt {wanted.source}` before"
        )
    is_same = replace(before.definition, watched=()) == replace(wanted, watched=())
    if not other_keys and (not is_same or (is_same_table and before.makes_other_keys(found.names))):
        raise InvalidInput(
            f"{before.called or before.name} was adopted with --tenant {before.definition.tenant}"
            + "".join(f" --key {key}" for key in before.definition.keys)
            + f", and the records of the source {wanted.source!r} have these: choose another with --source, or add "
            "--again, and each row is sent with its new key, and records of other keys as deleted"
        )


def adopted_before(engine: Engine, source: str) -> tuple[str, Definition]:
    """Return the table that is adopted as a source, as SQL writes its name, and how.

    Raises:
        InvalidInput: none is.
    """
    with engine.begin() as connection:
        for one in known(connection, check_source_name(source)):
            if one.called is not None and not one.ended:
                return one.called, one.definition
    raise InvalidInput(f"no table is adopted as {source!r}: name the table, with --tenant and --key")


def adoption_statements(adopted: Adopted) -> list[str]:
    """Return the statements that make a table a source, in their order. Each may be run again."""
    function, triggers, wanted = _function_name(adopted), _triggers(adopted), adopted.definition
    parts = {
        "source": literal(wanted.source),
        "table": adopted.table.name,
        "table_name": literal(adopted.table.name),
        "tenant_name": literal(wanted.tenant),
        "key_names": _texts(wanted.keys),
        "watched_names": _texts(wanted.watched) if wanted.watched else "NULL",
        "keys": str(len(adopted.names)),
        "row_triggers": f"{_texts([one.name for one in triggers if one.sees_rows])}::text[]",
        "function_text": function.replace("'", "''"),
    }
    return [
        LIMIT,
        _function(adopted),
        filled("adopt_rights", adopted.schema, parts),
        *_hold([adopted.table.name], "SHARE ROW EXCLUSIVE", adopted.schema),
        # Under the lock: nobody turns a trigger off between this look at them and what turns them on.
        filled("adopt_register", adopted.schema, parts),
        *(line for one in triggers for line in one.statements(function, adopted.schema)),
        filled("adopt_empty", adopted.schema, parts),
    ]


def _hold(tables: Sequence[str], mode: str, schema: str) -> list[str]:
    """Return the statements that lock tables and their partitions, with one limit for all of them."""
    return [
        setting("statement_timeout", _WAIT, LOCAL),
        filled("adopt_hold", schema, {"tables": f"{_texts(tables)}::text[]", "mode": mode}),
        setting("statement_timeout", None, LOCAL),
    ]


def from_now_on_statement(adopted: Adopted) -> str:
    """Return the statement that keeps that rows from before the adoption are to get no backfill."""
    return filled("adopt_from_now_on", adopted.schema, {"source": literal(adopted.definition.source)})


def choose_from_now_on(engine: Engine, adopted: Adopted) -> None:
    """Keep that rows from before the adoption are to get no backfill, until somebody begins one."""
    with engine.begin() as connection:
        connection.exec_driver_sql(from_now_on_statement(adopted).replace("%", "%%"))


def removal_statements(where: Engine | Connection, source: str) -> list[str]:
    """Return the statements that take the triggers of a source away, in their order.

    Raises:
        InvalidInput: there is no such source.
    """
    with _transaction(where) as connection:
        schema = schema_of(connection)
        _the_one(connection, source)
        triggers = [one for one in _triggers_there(connection, source) if not one.is_clone]
        return [
            LIMIT,
            *_hold(sorted({one.name for one in triggers}), "ACCESS EXCLUSIVE", schema),
            *(
                filled("unadopt_trigger", schema, {"trigger": quoted(one.trigger), "table": one.name})
                for one in triggers
            ),
            filled("unadopt_function", schema, {"function": _function_of(source, schema)}),
            filled("unadopt_register", schema, {"source": literal(source)}),
        ]


def adopt(engine: Engine, adopted: Adopted, timeout: float = TIMEOUT) -> bool:
    """Make the table a source; return whether anything was to be done.

    Open writers of the table are waited for; those that come meanwhile wait for 40 ms at the most, and then go on
    before the next try.

    Raises:
        Unavailable: somebody wrote the table in one transaction for as long as `timeout`; nothing was changed.
    """
    if not trigger_faults(engine, adopted):
        return False
    _run(engine, adoption_statements(adopted), adopted.table.name, timeout)
    return True


def adopt_within(
    connection: Connection,
    table: str,
    tenant: str,
    keys: Sequence[str],
    *,
    source: str,
    watched: Sequence[str] = (),
    from_now_on: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Make a table a source, as `adopt` does, in a transaction that the caller has begun; its settings stay.

    Between two tries the transaction holds the locks that it had before, and none of ours. With `from_now_on` it is
    kept too that rows from before are to get no backfill.

    Raises:
        InvalidInput, InvalidName, Unavailable: as `adoption` and `adopt`; the transaction can go on.
    """
    found = adoption(connection, table, tenant, keys, source=source, watched=watched)
    kept = [from_now_on_statement(found)] if from_now_on else []
    _run(connection, [*adoption_statements(found), *kept], found.table.name, timeout)


def unadopt(where: Engine | Connection, source: str, timeout: float = TIMEOUT) -> Left:
    """Take the triggers of a source away; return what remains. A transaction that the caller has begun can go on.

    Raises:
        InvalidInput: there is no such source.
        Unavailable: as `adopt`.
    """
    with _transaction(where) as connection:
        found = _the_one(connection, source)
        pipelines = connection.exec_driver_sql(queries(connection)("pipelines"))
        readers = [row.pipeline for row in pipelines if row.source == source]
    table = found.called or found.name
    _run(where, removal_statements(where, source), table, timeout)
    return Left(table, readers)


def _the_one(connection: Connection, source: str) -> Known:
    for one in known(connection, source):
        return one
    names = ", ".join(one.source for one in known(connection)) or "none"
    raise InvalidInput(f"no table was adopted as the source {source!r}; there are: {names}")


def trigger_faults(engine: Engine, adopted: Adopted) -> list[str]:
    """Return what is wrong with the triggers of an adopted table, or that it is none; nothing: all is well."""
    with engine.begin() as connection:
        before = known(connection, adopted.definition.source)
        if not before or before[0].ended:
            return ["it is not adopted"]
        return [*_trigger_faults(connection, adopted, before[0])]


def _trigger_faults(connection: Connection, adopted: Adopted, one: Known) -> dict[str, bool]:
    """Return what is wrong, and whether rows may have changed without a record by that."""
    found = _triggers_there(connection, one.source)
    if wrong := _idle_triggers(adopted, found):
        return wrong
    in_each_write = (one.tenant_column, *one.key_columns)
    # What is watched is looked at where rows are updated alone.
    if wrong := {
        f"its column {name} is called {now} now, so {'changes' if name in in_each_write else 'updates'} of the table "
        "are not recorded": False
        for name, now in one.renamed.items()
    }:
        return wrong
    if other := one.makes_other_keys(adopted.names):
        return {other: False}
    if one.has_missed:
        return {"its columns were called otherwise for a while, in which changes were not recorded": True}
    # A migration may have run what was printed in another form.
    body = _function(adopted).split(MARK)[1].split()
    if any(trigger.body.split() != body for trigger in found):
        return {"its columns have changed, or another version of TaskBridge made its triggers": False}
    if one.has_other_types and adopted.table.by_row:
        return {"its columns have other types now, so each change costs more": False}
    return {}


def _idle_triggers(adopted: Adopted, found: Sequence[Any]) -> dict[str, bool]:
    there = {(one.name, one.trigger): _FIRES[one.fires] for one in found}
    wanted = {(one.table, one.name): one.sees_rows for one in _triggers(adopted)}
    wrong = {f"{at[0]} has no trigger {at[1]}": sees_rows for at, sees_rows in wanted.items() if at not in there}
    for (table, name), what in there.items():
        if what:
            wrong[f"the trigger {name} of {table} {what}"] = wanted.get((table, name), True)
    clones = {f"the owner of {one.name} cannot make partitions of it": False for one in found if not one.may_clone}
    return wrong | clones


def check_adoptions(engine: Engine) -> dict[str, list[Fault]]:
    """Return, of each adopted table, what is wrong with it."""
    with engine.begin() as connection:
        adoptions = [one for one in known(connection) if not one.ended]
    due = {one.source: Fault(one.what, one.remedy, is_recorded=True) for one in backfills_due(engine)}
    found = {}
    for one in adoptions:
        with engine.begin() as connection:
            try:
                faults = [*_faults(connection, one)]
            except InvalidInput as error:
                found[one.source] = [Fault(error.what, error.remedy)]
                continue
        found[one.source] = [*faults, due[one.source]] if one.source in due else faults
    return found


def _faults(connection: Connection, one: Known) -> Iterator[Fault]:
    adopted = present(connection, one)
    again = one.definition.command(adopted.table.name)
    if one.name != one.called and _is_there(connection, one.name):
        what = f"the table that was adopted is called {one.called} now; changes of {one.name} are not recorded"
        yield Fault(what, f"run: taskbridge unadopt {one.source} && {one.definition.command(one.name)}")
    if not one.is_readable:
        what = f"this role has no right to read {adopted.table.name}"
        yield Fault(what, "grant SELECT on it to the workers' role")
    found = _triggers_there(connection, one.source)
    if lacking := sorted({what for trigger in found for what in trigger.lacks}):
        what = f"the role {found[0].role}, which adopted it, has no {', no '.join(lacking)}, and so its writers fail"
        yield Fault(what, "grant it that")
    for wrong, is_missed in _trigger_faults(connection, adopted, one).items():
        yield Fault(wrong, f"{MISSED}{again} --again" if is_missed else f"run again: {again}")


def _is_there(connection: Connection, table: str) -> bool:
    found = connection.exec_driver_sql(queries(connection)("named_table"), {"table": table})
    return found.one_or_none() is not None


def _triggers_there(connection: Connection, source: str) -> Sequence[Any]:
    """Return the triggers that are there; see `adopted_triggers`."""
    function = f"{_function_of(source, schema_of(connection))}()"
    return connection.exec_driver_sql(queries(connection)("adopted_triggers"), {"function": function}).all()


@contextmanager
def _part(where: Engine | Connection) -> Iterator[Connection]:
    """Begin a transaction or, in one that the caller has begun, a part of it that leaves its settings as they were."""
    if isinstance(where, Engine):
        # Whatever the database's default is: what was committed while a lock was waited for is seen.
        committed = where.execution_options(isolation_level="READ COMMITTED")
        with committed.begin() as connection, within(connection, None):
            yield connection
        return
    before = where.exec_driver_sql(queries(where)("limits")).mappings().one()
    with where.begin_nested():
        yield where
        for name, value in before.items():
            where.exec_driver_sql(setting(name, value, LOCAL))


def _run(where: Engine | Connection, statements: Sequence[str], table: str, timeout: float) -> None:
    until = time.monotonic() + timeout
    while True:
        try:
            with _part(where) as connection:
                # One message, so that writers wait for no round trip of ours.
                text = ";\n".join((LIMIT, queries(where)("adopt_lock"), *statements))
                connection.exec_driver_sql(text.replace("%", "%%"))
        except DBAPIError as error:
            if not (is_busy(error) or isinstance(driver_error(error), QueryCanceled)):
                raise
            if time.monotonic() > until:
                raise Unavailable(
                    f"{table} has been in use by long transactions for {timeout:g} s (pg_stat_activity shows them), "
                    "so nothing was changed: try again when they are over"
                ) from error
            time.sleep(PAUSE)
        else:
            return


def _function(adopted: Adopted) -> str:
    new, old, row_new, row_old, one, two = map(adopted.parts_of, ("n", "o", "NEW", "OLD", "($1)", "($2)"))
    source = {"source": literal(adopted.definition.source)}
    muted = filled("adopted_muted", adopted.schema, source)
    outdated = query("adopted_outdated")

    def records(name: str, **parts: str) -> str:
        return adopted.records(filled(name, adopted.schema, parts), muted, outdated)

    def moved(rows: str, came: str, row: Mapping[str, str] = new) -> str:
        return records("adopted_moved", **row, rows=rows, came=came)

    parts = {
        **source,
        "function": _function_name(adopted),
        "emptied": f" || {_TRUNCATED_TABLE} || ".join(map(literal, moved(TRUNCATED, "false").split(TRUNCATED))),
        "row_moved": literal(filled("adopted_row_moved", adopted.schema, one)),
        "row_changed": literal(filled("adopted_row_changed", adopted.schema, _both(one, two))),
        "row_retyped": records("adopted_row_retyped"),
        "row_came": moved("(SELECT)", "true", row_new),
        "row_updated": records("adopted_row_updated", **_both(row_new, row_old)),
        "row_went": moved("(SELECT)", "false", row_old),
        "came": moved("new_rows", "true"),
        "changed": records("adopted_changed", **_both(new, old)),
        "went": moved("old_rows", "false"),
    }
    return filled("adopt_function", adopted.schema, parts)


def _both(new: Mapping[str, str], old: Mapping[str, str]) -> dict[str, str]:
    return {f"{word}_{name}": part for word, row in (("new", new), ("old", old)) for name, part in row.items()}


def _triggers(adopted: Adopted) -> list[_Trigger]:
    # Another deployment, with another schema, may have adopted the table as well.
    prefix, table = _short(f"{adopted.schema}_{adopted.definition.source}"), adopted.table
    kinds = {
        "insert": "AFTER INSERT; REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT",
        "update": "AFTER UPDATE; REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT",
        "delete": "AFTER DELETE; REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT",
    }
    if table.by_row:
        kinds = {"row": "AFTER INSERT OR UPDATE OR DELETE; FOR EACH ROW"}
    return [
        *(_Trigger(f"{prefix}_{verb}", table.name, kind) for verb, kind in kinds.items()),
        *(_Trigger(f"{prefix}_truncate", one, "BEFORE TRUNCATE; FOR EACH STATEMENT") for one in table.emptied),
    ]


def _function_name(adopted: Adopted) -> str:
    return _function_of(adopted.definition.source, adopted.schema)


def _function_of(source: str, schema: str) -> str:
    return f"{quoted(schema)}.{quoted('adopted_' + _short(source))}"


def _short(source: str) -> str:
    """Return a name's part for a source: a name has 63 bytes at the most."""
    return source if len(source) <= 40 else f"{source[:31]}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _texts(names: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, names))}]"
