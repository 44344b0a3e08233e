"""Read-only queries on pipelines and their tenants, for status and metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.histogram import BOUNDS_MS, Histogram
from taskbridge.store.db import LOOKUPS, checked_out, fetch, fetch_within, rows, within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Engine

__all__ = [
    "LOOK_SECONDS",
    "MOST_RECORDS",
    "Ages",
    "Backlog",
    "Counters",
    "Tenants",
    "WaitingRecords",
    "bucket_sums",
    "limited",
    "read_ages",
    "read_backlogs",
    "read_counters",
]

MOST_RECORDS: Final = 100_000
"""Records of a pipeline, pending or in quarantine, are counted up to this number."""
LOOK_SECONDS: Final = 3.0
"""Seconds for a read-only statement for which a person waits; it should not keep the server busy for longer."""
COUNTER_SECONDS: Final = 30.0
TENANTS_AT_ONCE: Final = 1_000
_LOOKS: Final = {
    # No statement uses more than one CPU of the server.
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    # A generic plan would read all runs of a day, even if only those of the last seconds are wanted.
    "plan_cache_mode": "force_custom_plan",
}


class Counters(NamedTuple):
    """Sums over all cursors of a pipeline. `found_bursts`: those of the `bursts` that the change poller began."""

    events: int = 0
    bursts: int = 0
    found_bursts: int = 0
    runs: int = 0
    sweeps: int = 0
    records: int = 0
    failed_runs: int = 0
    first_events: Histogram = Histogram()

    @property
    def absorbed(self) -> int:
        """Events that began no burst."""
        return self.events - (self.bursts - self.found_bursts)


class Backlog(NamedTuple):
    """Records of a pipeline that are pending or in quarantine, up to `MOST_RECORDS`, and the age of the oldest pending.

    `oldest_tenant`: the tenant of that one; None: none is pending. `failing`: tenants whose last run failed, up to the
    same number; `fails`: one of them.
    """

    pending: int
    oldest_seconds: float
    oldest_tenant: str | None
    quarantined: int
    failing: int
    fails: str | None


class Ages(NamedTuple):
    """Seconds since the last pass of the change poller and of the reconciler; infinite: never."""

    poller: float = math.inf
    reconciler: float = math.inf


_AGE_OF_KIND: Final = {"tail": "poller", "base": "reconciler"}
"""By the kind of a stored snapshot, the field of `Ages`."""


@dataclass(frozen=True, slots=True)
class WaitingRecords:
    """How many records wait for a tenant, and the criterion and delay (milliseconds) that set when they are due."""

    waiting: int
    delay_ms: int
    criterion: str


@contextmanager
def limited(
    database: Engine, seconds: float = LOOK_SECONDS, settings: Mapping[str, str] | None = None
) -> Iterator[psycopg.Connection[Any]]:
    """Check out a connection whose statements are cancelled after so many seconds."""
    with checked_out(database) as driver, within(driver, seconds, settings={**_LOOKS, **(settings or {})}):
        yield driver


def read_ages(database: Engine, pipelines: Collection[str]) -> dict[str, Ages]:
    """Return how long ago the records of `pipelines` were polled."""
    query, ages = queries(database), dict.fromkeys(pipelines, Ages())
    with limited(database) as driver:
        for row in rows(driver, query("pass_ages"), {"pipelines": [*pipelines]}):
            ages[row["pipeline"]] = ages[row["pipeline"]]._replace(**{_AGE_OF_KIND[row["kind"]]: row["seconds"]})
    return ages


def read_counters(database: Engine, pipelines: Collection[str]) -> dict[str, Counters]:
    """Return the counters of `pipelines`. This reads every cursor, and is cancelled after `COUNTER_SECONDS`."""
    query = queries(database)
    with limited(database, COUNTER_SECONDS) as driver:
        counters = {row["pipeline"]: _counters(row) for row in rows(driver, bucket_sums(query("metric_counters")))}
    return {name: counters.get(name, Counters()) for name in pipelines}


def read_backlogs(
    database: Engine, pipelines: Mapping[str, str], tenants: Mapping[str, Sequence[str]], most: int = MOST_RECORDS
) -> dict[str, Backlog]:
    """Return the backlogs of `pipelines`, whose sources are given.

    Pending records are those of the given `tenants` and of the first 100 paused ones.
    Up to `most` records of each kind are counted.
    """
    query, backlogs = queries(database)("backlog"), {}
    with limited(database, settings=LOOKUPS) as driver:
        for name, listed in tenants.items():
            values = {"pipeline": name, "source": pipelines[name], "tenants": list(listed), "size": most}
            (row,) = rows(driver, query, values)
            backlogs[name] = Backlog(**row)
    return backlogs


class Tenants:
    """The tenants of pipelines that read one source.

    Args:
        database: the database.
        source: what the pipelines read.
        seconds: how long each statement may take; None: no limit.
    """

    def __init__(self, database: Engine, source: str = "invoices", *, seconds: float | None = None) -> None:
        self._database = database
        self._source = source
        self._seconds = seconds

    def after(self, pipeline: str, after: str, limit: int) -> list[str]:
        """Return the next `limit` tenants by name that have records or a cursor; after "" the first ones."""
        values = {"first": after, "but": after, "until": None, "limit": limit}
        return [row["tenant"] for row in self._rows("tenants_from", pipeline, **values)]

    def troubled(self, pipeline: str, limit: int, size: int = MOST_RECORDS) -> list[str]:
        """Return up to `limit` tenants with the most failures in a row, and as many with the most in quarantine.

        At most `size` failing tenants, and records in quarantine, are read.
        """
        return [row["tenant"] for row in self._rows("troubled", pipeline, limit=limit, size=size)]

    def every_count(self, pipeline: str) -> Iterator[dict[str, Any]]:
        """Return the `counts` of every tenant, by name, page by page."""
        after = ""
        while tenants := self.after(pipeline, after, TENANTS_AT_ONCE):
            yield from self.counts(pipeline, tenants)
            after = tenants[-1]

    def counts(self, pipeline: str, tenants: Collection[str], most: int | None = None) -> list[dict[str, Any]]:
        """Return records by state and the cursor's counters of each tenant; `tenant_counts` has the columns.

        Up to `most` records of each tenant and state are counted; None: all. A tenant without records and cursor has
        zeros, and is not `known`.
        """
        return self._rows("tenant_counts", pipeline, tenants=list(tenants), size=most)

    def waiting(self, pipeline: str, tenant: str, smallest: int) -> WaitingRecords | None:
        """Return what waits for one tenant; None: nothing."""
        waiting = self._rows("waiting_records", pipeline, tenant=tenant, smallest=smallest, size=None)
        return WaitingRecords(**waiting[0]) if waiting else None

    def delays(self, pipeline: str, tenants: Collection[str], smallest: int) -> dict[str, int]:
        """Return those of `tenants` with waiting records, and the smallest delay (milliseconds) of each."""
        wanted, smallest_delays = list(tenants), dict[str, int]()
        values = {"pipeline": pipeline, "source": self._source, "smallest": smallest, "size": None}
        for start in range(0, len(wanted), TENANTS_AT_ONCE):
            page = {"tenants": wanted[start : start + TENANTS_AT_ONCE]}
            delays = fetch(self._database, "waiting_delays", values | page)
            smallest_delays.update((row["tenant"], row["delay_ms"]) for row in delays)
        return smallest_delays

    def pending_before(self, pipeline: str, tenants: Collection[str], snapshot: str) -> dict[str, int]:
        """Return those of `tenants` with pending records that are visible in `snapshot`, and how many each has.

        A record to be retried is pending; one that changed after the snapshot is not visible in it.
        """
        pending = self._rows("pending_before", pipeline, tenants=list(tenants), snapshot=snapshot, size=None)
        return {row["tenant"]: row["records"] for row in pending}

    def delivery_counts(self, pipeline: str) -> tuple[int, int]:
        """Return how many deliveries are in the journal, and how many repeat a delivery of the same revision."""
        (row,) = self._rows("delivery_counts", pipeline)
        return row["deliveries"], row["duplicates"]

    def _rows(self, name: str, pipeline: str, **values: Any) -> list[dict[str, Any]]:
        values |= {"pipeline": pipeline, "source": self._source}
        return fetch_within(self._database, self._seconds, name, values)


def bucket_sums(text: str) -> str:
    """Return a query with the sums of the buckets of `first_event_counts` in place of `{sums}`."""
    sums = (f"coalesce(sum(first_event_counts[{at}]), 0)::bigint" for at in range(1, len(BOUNDS_MS) + 2))
    return text.replace("{sums}", ", ".join(sums))


def _counters(row: Mapping[str, Any]) -> Counters:
    first_events = Histogram()
    first_events.counts, first_events.sum_ms = list(row["first_event_counts"]), row["first_event_ms_sum"]
    sums = {name: row[name] for name in Counters._fields if name in row}
    return Counters(**sums, first_events=first_events)
