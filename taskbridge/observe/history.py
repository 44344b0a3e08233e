"""Answers from the run history: runs, bursts, savings, noisy tenants, and totals over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from taskbridge.common.histogram import quantile
from taskbridge.common.texts import counted
from taskbridge.observe.context import Context
from taskbridge.observe.types import (
    Burst,
    By,
    FailedGroup,
    FailedRuns,
    Noisy,
    NoisyTenants,
    RunRow,
    Saved,
    Sums,
)

__all__ = ["NO_HISTORY", "Before", "bursts", "failed", "noisy", "over_time", "run_row", "runs", "saved"]

NO_HISTORY: Final = "there is no run history: no run has ended yet, or TASKBRIDGE_HISTORY_DAYS is 0"
MOST_POINTS: Final = 100
MOST_FAILED: Final = 200
"""How many failed runs are read to be grouped."""
MOST_OF_A_TENANT: Final = 2_000
"""How many of a tenant's last runs are searched for failed ones."""
MOST_DRAWN: Final = 10_000
"""How many runs are read to find noisy tenants. If there are more, a random sample is read."""
SHOWN_TENANTS: Final = 5
RUNS_OF_A_BURST: Final = 10
"""How many runs are read for each requested burst."""
MOST_FOR_BURSTS: Final = 500


class Before(NamedTuple):
    """Where a page of runs begins: with runs that ended before `at`, or at `at` with a smaller token."""

    at: datetime
    token: str = ""


def run_row(row: dict[str, Any]) -> RunRow:
    """Return a row of the history as a value."""
    return RunRow(**{name: row[name] for name in RunRow.__dataclass_fields__})


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
    if pipeline is None or tenant is None:
        return [run_row(row) for row in _last(context, pipeline, failed=failed, before=before, limit=limit)]
    context.pipeline(pipeline)
    at, token = before or (None, "")
    found = context.rows(
        "past_of_tenant",
        pipeline=pipeline,
        tenant=tenant,
        failed=failed,
        before=None if token else at,
        token=token,
        size=MOST_OF_A_TENANT if failed else limit,
        limit=limit,
    )
    return [run_row(row) for row in found]


def _last(
    context: Context, pipeline: str | None, *, failed: bool, before: Before | None, limit: int
) -> list[dict[str, Any]]:
    """Return the last runs of all tenants, of one pipeline or of all that the database knows."""
    end = before or Before(context.now() + timedelta(seconds=1))
    since = end.at - timedelta(days=max(1, context.settings.history_days) + 1)
    pipelines = sorted(context.readers()) if pipeline is None else context.names(pipeline)
    values = {"pipelines": pipelines, "since": since, "before": end.at, "token": end.token, "limit": limit}
    return context.rows("past_of_all", **values, failed=failed)


def failed(context: Context, pipeline: str | None = None, *, hours: float = 24, limit: int = 50) -> FailedRuns:
    """Return the failures of the last `hours`, including those that have recovered, grouped by kind of error.

    Only the last 200 failed runs are considered.
    """
    if pipeline is not None:
        context.pipeline(pipeline)
    if not context.has_history:
        return FailedRuns([], NO_HISTORY)
    since = context.now() - timedelta(hours=hours)
    found = _last(context, pipeline, failed=True, before=None, limit=MOST_FAILED)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        if row["ended_at"] >= since:
            groups.setdefault((row["pipeline"], row["error_kind"] or ""), []).append(row)
    made = [_failed_group(name, rows) for (name, _), rows in groups.items()]
    made.sort(key=lambda one: (-one.runs, one.pipeline, one.error))
    are_all = len(found) < MOST_FAILED or found[-1]["ended_at"] < since
    count = counted(sum(one.runs for one in made), "failed run")
    basis = f"from {count} of the last {_hours(hours)}" if are_all else f"from only the last {count}"
    return FailedRuns(made[:limit], basis, max(0, len(made) - limit))


def _hours(hours: float) -> str:
    return "hour" if hours == 1 else f"{hours:g} hours"


def _failed_group(pipeline: str, rows: Sequence[dict[str, Any]]) -> FailedGroup:
    """Return a group for these failed runs, which start with the last one."""
    errors = list(dict.fromkeys(row["error"] or "no error was stored" for row in rows))
    tenants = list(dict.fromkeys(row["tenant"] for row in rows))
    ended = [row["ended_at"] for row in rows]
    counts = (len(errors), len(rows), len(tenants))
    return FailedGroup(pipeline, errors[0], *counts, min(ended), max(ended), tenants[:SHOWN_TENANTS])


def bursts(context: Context, pipeline: str, tenant: str | None = None, limit: int = 50) -> list[Burst]:
    """Return the last bursts of a pipeline, or of one tenant, the last one first."""
    found = runs(context, pipeline, tenant, limit=min(MOST_FOR_BURSTS, limit * RUNS_OF_A_BURST))
    by_tenant: dict[str, list[RunRow]] = {}
    for row in reversed(found):
        by_tenant.setdefault(row.tenant, []).append(row)
    made = [_burst(group) for rows in by_tenant.values() for group in _groups(rows)]
    return sorted(made, key=lambda one: one.began_at, reverse=True)[:limit]


def _groups(of_tenant: Iterable[RunRow]) -> Iterator[list[RunRow]]:
    """Yield the runs of each burst, oldest first, except for bursts whose first run is missing."""
    group: list[RunRow] = []
    for row in of_tenant:
        if row.burst_run == 1 and group:
            yield group
            group = []
        if group or row.burst_run == 1:
            group.append(row)
    if group:
        yield group


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
    if pipeline is not None:
        context.pipeline(pipeline)
    seconds = max(1, -(-round(hours * 60) // MOST_POINTS)) * 60
    width = timedelta(seconds=seconds)
    since = context.now() - timedelta(hours=hours) + width
    points = []
    for row in context.rows("past_sums", pipeline=pipeline, since=since, width=width):
        counts = row.pop("first_event_counts")
        first_event = {"first_event_p50_ms": quantile(counts, 0.5), "first_event_p99_ms": quantile(counts, 0.99)}
        points.append(Sums(**row, seconds=seconds, **first_event))
    return points[-MOST_POINTS:]


def noisy(
    context: Context, pipeline: str | None = None, *, by: By = "events", hours: float = 24, limit: int = 20
) -> NoisyTenants:
    """Return the tenants that caused the most load in the last `hours`, in one pipeline or in all."""
    if pipeline is not None:
        context.pipeline(pipeline)
    if not context.has_history:
        return NoisyTenants([], NO_HISTORY)
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
