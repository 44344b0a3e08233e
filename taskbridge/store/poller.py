"""How far a pipeline's records have been polled: T, the snapshot of the change poller, and B, the reconciler's.

Both are kept in Postgres and not in Redis: after a crash, ids that were not flushed may be used again, and a T in Redis
would hide their rows. `taskbridge.worker.poller` uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import args_row
from sqlalchemy import Engine

from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.store.cursor import Waiting
from taskbridge.store.db import (
    Bounded,
    checked_out,
    in_one_message,
    in_one_trip,
    rows,
    with_second_try,
    within,
)
from taskbridge.store.queries import compact, queries

__all__ = ["PLAN", "Changes", "ChangesPage", "Kind"]

PAGE: Final = 5_000
"""Records of the first page of a pass: some tens of milliseconds, most of them for its tenants."""
GROWS: Final = 2
LARGEST: Final = 8
"""A page whose records belong to few tenants is followed by one of GROWS times the size, up to LARGEST times PAGE."""
FEW: Final = 0.1
"""Tenants for each record of a page, up to which they are few."""
MOST_OPEN: Final = 10_000
"""Transactions that a stored snapshot may list; it sees nothing from the first one beyond that."""
RECONCILER_FACTOR: Final = 30
"""A page of the reconciler, or of all pending records, may take this many times as long as one of the poller."""
LOCKED: Final = 0.5
"""Seconds that a page waits for a lock: the passes of other pipelines wait for it."""
PLAN: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
"""Settings of a page: each part of its query is an ordered read of one index.

Statistics are outdated whenever much is new, and the planner knows nothing of snapshots.
"""
NO_WAIT: Final = {"synchronous_commit": "off"}
"""No page waits for the disk: after a crash that loses a stored snapshot there is an older one.

Nobody who is left has seen the lost commits, since what a page stores comes after them in the log.
"""


class Kind(StrEnum):
    """Whose snapshot it is: the change poller's or the reconciler's."""

    POLLER = "tail"
    RECONCILER = "base"


class Position(NamedTuple):
    """The last record of a page. `is_open`: the pass has found pending records of its transaction."""

    xid: int
    id: int
    is_open: bool


class ChangesPage(NamedTuple):
    """A page of a pass: the tenants to remind, and the snapshot that may be stored once they have been reminded.

    `before`: the snapshot that is stored now; `stored_at`: when it was, in microseconds. `fresh`: the pass has found
    records that `before` does not see, handled or not. `until`: where the next page begins; None: this is the last.
    `size`: the maximum number of records of the page.
    """

    waiting: list[Waiting]
    seen: str
    before: str
    stored_at: int | None
    fresh: bool
    until: Position | None
    size: int


class _Stored(NamedTuple):
    """A row of `stored_snapshot`."""

    now: str
    before: str
    stored_at: int
    known: bool


class Changes:
    """The changes that the change poller (T) or the reconciler (B) of a pipeline has not seen yet.

    Args:
        engine: connections to the database.
        seconds: how long a page of the change poller may take; one of the reconciler may take `RECONCILER_FACTOR`
            times as long.
        page: records of the first page of a pass.
        most_open: transactions that a stored snapshot may list.
        listens_at: connections to the same database without a pooler; None: `engine` has none either.
    """

    def __init__(
        self,
        engine: Engine,
        seconds: float = 1.0,
        page: int = PAGE,
        most_open: int = MOST_OPEN,
        listens_at: Engine | None = None,
    ) -> None:
        self._engine = engine
        self._listens_at = listens_at or engine
        self._query = queries(engine)
        self._seconds = seconds
        self._page = page
        self._most_open = most_open
        # It closes its connection when it is garbage-collected.
        self._listening: Any = None

    def read_page(
        self,
        kind: Kind,
        pipeline: str,
        source: str,
        smallest: int,
        *,
        has_delays: bool = True,
        previous: ChangesPage | None = None,
        more_seconds: float = 0.0,
    ) -> ChangesPage:
        """Return the tenants with pending records among the next records that T or B does not see.

        The pass starts over if the stored snapshot is not the one that its previous page stored: another worker has
        stored one, or the server lost its last commits, and ids that the pass has seen are used again.

        Args:
            kind: the poller leaves out what a run has looked at, the reconciler what the poller has not seen.
            pipeline: the pipeline.
            source: what it reads.
            smallest: the delay of a record that has none, in milliseconds.
            has_delays: whether the delays of its source's records are this pipeline's.
            previous: the page before this one, as `store_page` returned it; None: this is the first.
            more_seconds: how much longer than usual the page may take.

        Raises:
            Unavailable: the server is a standby.
        """
        which = {"kind": kind.value, "pipeline": pipeline, "source": source, "with_paused": False}
        values = {**which, "smallest": smallest, "has_delays": has_delays, "every": kind is Kind.POLLER}
        seconds = self._seconds_of(kind) + more_seconds
        page = self._page_of(values, previous, seconds)
        # The times are compared too, because within a transaction a page stores an unchanged snapshot.
        if previous is not None and (page.before, page.stored_at) != (previous.before, previous.stored_at):
            # What this pass has seen so far is in no snapshot.
            return self._page_of(values, None, seconds)
        return page

    def pending(self, pipeline: str, source: str) -> Iterator[str]:
        """Return the tenants with pending records or with records to be retried, including paused tenants.

        All records count, whether or not they were seen before. Nothing is stored.

        Raises: as `read_page`.
        """
        returned: set[str] = set()
        retries = self.retries(pipeline, source, 0, with_paused=True)
        for waiting in chain(retries, self._all_pages(pipeline, source)):
            tenants = {each.tenant for each in waiting} - returned
            returned |= tenants
            yield from tenants

    def _all_pages(self, pipeline: str, source: str) -> Iterator[list[Waiting]]:
        which = {"kind": Kind.RECONCILER.value, "pipeline": pipeline, "source": source, "with_paused": True}
        values, page = {**which, "smallest": 0, "has_delays": True, "every": True}, None
        while page is None or page.until is not None:
            page = self._page_of(values, page, self._seconds_of(Kind.RECONCILER))
            yield page.waiting

    def retries(
        self, pipeline: str, source: str, smallest: int, *, has_delays: bool = True, with_paused: bool = False
    ) -> Iterator[list[Waiting]]:
        """Return, page by page, the tenants with records that are to be retried out of quarantine.

        Args: as of `read_page`; `with_paused`: include paused tenants.
        """
        of = {"pipeline": pipeline, "source": source, "smallest": smallest}
        values = {**of, "has_delays": has_delays, "with_paused": with_paused, "size": self._page}
        tenant = key = ""
        while True:
            with self._limited(self._seconds_of(Kind.RECONCILER)) as connection:
                cursor = connection.execute(self._query("retries"), {**values, "tenant": tenant, "key": key})
            if not (rows := cursor.fetchall()):
                return
            tenant, key, *_ = rows[-1]
            yield [
                Waiting(of_tenant, delay_ms, last_ms)
                for of_tenant, _, delay_ms, last_ms in rows
                if delay_ms is not None
            ]

    def _page_of(self, which: Mapping[str, Any], previous: ChangesPage | None, seconds: float) -> ChangesPage:
        pipeline, position = which["pipeline"], None if previous is None else previous.until
        after = {"after_xid": str(position.xid if position else 0), "after_id": position.id if position else -1}
        size = self._page if previous is None else self._next_size(previous)
        values = {**which, **after, "size": size}
        # There may be no stored snapshot yet, or one of another cluster, or one after the other.
        for _ in range(3):
            stored, rows = self._read(values, seconds)
            if stored is not None and stored.known:
                return _found(previous, stored, rows, size, self._most_open)
            self._begin(pipeline, anew=stored is not None)
        raise Unavailable(
            f"{pipeline}: Postgres is a standby, which cannot list the transactions in progress: connect to its primary"
        )

    def _next_size(self, previous: ChangesPage) -> int:
        """Return the size of the next page: it grows for many records of few tenants, as after a COPY."""
        grows = len(previous.waiting) <= FEW * previous.size
        return min(previous.size * GROWS, self._page * LARGEST) if grows else self._page

    def store_page(self, kind: Kind, pipeline: str, page: ChangesPage, more_seconds: float = 0.0) -> ChangesPage:
        """Store what a page has seen, after its tenants were reminded; return the page for the next `read_page`."""
        seconds = self._seconds_of(kind) + more_seconds
        seen = None if page.seen == page.before else page.seen
        values = {"pipeline": pipeline, "kind": kind.value, "seen": seen, "stored_at": page.stored_at}
        with checked_out(self._engine) as driver, within(driver, seconds, LOCKED, NO_WAIT):
            stored = in_one_message(driver, self._query("store_snapshot"), values)
        return page._replace(before=page.seen, stored_at=stored[0][0] if stored else None)

    def _seconds_of(self, kind: Kind) -> float:
        return self._seconds * (1 if kind is Kind.POLLER else RECONCILER_FACTOR)

    def listen(self) -> Bounded:
        """Return a separate connection whose `notifies` yields announced commits.

        Raises:
            ConfigurationError: there is a pooler, in whose sessions a LISTEN would have no effect, or affect others.
        """
        pooled = self._listens_at.raw_connection()
        connection = pooled.driver_connection
        assert isinstance(connection, Bounded)  # noqa: S101 - for the type: the pool opens no others
        if connection.pooled:
            pooled.close()
            raise ConfigurationError(
                "a worker does not LISTEN through a pooler, and polls at its usual interval",
                "leave TASKBRIDGE_TAIL_LISTENS out, or set TASKBRIDGE_LISTEN_URL to Postgres itself",
            )
        # Permanently: it must not return to the pool with its LISTEN.
        pooled.detach()
        self._listening = pooled
        connection.autocommit = True
        connection.execute(self._query("listen"))
        return connection

    def close(self) -> None:
        """Close the connection of `listen`, if there is one."""
        if self._listening is not None:
            self._listening.close()

    def _read(self, values: Mapping[str, Any], seconds: float) -> tuple[_Stored | None, list[tuple[Any, ...]]]:
        """Return the stored snapshot and the rows of a page, both read in one snapshot."""

        def read() -> tuple[_Stored | None, list[tuple[Any, ...]]]:
            with self._limited(seconds, "begin_pass") as connection:
                stored, rows = connection.cursor(row_factory=args_row(_Stored)), connection.cursor()
                stored.execute(self._query("stored_snapshot"), values)
                rows.execute(compact(self._query("pass_page")), values)
            return stored.fetchone(), rows.fetchall()

        return with_second_try(read)

    def _begin(self, pipeline: str, *, anew: bool) -> None:
        """Store where both passes begin; `anew`: replace what is stored. On a standby, do nothing."""
        with checked_out(self._engine) as connection:
            if not rows(connection, self._query("server"))[0]["is_standby"]:
                connection.execute(self._query("begin_passes"), {"pipeline": pipeline, "anew": anew})

    @contextmanager
    def _limited(self, seconds: float, begin: str = "begin") -> Iterator[psycopg.Connection[Any]]:
        """Check out a connection in a transaction that ends within so many seconds, all of it in one round trip."""
        with (
            checked_out(self._engine) as driver,
            within(driver, seconds, LOCKED, {**PLAN, **NO_WAIT}),
            in_one_trip(driver, self._query(begin)),
        ):
            yield driver


def _found(
    previous: ChangesPage | None, stored: _Stored, rows: list[tuple[Any, ...]], size: int, most_open: int
) -> ChangesPage:
    ((xid, last, fresh, open_xids, *_),) = [row for row in rows if row[4] is None]
    waiting = [Waiting(*row[4:]) for row in rows if row[4] is not None]
    after, opened = 0, set(open_xids)
    if previous is not None and previous.until is not None:
        after = previous.until.xid
        fresh = fresh or previous.fresh
        if previous.until.is_open:
            opened.add(after)
    seen = stored.before if previous is None else previous.seen
    seen = _advanced(seen, stored.now, after, xid, opened, most_open)
    until = None if xid is None else Position(xid, last, xid in opened)
    return ChangesPage(waiting, seen, stored.before, stored.stored_at, fresh, until, size)


def _advanced(seen: str, now: str, after: int, until: int | None, opened: Collection[int], most_open: int) -> str:
    """Return the snapshot that sees what `seen` sees, and the transactions of a page that leave nothing open.

    The page ends the transactions from `after` up to and without `until`, as of the snapshot `now`. The new snapshot
    may not see those that were under way, and those that were `opened`. It ends where it would list too many of them;
    the rest of the pass is not stored then.
    """
    _, was_next, unseen = _parts(seen)
    if after > was_next:
        return seen
    _, is_next, under_way = _parts(now)
    end = is_next if until is None else until
    xids = {xid for xid in unseen if not after <= xid < end}
    xids.update(xid for xid in (*under_way, *opened) if after <= xid < end)
    ordered, following = sorted(xids), max(was_next, end)
    if len(ordered) > most_open:
        following = ordered[most_open]
        del ordered[most_open:]
    return f"{min([*ordered[:1], following])}:{following}:{','.join(map(str, ordered))}"


def _parts(snapshot: str) -> tuple[int, int, list[int]]:
    lowest, following, listed = snapshot.split(":")
    return int(lowest), int(following), [int(xid) for xid in listed.split(",") if xid]
