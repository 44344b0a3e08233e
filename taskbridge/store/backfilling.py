"""Records for the rows that an adopted table had before it was adopted, page by page.

A page is read without locks, and then written in short parts, each a transaction in one message. Users write the same
records in their transactions, in any order, and must neither wait for a backfill nor become the victim of a deadlock
with it. So a part gives up as soon as it meets a locked record, and is halved; a single row whose record is locked is
left for later, while the backfill continues with the next rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from sqlalchemy import Engine

from taskbridge.errors import InvalidInput
from taskbridge.store.adopted import Adopted, known_as
from taskbridge.store.db import checked_out, in_one_message, within
from taskbridge.store.queries import LOCAL, filled, literal, queries, quoted, setting

__all__ = ["Backfilled", "backfill", "begin_again"]

PAGE: Final = 2_000
AT_ONCE: Final = 250
"""Rows per part: this takes a few milliseconds, for which users that write one of the rows may have to wait."""
HELD: Final = "40ms"
"""The longest time that a part of several rows may lock them."""
LOCK_WAIT: Final = "10ms"
"""The longest time that a part waits for a locked record."""
TURN_WAIT: Final = "200ms"
"""How long a part waits, without a locked record, for another backfill or adoption."""
MOST_LEFT: Final = 1_000
"""The most rows that are left for later; with more, the backfill waits until their transactions end."""
PAUSE: Final = 0.1
"""Seconds until rows that were left are retried; twice as long each time, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 2.0
ROWS: Final = "rows"
"""The first phase: each row gets its record; the position is in the unique index."""
RECORDS: Final = "records"
"""The second phase, if changes may have been missed: records whose row may be gone; the position is a record's."""


class Backfilled(NamedTuple):
    """How many rows were processed, by this and earlier processes, and whether these are all.

    `again`: changes may have been missed, so rows with a record get another. `before`: the backfill was done before
    this process began, so no row was processed; records that were pruned since then are not written again.
    """

    rows: int
    is_done: bool
    again: bool = False
    before: bool = False


class _Row(NamedTuple):
    place: Sequence[str]
    tenant: str
    key: str
    counts: bool
    gone: bool
    at: int
    """How many rows were processed, including this one."""


class _Page(NamedTuple):
    rows: Sequence[_Row]
    is_last: bool


class _StandsElsewhere(Exception):
    """Another process has advanced the backfill, or adopted the table again."""


def begin_again(engine: Engine, source: str) -> None:
    """Make the next backfill begin at the first row, and write another record for each row that has one."""
    with engine.begin() as connection:
        connection.exec_driver_sql(queries(engine)("backfill_restart"), {"source": source})


def backfill(engine: Engine, adopted: Adopted, size: int = PAGE) -> Iterator[Backfilled]:
    """Write a thin record for each row without one, in the order of the unique index; yield after each page.

    Records and the position of the backfill are committed together, so a restarted backfill continues there, and each
    row gets one record. Workers find the records like those of any other writer. If everything is done already, that is
    yielded at once.

    A row whose record is locked by an open transaction is retried later, however long that stays open; the stored
    position stays before it, and the backfill does not end without it. While only such rows are left, the same count is
    yielded repeatedly.

    If triggers may have missed changes, because the table was given up in the meantime or after `begin_again`, each row
    gets another record, and records whose row is gone become deleted ones.

    Raises:
        InvalidInput: the source is not adopted, or no longer, or the table has been renamed.
    """
    first = True
    writer = _Writer(engine, adopted)
    while True:
        page = writer.read(size)
        if page is None:
            yield Backfilled(writer.rows, True, writer.again, before=first)
            return
        first = False
        try:
            writer.write_page(page)
            pause = PAUSE
            while writer.must_wait(page):
                yield Backfilled(writer.rows, False, writer.again)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                writer.try_again()
            is_done = page.is_last and writer.end_phase()
        except _StandsElsewhere:
            continue
        yield Backfilled(writer.rows, is_done, writer.again)
        if is_done:
            return


class _Writer:
    """The position of a backfill in the database, and in this process, which may be past rows that were left."""

    def __init__(self, engine: Engine, adopted: Adopted) -> None:
        self._engine = engine
        self._adopted = adopted
        self._state = ""
        self._phase = ROWS
        self._again_below = 0
        self._left: list[_Row] = []
        self._kept: tuple[Sequence[str] | None, int] = (None, 0)
        self._reached: tuple[Sequence[str] | None, int] = (None, 0)

    @property
    def rows(self) -> int:
        """How many rows were processed."""
        return self._reached[1]

    @property
    def again(self) -> bool:
        """Whether rows that have a record get another."""
        return self._again_below > 0

    def read(self, size: int) -> _Page | None:
        """Return the next rows, or records; None: the backfill is done."""
        # Each statement must see what it waited for, whatever the default of the database is.
        committed = self._engine.execution_options(isolation_level="READ COMMITTED")
        source = self._adopted.definition.source
        with committed.begin() as connection, within(connection, None):
            stands = connection.exec_driver_sql(queries(connection)("backfill_begin"), {"source": source}).one_or_none()
            if stands is None:
                raise InvalidInput(f"no table is adopted as the source {source!r}: adopt it first")
            if stands.state != self._state:
                self._begin_at(stands)
            if stands.is_done:
                return None
            places = {f"place{at}": text for at, text in enumerate(self._reached[0] or ())}
            found = connection.exec_driver_sql(self._page(), {**places, "size": size, "small": 0}).all()
            # The table that was read cannot be renamed from here on, so another table of the same name is detected.
            now, table = known_as(connection, source), self._adopted.table
            if now is None or (now.relation, now.called) != (table.relation, table.name):
                what = f"called {now.called}" if now and now.called else "gone"
                raise InvalidInput(f"{table.name} is {what} since the backfill began: run it again")
        # The second phase processes records instead of rows.
        per_row = 1 if self._phase == ROWS else 0
        rows = [
            _Row(row.place, row.tenant, row.key, row.counts, row.gone, self.rows + per_row * number)
            for number, row in enumerate(found, 1)
        ]
        return _Page(rows, len(rows) < size)

    def _begin_at(self, stands: Any) -> None:
        self._state, self._again_below, self._left = stands.state, stands.again_below, []
        of_records = stands.backfill_of == RECORDS and stands.backfill_after is not None
        self._phase = RECORDS if of_records else ROWS
        # A position in another index, or of other types, is meaningless.
        continues = of_records or stands.is_done or stands.backfill_columns == _columns(self._adopted)
        self._kept = (stands.backfill_after, stands.backfilled) if continues else (None, 0)
        self._reached = self._kept

    def write_page(self, page: _Page) -> None:
        """Write the records of a page, except locked ones."""
        for at in range(0, len(page.rows), AT_ONCE):
            self._write(page.rows[at : at + AT_ONCE])

    def must_wait(self, page: _Page) -> bool:
        """Whether rows that were left must get their records before the backfill can continue."""
        return bool(self._left) and (page.is_last or len(self._left) >= MOST_LEFT)

    def try_again(self) -> None:
        """Write the records of rows that were left, except those that are still locked."""
        rows, self._left = self._left, []
        for at in range(0, len(rows), AT_ONCE):
            part = rows[at : at + AT_ONCE]
            # The stored position stays before these until all have their records.
            if not self._store(part):
                self._left += part if len(part) == 1 else [row for row in part if not self._store([row])]

    def end_phase(self) -> bool:
        """Begin the second phase if changes may have been missed; return whether everything is done."""
        is_done = self._phase == RECORDS or not self.again
        if not is_done:
            self._phase, self._reached = RECORDS, (("", ""), self.rows)
        self._kept = self._reached
        while not self._store((), is_done=is_done):
            time.sleep(PAUSE)
        return is_done

    def _write(self, rows: Sequence[_Row]) -> None:
        kept, self._reached = self._kept, (rows[-1].place, rows[-1].at)
        if not self._left:
            self._kept = self._reached
        if self._store(rows):
            return
        self._kept = kept
        if len(rows) == 1:
            self._left += rows
            return
        half = len(rows) // 2
        self._write(rows[:half])
        self._write(rows[half:])

    def _store(self, rows: Sequence[_Row], *, is_done: bool = False) -> bool:
        """Write records and the position in one transaction; return False if one of them was locked."""
        counting = [row for row in rows if row.counts]
        place, count = self._kept
        values = {
            "source": self._adopted.definition.source,
            "state": self._state,
            "phase": self._phase,
            "place": None if place is None else list(place),
            "rows": count,
            "is_done": is_done,
            "tenants": [row.tenant for row in counting],
            "keys": [row.key for row in counting],
            "gone": [row.gone for row in counting],
        }
        # A single row is locked only during its commit, and without waiting for anything else.
        limits = {"lock_timeout": LOCK_WAIT} | ({"statement_timeout": HELD} if len(rows) > 1 else {})
        statement = "; ".join(
            (
                queries(self._engine)("backfill_hold"),
                *(setting(name, value, LOCAL) for name, value in limits.items()),
                self._writing(),
                # A cancellation that arrives as the part ends hits this statement, not a later one of the session.
                setting("statement_timeout", None, LOCAL),
            )
        )
        with checked_out(self._engine) as driver:
            try:
                stored = in_one_message(
                    driver,
                    statement,
                    values,
                    transaction_isolation="read committed",
                    synchronous_commit="off",
                    lock_timeout=TURN_WAIT,
                )
            except (LockNotAvailable, QueryCanceled, DeadlockDetected):
                return False
        if not stored:
            raise _StandsElsewhere
        self._state = stored[0][0]
        return True

    def _page(self) -> str:
        adopted = self._adopted
        if self._phase == RECORDS:
            parts = {"source": _escaped(literal(adopted.definition.source)), "again_below": str(self._again_below)}
            return filled("backfill_gone", adopted.schema, {**parts, "row": adopted.document})
        unique, columns = adopted.table.unique, adopted.table.columns
        order = ", ".join(f"t.{quoted(column)}" for column in unique)
        texts = [
            f"CASE WHEN t.{quoted(column)} IS NOT NULL THEN {adopted.text_of('t', column)} END" for column in unique
        ]
        parts = {
            "places": f"ARRAY[{', '.join(texts)}]",
            "tenant": adopted.tenant_of("t"),
            "key": adopted.key_of("t"),
            "counts": adopted.has_tenant_and_key("t"),
            "order": order,
            "table": adopted.table.name,
        }
        escaped = {name: _escaped(part) for name, part in parts.items()}
        places = [f"(%(place{at})s::text)::{_escaped(columns[column].bare)}" for at, column in enumerate(unique)]
        after = "true" if self._reached[0] is None else f"({_escaped(order)}) > ({', '.join(places)})"
        return filled("backfill_page", adopted.schema, {**escaped, "after": after})

    def _writing(self) -> str:
        adopted = self._adopted
        source, below = literal(adopted.definition.source), str(self._again_below)
        conflict = filled("backfill_again" if self.again else "backfill_once", adopted.schema, {"again_below": below})
        is_recorded = f"r.xid > '{below}'::xid8" if self.again else "true"
        rows = filled("backfill_rows", adopted.schema, {"source": source, "is_recorded": is_recorded}).replace(
            "%", "\0"
        )
        parts = {
            "source": source,
            "records": adopted.records(rows.replace("%", "\0"), conflict),
            "columns": f"ARRAY[{', '.join(map(literal, _columns(adopted)))}]",
        }
        # What stands for a value keeps its percent sign, unlike names.
        escaped = {name: _escaped(part).replace("\0", "%") for name, part in parts.items()}
        return filled("backfill_write", adopted.schema, escaped)


def _columns(adopted: Adopted) -> list[str]:
    """Return what a place is made of."""
    columns = adopted.table.columns
    return [" ".join((name, columns[name].bare, columns[name].collation or "")) for name in adopted.table.unique]


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
