"""Records of the rows that an adopted table had before it was adopted, page by page.

A page is read without a lock, and then written in parts that are short, each a transaction in one message. Users write
the same records in their transactions, in any order, and must neither wait for a backfill nor be the victim of a
deadlock with it. So a part gives up as soon as it meets a record that somebody else holds, and is cut in halves; a
single row whose record is held is left for later, while the backfill goes on with the next ones. A row that has its
record is passed over, so whatever was done in vain before the place was kept is done again without harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled
from sqlalchemy import Engine

from taskbridge.errors import InvalidInput
from taskbridge.store.adopted import SETTINGS, Adopted, known
from taskbridge.store.db import Database, driving, in_one_message, within
from taskbridge.store.queries import LOCAL, filled, literal, queries, quoted, setting

__all__ = ["Backfilled", "Due", "backfill", "backfills_due", "begin_again"]

PAGE: Final = 2_000
AT_ONCE: Final = 250
"""Rows of one part: they take a few milliseconds, for which users wait that write one of them."""
HELD: Final = "40ms"
"""The longest that a part of several rows may hold them."""
LOCK_WAIT: Final = "10ms"
"""How long a part waits for somebody else's record at the most."""
TURN_WAIT: Final = "200ms"
"""How long a part waits, without holding a record, for another backfill or adoption."""
MOST_LEFT: Final = 1_000
"""Rows that are left for later at the most; with more, the backfill waits until their transactions end."""
PAUSE: Final = 0.1
"""Seconds until the rows that were left are tried again; twice as long each time, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 2.0
RECORDS: Final = ["records"]
"""What a place is made of in the second phase: a record's tenant and key."""


class Backfilled(NamedTuple):
    """How many rows were looked at, by this and earlier processes, and whether these are all.

    `again`: changes may have been missed, so that rows with a record get another. `before`: it was done before this
    process began, so that no row was looked at; records that were pruned since are not written again.
    """

    rows: int
    is_done: bool
    again: bool = False
    before: bool = False


class Due(NamedTuple):
    """A source of which rows may have no record: what is so, and the commands of which one ends it.

    `missed`: changes of rows that have a record may lack one too.
    """

    source: str
    what: str
    remedy: str
    missed: bool


class _StandsElsewhere(Exception):
    """The backfill was ended or begun again by somebody else, or the table was adopted again."""


def backfills_due(database: Database) -> Iterator[Due]:
    """Return the adopted tables whose backfill did not begin or did not end, unless somebody chose that."""
    with database.begin() as connection:
        due = [one for one in known(connection) if one.is_due]
    for one in due:
        command = one.definition.command(one.called or one.name)
        if one.backfilled:
            what = f"the backfill stopped after {one.backfilled:,} rows, or is on its way"
            yield Due(one.source, what, f"if none runs: {command} --backfill", one.again)
            continue
        what = "rows that were there before the table was adopted have no record until they change"
        if one.again:
            what = "changes may have been missed, and no backfill has begun since"
        remedy = f"run: {command} --backfill; with --from-now-on it stays so, and is not told again"
        yield Due(one.source, what, remedy, one.again)


def begin_again(engine: Engine, source: str) -> None:
    """Let the next backfill begin at the first row, and write another record of each that has one."""
    with engine.begin() as connection:
        connection.exec_driver_sql(queries(engine)("backfill_restart"), {"source": source})


def backfill(engine: Engine, adopted: Adopted, size: int = PAGE) -> Iterator[Backfilled]:
    """Write a thin record of each row that has none, in the order of the unique index; yield after each page.

    Whoever begins again goes on at the last page, and each row has one record. Workers find the records as they find
    those of any other writer. What is done already is yielded at once.

    A row whose record an open transaction holds is tried again later, also while that stays open for long; the place is
    kept before it, and nothing ends without it. While only such rows are left, the same count is yielded again.

    Where triggers may have missed changes, since the table was given up meanwhile or after `begin_again`, each row gets
    another record, and records whose row is gone become deleted ones.

    Raises:
        InvalidInput: the source is not adopted, or no longer, or the table has another name since.
    """
    before = True
    while not (stands := _stands(engine, adopted)).is_done:
        before = False
        try:
            yield from _Backfill(engine, adopted, stands).pages(size)
            return
        except _StandsElsewhere:
            continue
    yield Backfilled(stands.backfilled, True, stands.again_below > 0, before)


def _stands(engine: Engine, adopted: Adopted) -> Any:
    source = adopted.definition.source
    with engine.begin() as connection:
        stands = connection.exec_driver_sql(queries(engine)("backfill_begin"), {"source": source}).one_or_none()
    if stands is None:
        raise InvalidInput(f"no table is adopted as the source {source!r}: adopt it first")
    return stands


class _Backfill:
    """A backfill of this process, which may be past rows that were left."""

    def __init__(self, engine: Engine, adopted: Adopted, stands: Any) -> None:
        self._engine = engine
        self._adopted = adopted
        self._again = stands.again_below > 0
        self._values = {
            "source": adopted.definition.source,
            "state": stands.state,
            "below": str(stands.again_below),
        }
        columns = adopted.table.columns
        self._columns = [
            " ".join((one, columns[one].bare, columns[one].collation or "")) for one in adopted.table.unique
        ]
        self._place, self._rows = stands.backfill_after, stands.backfilled
        if stands.backfill_columns == RECORDS:
            self._columns = RECORDS
        elif stands.backfill_columns != self._columns:
            # Of another index, or of other types, the place says nothing.
            self._place, self._rows = None, 0

    def pages(self, size: int) -> Iterator[Backfilled]:
        """Write all that is left, page by page."""
        left: list[Any] = []
        while True:
            page = self._read(size)
            is_last = len(page) < size
            for at in range(0, len(page), AT_ONCE):
                left += self._write(page[at : at + AT_ONCE])
            if page:
                self._place = page[-1].place
            if self._columns != RECORDS:
                self._rows += len(page)
            pause = PAUSE
            while left and (is_last or len(left) >= MOST_LEFT):
                yield Backfilled(self._rows, False, self._again)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                left = [one for at in range(0, len(left), AT_ONCE) for one in self._write(left[at : at + AT_ONCE])]
            is_done = is_last and (self._columns == RECORDS or not self._again)
            if is_last and not is_done:
                self._columns, self._place = RECORDS, ["", ""]
            if not left:
                self._keep_place(is_done)
            yield Backfilled(self._rows, is_done, self._again)
            if is_done:
                return

    def _read(self, size: int) -> Sequence[Any]:
        """Return the next rows, or records."""
        # Each statement must see what it waited for, whatever the database's default is.
        committed = self._engine.execution_options(isolation_level="READ COMMITTED")
        places = {f"place{at}": text for at, text in enumerate(self._place or ())}
        with committed.begin() as connection, within(connection, None):
            connection.exec_driver_sql(SETTINGS)
            found = connection.exec_driver_sql(self._page(), {**places, "size": size, "small": 0}).all()
            # From here on nobody can rename what was read, so that another table of its name is found out.
            (now,) = known(connection, self._adopted.definition.source)
        table = self._adopted.table
        if (now.relation, now.called) != (table.relation, table.name):
            what = f"called {now.called}" if now.called else "gone"
            raise InvalidInput(f"{table.name} is {what} since the backfill began: run it again")
        return found

    def _page(self) -> str:
        adopted = self._adopted
        if self._columns == RECORDS:
            parts = {"source": _escaped(literal(adopted.definition.source)), "again_below": self._values["below"]}
            return filled("backfill_gone", adopted.schema, {**parts, "row": adopted.document})
        unique, columns = adopted.table.unique, adopted.table.columns
        order = ", ".join(f"t.{quoted(column)}" for column in unique)
        places = [f"(%(place{at})s::text)::{_escaped(columns[one].bare)}" for at, one in enumerate(unique)]
        after = "true" if self._place is None else f"({_escaped(order)}) > ({', '.join(places)})"
        parts = {**adopted.parts_of("t"), "places": adopted.places_of("t"), "order": order, "table": adopted.table.name}
        return filled("backfill_page", adopted.schema, {**{k: _escaped(v) for k, v in parts.items()}, "after": after})

    def _write(self, part: Sequence[Any]) -> Sequence[Any]:
        """Write the records of rows, except those that others hold; return these."""
        recorded = [row for row in part if row.counts]
        arrays = {f"{name}s": [getattr(row, name) for row in recorded] for name in ("tenant", "key", "gone")}
        # One row is held for as long as its commit takes, and while nothing else is waited for.
        limits = {"lock_timeout": LOCK_WAIT} | ({"statement_timeout": HELD} if len(part) > 1 else {})
        changes = queries(self._engine)("backfill_rows")
        # What stands for a value has one percent sign, and names have none: a source's name is of few characters.
        writing = self._adopted.records(changes, "NULL", "r.xid <= %(below)s::xid8")
        if not recorded or self._do(writing, arrays, limits):
            return ()
        half = len(part) // 2
        return [*self._write(part[:half]), *self._write(part[half:])] if half else part

    def _keep_place(self, is_done: bool) -> None:
        values = {"place": self._place, "columns": self._columns, "rows": self._rows, "is_done": is_done}
        while not self._do(queries(self._engine)("backfill_keep"), values, {}):
            time.sleep(PAUSE)

    def _do(self, writing: str, values: Mapping[str, Any], limits: Mapping[str, str]) -> bool:
        """Do a statement, if the backfill stands as this process found it; return whether nobody was in the way."""
        statement = "; ".join(
            (
                queries(self._engine)("backfill_hold"),
                *(setting(name, value, LOCAL) for name, value in limits.items()),
                writing,
                # A cancellation that comes as the part ends takes this, and not what the session does next.
                setting("statement_timeout", None, LOCAL),
            )
        )
        with driving(self._engine) as driver:
            try:
                found = in_one_message(
                    driver,
                    statement,
                    {**self._values, **values},
                    transaction_isolation="read committed",
                    synchronous_commit="off",
                    lock_timeout=TURN_WAIT,
                )
            except (LockNotAvailable, QueryCanceled, DeadlockDetected):
                return False
        if not found:
            raise _StandsElsewhere
        return True


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
