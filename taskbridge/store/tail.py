"""How far all records of a pipeline have been looked at: T, which the tail moves, and B, which base rounds move.

Both are snapshots in Postgres and not in Redis: after a crash ids that were not flushed may be used again, and a T of
Redis would hide their rows. See `taskbridge.running.tail` for what is done with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store.cursor import Broken, Waiting, driving
from taskbridge.store.engine import GRACE, Bounded, distrust
from taskbridge.store.queries import queries

__all__ = ["Found", "Kind", "Tails"]

PAGE: Final = 5_000
"""Records of a page, about: some tens of milliseconds."""
BASE_FACTOR: Final = 30


class Kind(StrEnum):
    """Whose snapshot it is."""

    TAIL = "tail"
    BASE = "base"


class Found(NamedTuple):
    """What a page of a round found: the tenants to remind, and the snapshot to store when that is done.

    `fresh`: there were records that the stored snapshot, `before`, does not see, handled or not. `until`: the
    transaction that the next page begins with; None: it was the round's last page.
    """

    waiting: list[Waiting]
    seen: str
    before: str
    fresh: bool
    until: int | None


class Tails:
    """T and B of the pipelines of one database.

    Args:
        engine: connections to it.
        patience: seconds that a page of the tail may take; one of the base has thirty times as many.
        page: records of a page, about.
    """

    def __init__(self, engine: Engine, patience: float = 1.0, page: int = PAGE) -> None:
        self._engine = engine
        self._query = queries(engine)
        self._patience = patience
        self._page = page
        # Closes its connection when nothing refers to it any more.
        self._listening: Any = None

    def look(
        self,
        kind: Kind,
        pipeline: str,
        source: str,
        smallest: int,
        *,
        has_delays: bool = True,
        previous: Found | None = None,
        more_patience: float = 0.0,
    ) -> Found:
        """Return the tenants with pending records among the next ones that T or B does not see.

        A page must be stored before the next one is read. Where somebody else stored meanwhile, the round begins anew.

        Args:
            kind: the tail leaves out what a run has looked at, the base what the tail has not seen.
            pipeline: the pipeline.
            source: what it reads.
            smallest: the delay of a record that has none, in milliseconds.
            has_delays: whether the delays of its source's records are this pipeline's.
            previous: the round's page before this one; None: it is the first.
            more_patience: seconds that the page may take longer than others.

        Raises:
            Unavailable: the server is a standby.
        """
        patience = self._patience * (1 if kind is Kind.TAIL else BASE_FACTOR) + more_patience
        page = self._page_of(kind, pipeline, source, smallest, previous, patience, has_delays=has_delays)
        if previous is not None and page.before != previous.seen:
            # What this round has seen before is in no snapshot.
            return self._page_of(kind, pipeline, source, smallest, None, patience, has_delays=has_delays)
        return page

    def pending(self, pipeline: str, source: str) -> Iterator[str]:
        """Return the tenants with pending records or some to be tried again, whoever has seen them. It stores nothing.

        Raises: as `look`.
        """
        told: set[str] = set()
        page: Found | None = None
        while page is None or page.until is not None:
            page = self._page_of(Kind.BASE, pipeline, source, 0, page, BASE_FACTOR * self._patience, every=True)
            found = {one.tenant for one in page.waiting} - told
            told |= found
            yield from found

    def _page_of(
        self,
        kind: Kind,
        pipeline: str,
        source: str,
        smallest: int,
        previous: Found | None,
        patience: float,
        *,
        has_delays: bool = True,
        every: bool = False,
    ) -> Found:
        after = 0 if previous is None else previous.until or 0
        which = {"pipeline": pipeline, "kind": kind.value}
        values = {
            **which,
            "source": source,
            "smallest": smallest,
            "has_delays": has_delays,
            "every": every or kind is Kind.TAIL,
            "after": str(after),
            "size": self._page,
        }
        for anew in (False, True, None):
            try:
                stands, rows = self._read(which, values, patience)
            except Broken:
                # A server that restarts breaks every connection that lies in the pool.
                distrust(self._engine)
                stands, rows = self._read(which, values, patience)
            if stands and stands[2]:
                return _found(stands[1], stands[0], after, rows)
            if anew is not None:
                self._begin(pipeline, anew=bool(stands))
        raise Unavailable(
            f"{pipeline}: Postgres is a standby, which does not know what is under way: connect to its primary"
        )

    def keep(self, kind: Kind, pipeline: str, found: Found) -> None:
        """Store what `look` saw, now that all its tenants were reminded."""
        which = {"pipeline": pipeline, "kind": kind.value}
        with self._limited(self._patience) as connection:
            connection.execute(self._query("tail_keep"), {**which, "seen": found.seen, "before": found.before})

    def listen(self) -> psycopg.Connection[Any]:
        """Return a connection of its own on which `notifies` tells of commits that were announced."""
        pooled = self._engine.raw_connection()
        connection: psycopg.Connection[Any] | None = pooled.driver_connection
        assert connection is not None  # noqa: S101 - for the type: a connection of the pool has its driver's
        # For good: it must not go back to the pool with its LISTEN.
        pooled.detach()
        self._listening = pooled
        connection.autocommit = True
        connection.execute("LISTEN taskbridge")
        return connection

    def _read(
        self, which: Mapping[str, Any], values: Mapping[str, Any], patience: float
    ) -> tuple[tuple[Any, ...] | None, list[tuple[Any, ...]]]:
        """Read both from one snapshot. The transaction writes nothing: an id of its own would count as visible."""
        with self._limited(patience, "REPEATABLE READ READ ONLY") as connection:
            stands, rows = connection.cursor(), connection.cursor()
            stands.execute(self._query("tail_stands"), which)
            rows.execute(self._query("round"), values)
        return stands.fetchone(), rows.fetchall()

    def _begin(self, pipeline: str, *, anew: bool) -> None:
        with driving(self._engine) as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                connection.execute(self._query("tail_begin"), {"pipeline": pipeline, "anew": anew})

    @contextmanager
    def _limited(self, patience: float, mode: str = "READ COMMITTED") -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in a transaction that ends in so many seconds, all of it in one round trip."""
        limits = {"lock_timeout": "500ms", "statement_timeout": f"{round(1000 * patience)}ms"}
        with driving(self._engine) as connection:
            if isinstance(connection, Bounded):
                connection.patience = patience + GRACE
            with connection.pipeline():
                connection.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
                connection.execute(self._query("plan_of_rounds"), limits)
                yield connection
                connection.execute("COMMIT")


def _found(before: str, now: str, after: int, rows: list[tuple[Any, ...]]) -> Found:
    ((until, fresh, open_xids, *_),) = [row for row in rows if row[3] is None]
    waiting = [Waiting(*row[3:]) for row in rows if row[3] is not None]
    return Found(waiting, _advanced(before, now, after, until, open_xids), before, fresh, until)


def _advanced(before: str, now: str, after: int, until: int | None, open_xids: Collection[int]) -> str:
    """Return the snapshot that sees what `before` sees, and the transactions of a page that leave nothing open.

    The page has read, as of the snapshot `now`, all transactions from `after` up to and without `until`. It may not
    see those that were under way, and those of `open_xids`.
    """
    _, was_next, unseen = _parts(before)
    _, is_next, under_way = _parts(now)
    end = is_next if until is None else until
    xids = {xid for xid in unseen if not after <= xid < end}
    xids.update(xid for xid in under_way if after <= xid < end)
    xids.update(open_xids)
    ordered, following = sorted(xids), max(was_next, end)
    return f"{min([*ordered[:1], following])}:{following}:{','.join(map(str, ordered))}"


def _parts(snapshot: str) -> tuple[int, int, list[int]]:
    lowest, following, listed = snapshot.split(":")
    return int(lowest), int(following), [int(xid) for xid in listed.split(",") if xid]
