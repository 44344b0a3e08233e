"""Answers from the run history: runs, bursts, savings, noisy tenants, and totals over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from taskbridge.common.histogram import quantile
from taskbridge.common.texts import counted
from taskbridge.observe.context import Context

__all__ = [
    "Before",
    "Burst",
    "By",
    "FailedGroup",
    "FailedRuns",
    "Noisy",
    "NoisyTenants",
    "RunRow",
    "Saved",
    "Sums",
    "bursts",
    "failed",
    "noisy",
    "over_time",
    "runs",
    "saved",
]

MOST_POINTS: Final = 100
MOST_FAILED: Final = 200
"""How many failed runs are read to be grouped."""
MOST_DRAWN: Final = 10_000
"""How many runs are read to find noisy tenants. If there are more, a random sample is read."""
RUNS_OF_A_BURST: Final = 10
"""How many runs are read for each requested burst."""
MOST_FOR_BURSTS: Final = 500

By = Literal["events", "runs", "records", "run time"]
"""What makes a tenant noisy."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run of the history; the fields are columns of the table `runs`."""

    pipeline: str
    tenant: str
    token: str
    began_at: datetime
    ended_at: datetime
    reason: str
    worker: str | None
    events: int
    burst_run: int
    records: int
    rejected: int
    outcome: str
    error: str | None
    first_event_ms: int | None

    @property
    def run_ms(self) -> float:
        """How long it took, in milliseconds."""
        return (self.ended_at - self.began_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True)
class Noisy:
    """A tenant and the load that it caused."""

    pipeline: str
    tenant: str
    events: int
    runs: int
    records: int
    failures: int
    run_ms: int


@dataclass(frozen=True, slots=True)
class NoisyTenants:
    """The noisiest tenants, the first one first. `basis`: where the numbers come from, in a sentence."""

    tenants: list[Noisy]
    basis: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The events of a pipeline over some days, and the runs and records that they caused.

    Records that nobody notified of have no event, so there may be more records than events.
    """

    pipeline: str
    events: int
    runs: int
    records: int

    @property
    def jobs(self) -> int:
        """How many jobs a system with one job per change would have run."""
        return max(self.events, self.records)

    @property
    def runs_saved(self) -> int:
        """How many fewer runs than these there were."""
        return max(0, self.jobs - self.runs)


@dataclass(frozen=True, slots=True)
class Burst(Saved):
    """A burst: its first run's token and start, and the totals of its runs.

    `first_event_ms`: from its first event to the delivery of the first record; None if unknown.
    """

    tenant: str
    token: str
    began_at: datetime
    ended_at: datetime
    failed: int
    first_event_ms: int | None


@dataclass(frozen=True, slots=True)
class Sums:
    """The totals of an interval of `seconds` that starts at `at`.

    The delays of first events are upper bounds of buckets, in milliseconds; infinite above 10,000 ms.
    """

    at: datetime
    seconds: int
    runs: int
    failed: int
    events: int
    bursts: int
    records: int
    rejected: int
    run_ms: int
    first_event_p50_ms: float | None
    first_event_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """Runs that failed with the same kind of error; `tenants` is a count, `sample` has up to 5 of them.

    `error`: the latest of `texts` different texts of that kind. `first` and `last`: when the first and the last of the
    runs ended.
    """

    pipeline: str
    error: str
    texts: int
    runs: int
    tenants: int
    first: datetime
    last: datetime
    sample: list[str]


@dataclass(frozen=True, slots=True)
class FailedRuns:
    """Failures, with the error of the most runs first. `basis`: where the numbers come from.

    `more`: how many kinds of error are left out.
    """

    groups: list[FailedGroup]
    basis: str
    more: int = 0


class Before(NamedTuple):
    """Where a page of runs begins: with runs that ended before `at`, or at `at` with a smaller token."""

    at: datetime
    token: str = ""


def runs(
    context: Context,
    pipeline: str | None = None,
    tenant: str | None = None,
    *,
    failed: bool = False,
    before: Before | None = None,
    limit: int = 50,
) -> list[RunRow]:
    """Return up to `limit` runs, the last one first, optionally only failed ones or those before a time or a run.

    `tenant` requires `pipeline`.
    """
    context.names(pipeline)
    if pipeline is None or tenant is None:
        end = before or Before(context.now() + timedelta(seconds=1))
        since = end.at - timedelta(days=max(1, context.settings.history_days) + 1)
        values = {"pipelines": _pipelines(context, pipeline), "since": since, "before": end.at, "token": end.token}
        found = context.rows("past_of_all", **values, failed=failed, limit=limit)
    else:
        at, token = before or (None, "")
        values = {"pipeline": pipeline, "tenant": tenant, "before": None if token else at, "token": token}
        found = context.rows("past_of_tenant", **values, failed=failed, limit=limit)
    return [RunRow(**row) for row in found]


def failed(context: Context, pipeline: str | None = None, *, hours: float = 24, limit: int = 50) -> FailedRuns:
    """Return the failures of the last `hours`, including those that have recovered, grouped by kind of error.

    Only the last 200 failed runs are considered.
    """
    since = context.now() - timedelta(hours=hours)
    values = {"pipelines": _pipelines(context, pipeline), "since": since, "size": MOST_FAILED}
    groups = [FailedGroup(**row) for row in context.rows("past_failed", **values)]
    count = sum(one.runs for one in groups)
    basis = f"from only the last {count:,} failed runs"
    if count < MOST_FAILED:
        basis = f"from {counted(count, 'failed run')} of the last {_hours(hours)}"
    return FailedRuns(groups[:limit], basis, max(0, len(groups) - limit))


def _pipelines(context: Context, pipeline: str | None) -> list[str]:
    """Return one pipeline, or all that the database knows."""
    return sorted(context.readers()) if pipeline is None else context.names(pipeline)


def _hours(hours: float) -> str:
    return "hour" if hours == 1 else f"{hours:g} hours"


def bursts(context: Context, pipeline: str, tenant: str, limit: int = 50) -> list[Burst]:
    """Return the last bursts of a tenant, the last one first."""
    found = runs(context, pipeline, tenant, limit=min(MOST_FOR_BURSTS, limit * RUNS_OF_A_BURST))
    groups: list[list[RunRow]] = []
    for row in reversed(found):
        if row.burst_run == 1:
            groups.append([])
        # The first run of the oldest burst may be missing.
        if groups:
            groups[-1].append(row)
    return [_burst(group) for group in reversed(groups)][:limit]


def _burst(group: Sequence[RunRow]) -> Burst:
    first = group[0]
    return Burst(
        pipeline=first.pipeline,
        tenant=first.tenant,
        token=first.token,
        began_at=first.began_at,
        ended_at=group[-1].ended_at,
        events=sum(one.events for one in group),
        runs=len(group),
        records=sum(one.records for one in group),
        failed=sum(one.outcome == "failed" for one in group),
        first_event_ms=next((one.first_event_ms for one in group if one.first_event_ms is not None), None),
    )


def saved(context: Context, pipeline: str | None = None, *, days: int = 7) -> list[Saved]:
    """Return the events and runs of each pipeline over the last days, up to the last full minute."""
    return [Saved(**row) for row in context.rows("past_saved", pipelines=context.names(pipeline), days=days)]


def over_time(context: Context, pipeline: str | None = None, *, hours: float = 24) -> list[Sums]:
    """Return at most 100 points for the last `hours`, in order.

    Intervals without a run are left out.
    """
    context.names(pipeline)
    seconds = max(1, -(-round(hours * 60) // MOST_POINTS)) * 60
    width = timedelta(seconds=seconds)
    since = context.now() - timedelta(hours=hours) + width
    points = []
    for row in context.rows("past_sums", pipeline=pipeline, since=since, width=width):
        counts = row.pop("first_event_counts")
        p50, p99 = quantile(counts, 0.5), quantile(counts, 0.99)
        points.append(Sums(**row, seconds=seconds, first_event_p50_ms=p50, first_event_p99_ms=p99))
    return points[-MOST_POINTS:]


def noisy(
    context: Context, pipeline: str | None = None, *, by: By = "events", hours: float = 24, limit: int = 20
) -> NoisyTenants:
    """Return the tenants that caused the most load in the last `hours`, in one pipeline or in all."""
    context.names(pipeline)
    since = context.now() - timedelta(hours=hours)
    # The sample is taken from the runs of all pipelines.
    every = context.value("past_count", since=since)
    percent = 100.0 if every <= MOST_DRAWN else max(0.01, 90.0 * MOST_DRAWN / every)
    values = {"pipeline": pipeline, "since": since, "by": by, "percent": percent}
    found = context.rows("past_noisy", **values, size=MOST_DRAWN, limit=limit)
    looked = found[0]["looked"] if found else 0
    names = ("events", "runs", "records", "failures", "run_ms")
    tenants = [
        Noisy(row["pipeline"], row["tenant"], *(round(row[name] * 100 / percent) for name in names)) for row in found
    ]
    sample = "estimated from a random sample of " if percent < 100 else "from "
    basis = f"{sample}{looked:,} runs of the last {_hours(hours)}"
    return NoisyTenants(tenants, basis)
