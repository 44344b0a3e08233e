"""Adopting a table as a source, and undoing that: the statements, and how they run without blocking writers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from psycopg.errors import QueryCanceled
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError

from taskbridge.common.names import check_source_name
from taskbridge.errors import InvalidInput, InvalidName, Unavailable
from taskbridge.store.adopted import MARKS, Adopted, Definition, Known, described, known, known_as, present
from taskbridge.store.db import driver_error, is_busy, within
from taskbridge.store.queries import LOCAL, filled, literal, queries, query, quoted, schema_of, setting

__all__ = [
    "Fault",
    "Unadopted",
    "adopt",
    "adoption",
    "adoption_statements",
    "check_adoptions",
    "removal_statements",
    "trigger_faults",
    "unadopt",
]

LOCK_WAIT: Final = 0.04
"""Seconds to wait for writers of all partitions together; writers that arrive later wait as long."""
PAUSE: Final = 0.4
"""Seconds between two attempts, in which writers can proceed."""
TIMEOUT: Final = 60.0
"""Seconds after which there is no further attempt."""
TRUNCATED: Final = "\0"
"""Placeholder for the table of a TRUNCATE, which is known when the function runs. SQL text cannot contain it."""
_WAIT: Final = f"{round(LOCK_WAIT * 1000)}ms"
MISSED: Final = (
    "changes may have been missed, so send all rows again (or skip them, with --from-now-on instead of --again): "
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
LIMIT: Final = setting("lock_timeout", _WAIT, LOCAL)


class _Trigger(NamedTuple):
    name: str
    table: str
    kind: str

    @property
    def sees_rows(self) -> bool:
        """Whether it records changes of single rows: only then does it fire after the statement."""
        return self.kind.startswith("AFTER")

    def statements(self, function: str, schema: str) -> list[str]:
        timing, each = self.kind.split("; ")
        parts = {"trigger": quoted(self.name), "timing": timing, "table": self.table, "each": each}
        return [filled(name, schema, {**parts, "function": function}) for name in ("adopt_trigger", "adopt_always")]


class Unadopted(NamedTuple):
    """The table that was given up, and the pipelines whose cursors remain. The records remain too."""

    table: str
    pipelines: Sequence[str]


class Fault(NamedTuple):
    """A problem with an adopted table; `is_recorded`: its changes are recorded nevertheless."""

    what: str
    remedy: str
    is_recorded: bool = False


def adoption(
    where: Engine | Connection,
    table: str | None,
    tenant: str | None,
    keys: Sequence[str],
    *,
    source: str | None = None,
    watched: Sequence[str] | None = (),
    needs_rights: bool = True,
    other_keys: bool = False,
) -> Adopted:
    """Examine a table that is to be adopted, without changing anything. Its name is written as in SQL.

    Without a table, that of the present adoption of `source` is examined, by the same tenant and keys unless others are
    given. Only changes of the columns `watched` count; empty: of all columns; None: of those chosen before.
    `other_keys`: the existing records of the source may have other tenant and key columns; a backfill is due then.

    Raises:
        InvalidInput, InvalidName: it cannot be adopted like this; the message says why, and what to do.
    """
    with _examining(where) as connection:
        if table is None:
            before = known_as(connection, check_source_name(source or ""))
            if before is None or before.called is None or before.ended:
                raise InvalidInput(f"no table is adopted as {source!r}: name the table, with --tenant and --key")
            table, tenant = before.called, tenant or before.definition.tenant
            keys = keys or before.definition.keys
        found = _named(connection, table)
        if found is None:
            raise InvalidInput(
                f"there is no table {table}: write its name as in SQL, with its schema if that is not in the search "
                "path, and in quotation marks if it has capital letters"
            )
        if source is None:
            try:
                source = check_source_name(found.name)
            except InvalidName as error:
                raise InvalidName(f"{error}: give the source a name with --source") from None
        if watched is None:
            before = known_as(connection, source)
            watched = before.definition.watched if before and before.relation == found.relation else ()
        definition = Definition(check_source_name(source), tenant or "", tuple(keys), tuple(dict.fromkeys(watched)))
        adopted = described(connection, found.relation, definition, needs_rights=needs_rights)
        _check_source(connection, adopted, other_keys=other_keys)
    return adopted


@contextmanager
def _examining(where: Engine | Connection) -> Iterator[Connection]:
    """Begin a transaction or, in the caller's, a savepoint; it is rolled back, which restores the search path."""
    if isinstance(where, Engine):
        with where.connect() as connection:
            yield connection
        return
    savepoint = where.begin_nested()
    try:
        yield where
    finally:
        savepoint.rollback()


def _named(connection: Connection, table: str) -> Row[Any] | None:
    """Return the id and the bare name of a table; None: there is no table with this name, or it cannot be one."""
    try:
        with connection.begin_nested():
            return connection.exec_driver_sql(queries(connection)("named_table"), {"table": table}).one_or_none()
    except DBAPIError:
        return None


def _check_source(connection: Connection, adopted: Adopted, *, other_keys: bool) -> None:
    """Raise InvalidInput if the source has records that could be confused with those of the table."""
    wanted, before = adopted.definition, known_as(connection, adopted.definition.source)
    if before is None:
        if connection.exec_driver_sql(queries(connection)("has_records"), {"source": wanted.source}).scalar_one():
            raise InvalidInput(
                f"the source {wanted.source!r} has records that were written by record(): choose another with --source"
            )
        return
    is_another = before.relation != adopted.table.relation
    if is_another and before.called is not None and not before.ended:
        raise InvalidInput(
            f"the source {wanted.source!r} is that of the table {before.called}: choose another with --source, or run "
            f"`taskbridge unadopt {wanted.source}` before"
        )
    if other_keys:
        return
    is_same = replace(before.definition, watched=()) == replace(wanted, watched=())
    if not is_same or (not is_another and before.makes_other_keys(adopted, adopted.names)):
        raise InvalidInput(
            f"{before.called or before.name} was adopted with --tenant {before.definition.tenant}"
            + "".join(f" --key {key}" for key in before.definition.keys)
            + f", which is how the records of the source {wanted.source!r} are named: choose another --source, or add "
            "--again to send all rows under their new keys and the records of old keys as deleted"
        )


def adoption_statements(adopted: Adopted, *, from_now_on: bool = False) -> list[str]:
    """Return the statements that make a table a source, in order. They can be run again.

    With `from_now_on` the last one stores that rows from before the adoption get no backfill.
    """
    made, function, triggers = _function(adopted), _function_name(adopted), _triggers(adopted)
    wanted = adopted.definition
    parts = {
        "source": literal(wanted.source),
        "table_name": literal(adopted.table.name),
        "tenant_name": literal(wanted.tenant),
        "key_names": _texts(wanted.keys),
        "watched_names": _texts(wanted.watched) if wanted.watched else "NULL",
        "digest": literal(_digest(adopted)),
        "kinds": _texts(adopted.kinds),
        "keys": str(len(adopted.names)),
        "row_triggers": f"{_texts([trigger.name for trigger in triggers if trigger.sees_rows])}::text[]",
    }
    return [
        LIMIT,
        made,
        filled("adopt_rights", adopted.schema, {**parts, "function_text": function.replace("'", "''")}),
        *_hold([adopted.table.name], "SHARE ROW EXCLUSIVE", adopted.schema),
        # Under the lock, so that no trigger can be disabled between this check and the statements that enable them.
        filled("adopt_register", adopted.schema, parts),
        filled("adopt_seen", adopted.schema, parts),
        *(line for trigger in triggers for line in trigger.statements(function, adopted.schema)),
        filled("adopt_empty", adopted.schema, {**parts, "table": adopted.table.name}),
        *([_from_now_on(adopted)] if from_now_on else []),
    ]


def _hold(tables: Sequence[str], mode: str, schema: str) -> list[str]:
    """Return the statements that lock tables and their partitions, with one limit for all of them."""
    return [
        setting("statement_timeout", _WAIT, LOCAL),
        filled("adopt_hold", schema, {"tables": f"{_texts(tables)}::text[]", "mode": mode}),
        setting("statement_timeout", None, LOCAL),
    ]


def _from_now_on(adopted: Adopted) -> str:
    return filled("adopt_from_now_on", adopted.schema, {"source": literal(adopted.definition.source)})


def removal_statements(where: Engine | Connection, source: str) -> list[str]:
    """Return the statements that remove the triggers of a source, in order.

    Raises:
        InvalidInput: there is no such source.
    """
    with _examining(where) as connection:
        schema = schema_of(connection)
        _adopted_source(connection, source)
        triggers = [trigger for trigger in _triggers_there(connection, source) if not trigger.is_clone]
    parts = [{"trigger": quoted(trigger.trigger), "table": trigger.name} for trigger in triggers]
    return [
        LIMIT,
        *_hold(sorted({trigger.name for trigger in triggers}), "ACCESS EXCLUSIVE", schema),
        *(filled("unadopt_trigger", schema, of_trigger) for of_trigger in parts),
        filled("unadopt_function", schema, {"function": _function_of(source, schema)}),
        filled("unadopt_register", schema, {"source": literal(source)}),
    ]


def adopt(where: Engine | Connection, adopted: Adopted, timeout: float = TIMEOUT, *, from_now_on: bool = False) -> bool:
    """Make the table a source, in the caller's transaction if there is one; return whether it was not one before.

    This waits for open transactions that write the table. Writers that arrive in the meantime wait for at most
    `LOCK_WAIT` seconds, and can proceed before the next attempt. Between two attempts a transaction has none of our
    locks, and its settings stay unchanged. With `from_now_on`, this also stores that rows from before the adoption get
    no backfill, until one is started.

    Raises:
        Unavailable: a transaction wrote the table for as long as `timeout`; nothing was changed. The caller's
            transaction can continue.
    """
    statements = adoption_statements(adopted, from_now_on=from_now_on)
    if is_adopted := not trigger_faults(where, adopted):
        statements = [_from_now_on(adopted)] if from_now_on else []
    if statements:
        _run(where, statements, adopted.table.name, timeout)
    return not is_adopted


def unadopt(where: Engine | Connection, source: str, timeout: float = TIMEOUT) -> Unadopted:
    """Remove the triggers of a source, in the caller's transaction if there is one; return what remains.

    Raises:
        InvalidInput: there is no such source. The caller's transaction can continue.
        Unavailable: as `adopt`; so can it then.
    """
    with _examining(where) as connection:
        adopted = _adopted_source(connection, source)
        known_pipelines = connection.exec_driver_sql(queries(connection)("pipelines"))
        readers = [row.pipeline for row in known_pipelines if row.source == source]
        statements = removal_statements(connection, source)
    table = adopted.called or adopted.name
    _run(where, statements, table, timeout)
    return Unadopted(table, readers)


def _adopted_source(connection: Connection, source: str) -> Known:
    if (adopted := known_as(connection, source)) is not None:
        return adopted
    names = ", ".join(each.source for each in known(connection)) or "none"
    raise InvalidInput(f"no table was adopted as the source {source!r}; there are: {names}")


def trigger_faults(where: Engine | Connection, adopted: Adopted) -> list[str]:
    """Return what is wrong with the triggers of an adopted table, or that it is not adopted; empty if all is well."""
    with _examining(where) as connection:
        before = known_as(connection, adopted.definition.source)
        if before is None or before.ended:
            return ["it is not adopted"]
        return [*_trigger_faults(connection, adopted, before, _triggers_there(connection, before.source))]


def _trigger_faults(
    connection: Connection, adopted: Adopted, before: Known, triggers: Sequence[Any]
) -> Mapping[str, bool]:
    """Return what is wrong with the triggers of a table, and whether changes may have been missed by that."""
    wrong = _idle_triggers(adopted, triggers)
    wrong |= {
        f"the owner of {each.name} cannot make partitions of it": False for each in triggers if not each.may_clone
    }
    if wrong:
        return wrong
    if before.digest != _digest(adopted):
        changed = _changed_columns(before) or [
            "its columns have changed, or an earlier version of TaskBridge made its triggers"
        ]
        return dict.fromkeys(changed, False)
    if other := before.makes_other_keys(adopted, adopted.names):
        return {other: False}
    if _has_missed(connection, before.source):
        return {"its columns were called otherwise for a while, in which changes were not recorded": True}
    # A migration may have run the printed statements in another form.
    body = _function(adopted).split(MARKS[0])[1].split()
    if any(trigger.body.split() != body for trigger in triggers):
        return {"the function of its triggers has another text than the one that adopts it": False}
    return {}


def _changed_columns(before: Known) -> list[str]:
    """Return which adopted columns have other names now or, if none has, other types."""
    in_each_write = (before.tenant_column, *before.key_columns)
    # Watched columns only matter for updates.
    return [
        f"its column {name} is called {now} now, so {'changes' if name in in_each_write else 'updates'} of the table "
        "are not recorded"
        for name, now in before.renamed.items()
    ] or [f"its column {name} has another type now, so each change costs more" for name in before.columns_retyped]


def _has_missed(connection: Connection, source: str) -> bool:
    """Return whether triggers found the columns changed; False for a role that cannot read the records."""
    sql = queries(connection)
    if not connection.exec_driver_sql(sql("readable_records")).scalar_one():
        return False
    return bool(connection.exec_driver_sql(sql("adopted_has_missed"), {"source": source}).scalar_one())


def _idle_triggers(adopted: Adopted, triggers: Sequence[Any]) -> dict[str, bool]:
    """Return which triggers do not always fire, and whether changes of single rows may have been missed by that."""
    there = {(trigger.name, trigger.trigger): _FIRES[trigger.fires] for trigger in triggers}
    wanted = {(trigger.table, trigger.name): trigger.sees_rows for trigger in _triggers(adopted)}
    idle = {
        f"{table} has no trigger {name}": sees_rows
        for (table, name), sees_rows in wanted.items()
        if (table, name) not in there
    }
    for (table, name), what in there.items():
        if what:
            idle[f"the trigger {name} of {table} {what}"] = wanted.get((table, name), True)
    return idle


def check_adoptions(engine: Engine) -> dict[str, list[Fault]]:
    """Return the problems of each adopted table."""
    with engine.begin() as connection:
        adoptions = [each for each in known(connection) if not each.ended]
    faults = {}
    for each in adoptions:
        with engine.begin() as connection:
            faults[each.source] = list(_faults(connection, each))
    return faults


def _faults(connection: Connection, before: Known) -> Iterator[Fault]:
    # Its texts depend on the search path, which `present` changes.
    triggers = _triggers_there(connection, before.source)
    try:
        adopted = present(connection, before)
    except InvalidInput as error:
        yield Fault(error.what, error.remedy)
        return
    table, again = adopted.table.name, before.definition.command(adopted.table.name)
    if before.name != before.called and _named(connection, before.name) is not None:
        what = f"the table that was adopted is called {before.called} now; changes of {before.name} are not recorded"
        readopt = before.definition.command(before.name)
        yield Fault(what, f"run: taskbridge unadopt {before.source} && {readopt}")
    if not adopted.table.is_readable:
        yield Fault(f"this role has no right to read {table}", "grant SELECT on it to the workers' role")
    if lacking := sorted({what for trigger in triggers for what in trigger.lacks}):
        what = f"the role {triggers[0].role}, which adopted it, has no {', no '.join(lacking)}, and so its writers fail"
        yield Fault(what, "grant it that")
    for wrong, is_missed in _trigger_faults(connection, adopted, before, triggers).items():
        yield Fault(wrong, f"{MISSED}{again} --again" if is_missed else f"run again: {again}")
    if before.due:
        yield Fault(before.due.what, before.due.remedy, is_recorded=True)


def _triggers_there(connection: Connection, source: str) -> Sequence[Any]:
    """Return the existing triggers; see `adopted_triggers`."""
    function = f"{_function_of(source, schema_of(connection))}()"
    return connection.exec_driver_sql(queries(connection)("adopted_triggers"), {"function": function}).all()


@contextmanager
def _part(where: Engine | Connection) -> Iterator[Connection]:
    """Begin a transaction or, in the caller's transaction, a savepoint that leaves the settings unchanged."""
    if isinstance(where, Engine):
        # Whatever the default of the database is: statements must see what was committed while they waited for a lock.
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
                # One message, so that writers do not wait for our round trips.
                text = ";\n".join((LIMIT, queries(where)("adopt_lock"), *statements))
                connection.exec_driver_sql(text.replace("%", "%%"))
        except DBAPIError as error:
            if not (is_busy(error) or isinstance(driver_error(error), QueryCanceled)):
                raise
            if time.monotonic() > until:
                raise Unavailable(
                    f"{table} has been in use by long transactions for {timeout:g} s (pg_stat_activity shows them), "
                    "so nothing was changed: try again when they have ended"
                ) from error
            time.sleep(PAUSE)
        else:
            return


def _function(adopted: Adopted) -> str:
    came, changed, went = ("adopted_came", "adopted_changed", "adopted_went")
    columns = {"keys": str(len(adopted.names))}
    adopted_columns = enumerate((*adopted.names, *adopted.definition.watched), 1)
    unchanged = [
        filled("adopted_unchanged", adopted.schema, {"place": str(place), "name": literal(name)})
        for place, name in adopted_columns
    ]
    body = {
        "function": _function_name(adopted),
        "source": literal(adopted.definition.source),
        "styles": f" {query('adopted_styles')}" if adopted.has_times else "",
        "unchanged": "".join(f"\n{condition}" for condition in unchanged),
        "columns": filled("adopted_columns", adopted.schema, columns),
        "missed": filled("adopted_missed", adopted.schema, {"source": literal(adopted.definition.source)}),
        "came": _statement(adopted, came),
        "changed": _statement(adopted, changed),
        "went": _statement(adopted, went),
        "changed_anew": _marked(_statement(adopted, changed, passed=True)),
        "came_untyped": _marked(_statement(adopted, came, passed=True, typed=False)),
        "changed_untyped": _marked(_statement(adopted, changed, passed=True, typed=False)),
        "went_untyped": _marked(_statement(adopted, went, passed=True, typed=False)),
        "emptied": _emptied(adopted),
        "emptied_untyped": _emptied(adopted, typed=False),
    }
    return filled("adopt_function", adopted.schema, body)


def _emptied(adopted: Adopted, *, typed: bool = True) -> str:
    """Return the SQL expression of the statement that records a TRUNCATE; only the function knows the table."""
    before, after = _statement(adopted, "adopted_went", rows=TRUNCATED, typed=typed).split(TRUNCATED)
    return f"{_marked(before)} || TG_RELID::regclass::text || {_marked(after)}"


def _marked(statement: str) -> str:
    mark = MARKS[1]
    return f"{mark}\n{statement}{mark}"


def _statement(
    adopted: Adopted, name: str, *, passed: bool = False, rows: str | None = None, typed: bool = True
) -> str:
    """Return the statement of the function that records changes.

    `passed`: if the trigger is called for each row, NEW and OLD are $1 and $2. `rows`: the table that has the old rows,
    if the trigger has none. Unless `typed`, tenant and key may be of any type.
    """
    wanted, by_row = adopted.definition, adopted.table.by_row and rows is None
    watched = dict.fromkeys((*adopted.names, *wanted.watched)) if wanted.watched else {}
    parts = {"source": literal(wanted.source)}
    parts["muted"] = filled("adopted_muted", adopted.schema, parts)
    for word, number in (("new", "$1"), ("old", "$2")):
        whole = number if passed else word.upper()
        row = word[0] if not by_row else f"({whole})" if passed else whole
        columns = ", ".join(f"{row}.{quoted(column)}" for column in watched)
        parts[word] = query("adopted_row") if by_row else rows or f"{word}_rows"
        parts[f"{word}_tenant"] = adopted.tenant_of(row, as_owner=True, typed=typed)
        parts[f"{word}_key"] = adopted.key_of(row, as_owner=True, typed=typed)
        parts[f"{word}_counts"] = adopted.has_tenant_and_key(row)
        parts[f"{word}_watched"] = f"{f'ROW({columns})' if columns else whole if by_row else f'ROW({row}.*)'}::record"
    again = query("adopted_again", adopted.schema)
    return adopted.records(filled(name, adopted.schema, parts), again, typed=typed, is_single=by_row)


def _triggers(adopted: Adopted) -> list[_Trigger]:
    # Another deployment, with another schema, may have adopted the table too.
    prefix, table = _short(f"{adopted.schema}_{adopted.definition.source}"), adopted.table
    emptied = [_Trigger(f"{prefix}_truncate", name, "BEFORE TRUNCATE; FOR EACH STATEMENT") for name in table.emptied]
    if table.by_row:
        return [_Trigger(f"{prefix}_row", table.name, "AFTER INSERT OR UPDATE OR DELETE; FOR EACH ROW"), *emptied]
    tables = {
        "insert": "NEW TABLE AS new_rows",
        "update": "OLD TABLE AS old_rows NEW TABLE AS new_rows",
        "delete": "OLD TABLE AS old_rows",
    }
    return [
        *(
            _Trigger(f"{prefix}_{verb}", table.name, f"AFTER {verb.upper()}; REFERENCING {rows} FOR EACH STATEMENT")
            for verb, rows in tables.items()
        ),
        *emptied,
    ]


def _digest(adopted: Adopted) -> str:
    """Return a digest of the function and the kinds of triggers, which does not depend on the table's name."""
    kinds = sorted({trigger.kind for trigger in _triggers(adopted)})
    return hashlib.sha256("\n".join((_function(adopted), *kinds)).encode()).hexdigest()


def _function_name(adopted: Adopted) -> str:
    return _function_of(adopted.definition.source, adopted.schema)


def _function_of(source: str, schema: str) -> str:
    return f"{quoted(schema)}.{quoted('adopted_' + _short(source))}"


def _short(source: str) -> str:
    """Return a short form of a source for use in names, which have at most 63 bytes."""
    return source if len(source) <= 40 else f"{source[:31]}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _texts(names: Sequence[str]) -> str:
    return f"ARRAY[{', '.join(map(literal, names))}]"
