"""What Postgres knows of whole pipelines, for metrics: read in one transaction, and never for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine

from taskbridge.histogram import BOUNDS_MS, Histogram
from taskbridge.store.queries import Source, query

__all__ = ["MOST_RECORDS", "Backlog", "Counters", "read_figures"]

MOST_RECORDS: Final = 100_000
"""Up to so many records are counted of a pipeline, pending or in quarantine."""
_PATIENCE: Final = "3s"


class Counters(NamedTuple):
    """Sums over all cursors of a pipeline, and how many of its tenants failed in their last run."""

    events: int = 0
    bursts: int = 0
    runs: int = 0
    sweeps: int = 0
    records: int = 0
    failed_runs: int = 0
    failing_tenants: int = 0
    first_events: Histogram = Histogram()


class Backlog(NamedTuple):
    """Records of a pipeline that wait or are set aside, counted up to `MOST_RECORDS`; the oldest's age in seconds."""

    pending: int
    oldest_seconds: float
    quarantined: int


def read_figures(
    engine: Engine, pipelines: Mapping[str, Source], tenants: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Counters], dict[str, Backlog]]:
    """Return the counters of `pipelines`, and the backlog of those of which the `tenants` to look at are given.

    Each statement ends after three seconds.
    """
    with engine.connect() as connection:
        connection.exec_driver_sql(query("metric_limits"), {"patience": _PATIENCE})
        found = {row["pipeline"]: _counters(row) for row in connection.exec_driver_sql(_counters_text()).mappings()}
        connection.exec_driver_sql(query("plan_by_lookups"))
        backlogs = {name: _backlog(connection, name, pipelines[name], some) for name, some in tenants.items()}
    return {name: found.get(name, Counters()) for name in pipelines}, backlogs


def _counters_text() -> str:
    sums = (f"coalesce(sum(first_event_counts[{at}]), 0)::bigint" for at in range(1, len(BOUNDS_MS) + 2))
    return query("metric_counters").replace("{sums}", ", ".join(sums))


def _counters(row: Mapping[Any, Any]) -> Counters:
    first_events = Histogram()
    first_events.counts, first_events.sum_ms = list(row["first_event_counts"]), row["first_event_ms_sum"]
    sums = {name: row[name] for name in Counters._fields if name in row}
    return Counters(**sums, first_events=first_events)


def _backlog(connection: Connection, pipeline: str, source: Source, tenants: Sequence[str]) -> Backlog:
    values = {"pipeline": pipeline, "limit": MOST_RECORDS}
    pending = connection.exec_driver_sql(query("metric_pending", source), {**values, "tenants": list(tenants)}).one()
    aside = connection.exec_driver_sql(query("metric_quarantine", source), values).one()
    records = min(MOST_RECORDS, pending.records + aside.retried)
    return Backlog(records, max(0.0, pending.oldest_seconds or 0.0), aside.quarantined)
