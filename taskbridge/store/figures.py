"""What Postgres knows of whole pipelines, for metrics. Each look is one transaction, and given up if it takes long."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.histogram import BOUNDS_MS, Histogram
from taskbridge.store.db import driving, rows, scalar, within
from taskbridge.store.queries import Queries, queries

if TYPE_CHECKING:
    import psycopg

    from taskbridge.store.db import Database

__all__ = [
    "LOOK_SECONDS",
    "MOST_RECORDS",
    "Ages",
    "Backlog",
    "Counters",
    "bucket_sums",
    "limited",
    "read_ages",
    "read_backlogs",
    "read_counters",
]

MOST_RECORDS: Final = 100_000
"""Up to so many records are counted of a pipeline, pending or in quarantine."""
LOOK_SECONDS: Final = 3.0
"""Seconds for a statement that only looks: somebody waits for the answer, and others for the server."""


class Counters(NamedTuple):
    """Sums over all cursors of a pipeline. `found_bursts`: of `bursts`, those that the tail began."""

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

    `oldest_tenant`: whose that is; None: none is pending. `failing`: tenants whose last run failed, up to as many;
    `fails`: one of them.
    """

    pending: int
    oldest_seconds: float
    oldest_tenant: str | None
    quarantined: int
    failing: int
    fails: str | None


class Ages(NamedTuple):
    """How many seconds ago a worker stored how far all records were looked at; infinite: never."""

    tail: float = math.inf
    base: float = math.inf


@contextmanager
def limited(database: Database, seconds: float = LOOK_SECONDS) -> Iterator[psycopg.Connection[Any]]:
    """Lend a connection in a transaction of which each statement is given up after so many seconds."""
    with driving(database) as driver, driver.transaction(), within(driver, seconds):
        driver.execute(queries(database)("metric_limits"))
        yield driver


def read_ages(database: Database, pipelines: Collection[str]) -> dict[str, Ages]:
    """Return how old the tails and bases of `pipelines` are."""
    query, found = queries(database), dict.fromkeys(pipelines, Ages())
    with limited(database) as driver:
        for row in rows(driver, query("tail_ages"), {"pipelines": [*pipelines]}):
            found[row["pipeline"]] = found[row["pipeline"]]._replace(**{row["kind"]: row["seconds"]})
    return found


def read_counters(database: Database, pipelines: Collection[str], seconds: float = 30.0) -> dict[str, Counters]:
    """Return the counters of `pipelines`: every cursor is read. It is given up after so many seconds."""
    query = queries(database)
    with limited(database, seconds) as driver:
        found = {row["pipeline"]: _counters(row) for row in rows(driver, bucket_sums(query("metric_counters")))}
    return {name: found.get(name, Counters()) for name in pipelines}


def read_backlogs(
    database: Database, pipelines: Mapping[str, str], tenants: Mapping[str, Sequence[str]], most: int = MOST_RECORDS
) -> dict[str, Backlog]:
    """Return the backlogs of `pipelines`, whose sources are given; pending records are those of the given `tenants`.

    Up to `most` records of each kind are counted.
    """
    query = queries(database)
    with limited(database) as driver:
        driver.execute(query("plan_by_lookups"))
        return {
            name: _backlog(driver, query, {"pipeline": name, "source": pipelines[name], "size": most}, some)
            for name, some in tenants.items()
        }


def bucket_sums(text: str) -> str:
    """Return a query with the sums of the buckets of `first_event_counts` in place of `{sums}`."""
    sums = (f"coalesce(sum(first_event_counts[{at}]), 0)::bigint" for at in range(1, len(BOUNDS_MS) + 2))
    return text.replace("{sums}", ", ".join(sums))


def _counters(row: Mapping[str, Any]) -> Counters:
    first_events = Histogram()
    first_events.counts, first_events.sum_ms = list(row["first_event_counts"]), row["first_event_ms_sum"]
    sums = {name: row[name] for name in Counters._fields if name in row}
    return Counters(**sums, first_events=first_events)


def _backlog(
    driver: psycopg.Connection[Any], query: Queries, values: Mapping[str, Any], tenants: Sequence[str]
) -> Backlog:
    (pending,) = rows(driver, query("metric_pending"), {**values, "tenants": list(tenants)})
    quarantined = scalar(driver, query("metric_quarantine"), values)
    (failing,) = rows(driver, query("metric_failing"), values)
    return Backlog(
        pending["records"],
        max(0.0, pending["oldest_seconds"] or 0.0),
        pending["oldest_tenant"],
        quarantined,
        failing["failing"],
        failing["first"],
    )
