"""Records of the rows that an adopted table had before it was adopted, page by page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from taskbridge.errors import InvalidInput
from taskbridge.store.adopted import Adopted, filled, literal, name_of
from taskbridge.store.bounded import within
from taskbridge.store.queries import queries

__all__ = ["Backfilled", "backfill"]

PAGE: Final = 2_000
LOCK_WAIT: Final = 0.2
"""Seconds to wait for a writer's record: less than Postgres takes to look for deadlocks, so that the writer goes on."""
PAUSE: Final = 0.1
_BUSY: Final = ("55P03", "40P01")


class Backfilled(NamedTuple):
    """How many rows were looked at, by this and earlier processes, and whether these are all."""

    rows: int
    is_done: bool


def backfill(engine: Engine, adopted: Adopted, size: int = PAGE) -> Iterator[Backfilled]:
    """Write a thin record of each row that has none, in the order of the unique index; yield after each page.

    A page and the place where it ends are one transaction, so whoever begins again goes on there, and each row has one
    record. Workers find the records as they find those of any other writer. What is done already is yielded at once.

    Raises:
        InvalidInput: the source is not adopted, or no longer.
    """
    # Each statement must see what it waited for, whatever the database's default is.
    engine = engine.execution_options(isolation_level="READ COMMITTED")
    source, busy = {"source": adopted.definition.source}, 0
    while True:
        try:
            with engine.begin() as connection, within(connection, None):
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{round(LOCK_WAIT * 1000)}ms'")
                stands = connection.exec_driver_sql(queries(engine)("backfill_begin"), source).one_or_none()
                if stands is None:
                    raise InvalidInput(f"no table is adopted as the source {source['source']!r}: adopt it first")
                if stands.is_done:
                    done = Backfilled(stands.backfilled, True)
                else:
                    # Of another index, or of other types, the place says nothing.
                    goes_on = stands.backfill_columns == _columns(adopted)
                    after = stands.backfill_after if goes_on else None
                    places = {f"place{at}": text for at, text in enumerate(after or ())}
                    page = _page(adopted, begins=not places)
                    row = connection.exec_driver_sql(page, {**places, "size": max(1, size >> busy)}).one()
                    done = Backfilled(row.backfilled, row.is_done)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _BUSY:
                raise
            # A smaller page meets fewer writers.
            busy = min(busy + 1, 8)
            time.sleep(PAUSE)
            continue
        busy = 0
        yield done
        if done.is_done:
            return


def _page(adopted: Adopted, *, begins: bool) -> str:
    unique, wanted = adopted.table.unique, adopted.definition
    order = ", ".join(f"t.{name_of(column)}" for column in unique)
    columns = adopted.table.columns
    places = [f"(%(place{at})s::text)::{_escaped(columns[one].bare)}" for at, one in enumerate(unique)]
    after = "true" if begins else f"({_escaped(order)}) > ({', '.join(places)})"
    rows = "SELECT p.tenant, p.key, false AS gone FROM page p WHERE p.counts"
    parts = {
        "places": adopted.places_of("t"),
        "tenant": adopted.tenant_of("t"),
        "key": adopted.key_of("t"),
        "counts": adopted.counts("t"),
        "order": order,
        "table": adopted.table.name,
        "records": adopted.records(rows, "DO NOTHING"),
        "source": literal(wanted.source),
        "columns": f"ARRAY[{', '.join(map(literal, _columns(adopted)))}]",
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
