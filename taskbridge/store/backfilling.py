"""Records of the rows that an adopted table had before it was adopted, page by page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from taskbridge.errors import InvalidInput
from taskbridge.store.adopted import Adopted, known
from taskbridge.store.bounded import within
from taskbridge.store.queries import LOCAL, filled, literal, queries, query, quoted, setting
from taskbridge.store.sessions import is_busy

__all__ = ["Backfilled", "backfill", "begin_again"]

PAGE: Final = 2_000
LOCK_WAIT: Final = 0.2
"""Seconds to wait for a writer's record: less than Postgres takes to look for deadlocks, so that the writer goes on."""
PAUSE: Final = 0.1
ROWS: Final = "rows"
"""First each row gets its record; the place is of the unique index."""
RECORDS: Final = "records"
"""Then, where changes may have been missed, each record is looked at whose row may be gone; the place is a record's."""


class Backfilled(NamedTuple):
    """How many rows were looked at, by this and earlier processes, and whether these are all.

    `again`: changes may have been missed, so that rows with a record get another. `before`: it was done before this
    process began, so that no row was looked at; records that were pruned since are not written again.
    """

    rows: int
    is_done: bool
    again: bool = False
    before: bool = False


def begin_again(engine: Engine, source: str) -> None:
    """Let the next backfill begin at the first row, and write another record of each that has one."""
    with engine.begin() as connection:
        connection.exec_driver_sql(queries(engine)("backfill_restart"), {"source": source})


def backfill(engine: Engine, adopted: Adopted, size: int = PAGE) -> Iterator[Backfilled]:
    """Write a thin record of each row that has none, in the order of the unique index; yield after each page.

    A page and the place where it ends are one transaction, so whoever begins again goes on there, and each row has one
    record. Workers find the records as they find those of any other writer. What is done already is yielded at once.

    Where triggers may have missed changes, since the table was given up meanwhile or after `begin_again`, each row gets
    another record, and records whose row is gone become deleted ones.

    Raises:
        InvalidInput: the source is not adopted, or no longer, or the table has another name since.
    """
    # Each statement must see what it waited for, whatever the database's default is.
    engine = engine.execution_options(isolation_level="READ COMMITTED")
    source, first = {"source": adopted.definition.source}, True
    # How often a writer was in the way: each time the page is half as large, since a smaller one meets fewer writers.
    busy = 0
    while True:
        try:
            with engine.begin() as connection, within(connection, None):
                connection.exec_driver_sql(setting("lock_timeout", f"{round(LOCK_WAIT * 1000)}ms", LOCAL))
                stands = connection.exec_driver_sql(queries(engine)("backfill_begin"), source).one_or_none()
                if stands is None:
                    raise InvalidInput(f"no table is adopted as the source {source['source']!r}: adopt it first")
                done = _next_page(connection, adopted, stands, max(1, size >> busy))
                # From here on nobody can rename what was read, so that another table of its name is found out.
                _check_name(connection, adopted)
        except DBAPIError as error:
            if not is_busy(error):
                raise
            busy = min(busy + 1, 8)
            time.sleep(PAUSE)
            continue
        # Another process may have done the rest since the last page.
        yield done._replace(before=done.before and first)
        busy, first = 0, False
        if done.is_done:
            return


def _check_name(connection: Connection, adopted: Adopted) -> None:
    (now,) = known(connection, adopted.definition.source)
    if (now.relation, now.called) != (adopted.table.relation, adopted.table.name):
        what = f"called {now.called}" if now.called else "gone"
        raise InvalidInput(f"{adopted.table.name} is {what} since the backfill began: run it again")


def _next_page(connection: Connection, adopted: Adopted, stands: Any, size: int) -> Backfilled:
    again = stands.again_below > 0
    if stands.is_done:
        return Backfilled(stands.backfilled, True, again, before=True)
    of_records = stands.backfill_of == RECORDS and stands.backfill_after is not None
    # Of another index, or of other types, the place says nothing.
    goes_on = of_records or stands.backfill_columns == _columns(adopted)
    places = {f"place{at}": text for at, text in enumerate(stands.backfill_after or ())} if goes_on else {}
    if of_records:
        page = _gone(adopted, stands.again_below)
        row = connection.exec_driver_sql(page, {**places, "size": size, "small": 0}).one()
    else:
        page = _page(adopted, stands.again_below, begins=not places)
        row = connection.exec_driver_sql(page, {**places, "size": size}).one()
        if again and row.is_last:
            values = {"source": adopted.definition.source, "phase": RECORDS}
            connection.exec_driver_sql(queries(connection)("backfill_turn"), values)
    return Backfilled(row.backfilled, row.is_last and (of_records or not again), again)


def _gone(adopted: Adopted, again_below: int) -> str:
    parts = {"source": _escaped(literal(adopted.definition.source)), "again_below": str(again_below)}
    return filled("backfill_gone", adopted.schema, {**parts, "row": adopted.document})


def _page(adopted: Adopted, again_below: int, *, begins: bool) -> str:
    unique, wanted = adopted.table.unique, adopted.definition
    order = ", ".join(f"t.{quoted(column)}" for column in unique)
    columns = adopted.table.columns
    places = [f"(%(place{at})s::text)::{_escaped(columns[one].bare)}" for at, one in enumerate(unique)]
    after = "true" if begins else f"({_escaped(order)}) > ({', '.join(places)})"
    there_is_one = "backfill_again" if again_below else "backfill_once"
    again = filled(there_is_one, adopted.schema, {"again_below": str(again_below)})
    parts = {
        "places": adopted.places_of("t"),
        "tenant": adopted.tenant_of("t"),
        "key": adopted.key_of("t"),
        "counts": adopted.has_tenant_and_key("t"),
        "order": order,
        "table": adopted.table.name,
        "records": adopted.records(query("backfill_rows"), again),
        "source": literal(wanted.source),
        "phase": literal(ROWS),
        "columns": f"ARRAY[{', '.join(map(literal, _columns(adopted)))}]",
        "ends": "NULL::timestamptz" if again_below else "now()",
        "so_far": "0" if begins else "a.backfilled",
    }
    escaped = {name: _escaped(part) for name, part in parts.items()}
    return filled("backfill_page", adopted.schema, {**escaped, "after": after})


def _columns(adopted: Adopted) -> list[str]:
    """Return what a place is made of."""
    columns = adopted.table.columns
    return [" ".join((name, columns[name].bare, columns[name].collation or "")) for name in adopted.table.unique]


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
