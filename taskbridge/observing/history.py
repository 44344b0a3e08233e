"""What the run history tells: runs, bursts, what they saved, who is noisy, and how it went over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from taskbridge.common.histogram import quantile
from taskbridge.common.texts import counted
from taskbridge.observing.reach import Reach
from taskbridge.observing.shapes import (
    BurstRow,
    By,
    DayRow,
    FailedGroup,
    FailedRuns,
    Minute,
    Noisy,
    NoisyTenants,
    RunRow,
)
from taskbridge.store.past import MOST_DRAWN, Before

__all__ = ["bursts", "failed", "noisy", "over_time", "run_row", "runs", "saved", "tenant_runs"]

WINDOW_MS: Final = 500
"""What a burst is compared with: collecting events for so long before the first is acted on."""
MOST_POINTS: Final = 500
MOST_FAILED: Final = 200
"""So many failed runs are grouped."""
SHOWN_TENANTS: Final = 5
NO_HISTORY: Final = "there is no run history: no run yet, or TASKBRIDGE_HISTORY_DAYS is 0"
BURSTS_OF_RUNS: Final = 10
"""So many runs are looked at for each burst."""
MOST_FOR_BURSTS: Final = 500


def run_row(row: dict[str, Any]) -> RunRow:
    """Return a row of the history."""
    values = {name: row[name] for name in RunRow.__dataclass_fields__}
    return RunRow(**values | {"worker": row["worker"] or None})


def tenant_runs(reach: Reach, pipeline: str, tenant: str, limit: int) -> list[RunRow]:
    """Return the last runs of a tenant, the last one first."""
    found = reach.past.of_tenant(pipeline, tenant, failed=False, before=None, limit=limit)
    return [run_row(row) for row in found]


def runs(
    reach: Reach,
    pipeline: str | None = None,
    tenant: str | None = None,
    *,
    failed: bool = False,
    before: Before | None = None,
    limit: int = 50,
) -> list[RunRow]:
    """Return up to `limit` runs that ended before a time or a run, the last one first; with `failed` those that failed.

    Without a history of runs there are none. A tenant is only looked for with its pipeline.
    """
    if pipeline is not None:
        reach.pipeline(pipeline)
        if tenant is not None:
            at, token = before or (None, "")
            found = reach.past.of_tenant(
                pipeline, tenant, failed=failed, before=None if token else at, token=token, limit=limit
            )
            return [run_row(row) for row in found]
    return [run_row(row) for row in _lately(reach, pipeline, failed=failed, before=before, limit=limit)]


def failed(reach: Reach, pipeline: str | None = None, *, hours: float = 24, limit: int = 50) -> FailedRuns:
    """Return what failed in the last `hours`, including what has recovered, grouped by the kind of error.

    The last 200 failed runs are looked at.
    """
    if not reach.past.exists:
        return FailedRuns([], NO_HISTORY)
    if pipeline is not None:
        reach.pipeline(pipeline)
    since = reach.looks.now() - timedelta(hours=hours)
    found = _lately(reach, pipeline, failed=True, before=None, limit=MOST_FAILED)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        if row["ended_at"] >= since:
            groups.setdefault((row["pipeline"], row["error_kind"] or ""), []).append(row)
    made = [_failed_group(name, failing) for (name, _), failing in groups.items()]
    made.sort(key=lambda one: (-one.runs, one.pipeline, one.error))
    are_all = len(found) < MOST_FAILED or found[-1]["ended_at"] < since
    count = counted(sum(one.runs for one in made), "failed run")
    basis = f"from {count} of the last {_hours(hours)}" if are_all else f"from the last {count}; there are more"
    rejected = sum(row["rejected"] for row in reach.past.sums(pipeline, since, timedelta(hours=1)))
    return FailedRuns(made[:limit], basis, max(0, len(made) - limit), rejected)


def _hours(hours: float) -> str:
    return "hour" if hours == 1 else f"{hours:g} hours"


def _failed_group(pipeline: str, failing: Sequence[dict[str, Any]]) -> FailedGroup:
    """Return a group of failed runs, of which the last one comes first."""
    errors = list(dict.fromkeys(row["error"] or "no error was written down" for row in failing))
    tenants = list(dict.fromkeys(row["tenant"] for row in failing))
    ended = [row["ended_at"] for row in failing]
    counts = (len(errors), len(failing), len(tenants))
    return FailedGroup(pipeline, errors[0], *counts, min(ended), max(ended), tenants[:SHOWN_TENANTS])


def _lately(
    reach: Reach, pipeline: str | None, *, failed: bool, before: Before | None, limit: int
) -> list[dict[str, Any]]:
    """Return the last runs of all tenants, of one pipeline or of all that the database knows."""
    end = before or Before(reach.looks.now() + timedelta(seconds=1))
    oldest = end.at - timedelta(days=max(1, reach.settings.history_days) + 1)
    pipelines = sorted({*reach.looks.readers(), *reach.pipelines}) if pipeline is None else [pipeline]
    return reach.past.of_all(pipelines, oldest, end, failed=failed, limit=limit)


def bursts(reach: Reach, pipeline: str, tenant: str | None = None, limit: int = 50) -> list[BurstRow]:
    """Return the last bursts of a pipeline, or of one tenant, the last one first."""
    size = min(MOST_FOR_BURSTS, limit * BURSTS_OF_RUNS)
    found = runs(reach, pipeline, tenant, failed=False, before=None, limit=size)
    by_tenant: dict[str, list[RunRow]] = {}
    for row in reversed(found):
        by_tenant.setdefault(row.tenant, []).append(row)
    made = [_burst(group) for some in by_tenant.values() for group in _groups(some)]
    return sorted(made, key=lambda one: one.began_at, reverse=True)[:limit]


def _groups(of_tenant: Iterable[RunRow]) -> Iterator[list[RunRow]]:
    """Return the bursts of a tenant's runs, which come in their order; one whose first run is not among them is not."""
    group: list[RunRow] = []
    for row in of_tenant:
        if row.burst_run == 1 and group:
            yield group
            group = []
        if group or row.burst_run == 1:
            group.append(row)
    if group:
        yield group


def _burst(group: Sequence[RunRow]) -> BurstRow:
    first = group[0]
    took = next((one.first_event_ms for one in group if one.first_event_ms is not None), None)
    return BurstRow(
        first.pipeline,
        first.tenant,
        first.token,
        first.began_at,
        group[-1].ended_at,
        sum(one.events for one in group),
        len(group),
        sum(one.records for one in group),
        sum(one.outcome == "failed" for one in group),
        took,
        None if took is None else took + WINDOW_MS,
    )


def saved(reach: Reach, pipeline: str, *, days: int = 7) -> list[DayRow]:
    """Return events, runs and records of each of the last days, the last one first."""
    reach.pipeline(pipeline)
    today = reach.looks.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    found = reach.past.sums(pipeline, today - timedelta(days=days - 1), timedelta(days=1))
    return [
        DayRow(
            day=row["at"].astimezone(UTC),
            **_sums(row),
            first_event_p50_ms=quantile(row["first_event_counts"], 0.5),
            first_event_p99_ms=quantile(row["first_event_counts"], 0.99),
        )
        for row in reversed(found)
    ]


def over_time(
    reach: Reach, pipeline: str | None = None, *, hours: float = 24, until: datetime | None = None
) -> list[Minute]:
    """Return at most 500 points of the last `hours` before `until`, the first one first; None: before now.

    Minutes without a run are missing.
    """
    if pipeline is not None:
        reach.pipeline(pipeline)
    seconds = max(1, -(-round(hours * 60) // MOST_POINTS)) * 60
    since = (until or reach.looks.now()) - timedelta(hours=hours) + timedelta(seconds=seconds)
    return [
        Minute(
            at=row["at"],
            seconds=seconds,
            **_sums(row),
            first_event_mean_ms=_mean(row["first_event_ms_sum"], sum(row["first_event_counts"])),
            first_event_p50_ms=quantile(row["first_event_counts"], 0.5),
            first_event_p99_ms=quantile(row["first_event_counts"], 0.99),
        )
        for row in reach.past.sums(pipeline, since, timedelta(seconds=seconds), until)[-MOST_POINTS:]
    ]


def _sums(row: dict[str, Any]) -> dict[str, int]:
    return {name: row[name] for name in ("runs", "failed", "events", "bursts", "records", "rejected", "run_ms")}


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None


def noisy(
    reach: Reach, pipeline: str | None = None, *, by: By = "events", hours: float = 24, limit: int = 20
) -> NoisyTenants:
    """Return the tenants that caused the most in the last `hours`, of one pipeline or of all."""
    if pipeline is not None:
        reach.pipeline(pipeline)
    if not reach.past.exists:
        return _noisy_now(reach, reach.chosen(pipeline), by, limit)
    since = reach.looks.now() - timedelta(hours=hours)
    count = reach.past.count(pipeline, since, failed=by == "failures")
    # The pages that are drawn have the runs of all pipelines.
    every = reach.past.count(None, since, failed=False)
    percent = 100.0 if every <= MOST_DRAWN else max(0.01, 90.0 * MOST_DRAWN / every)
    found = reach.past.noisy(pipeline, since, by, percent=percent, limit=limit)
    looked = found[0]["looked"] if found else 0
    scale = max(1.0, count / looked) if percent < 100 and looked else 1.0
    names = ("events", "runs", "records", "failures", "run_ms")
    tenants = [Noisy(row["pipeline"], row["tenant"], *(round(row[name] * scale) for name in names)) for row in found]
    what = "failed runs" if by == "failures" else "runs"
    if percent < 100:
        basis = f"estimated from {looked:,} of {count:,} {what} of the last {_hours(hours)}, drawn by chance"
    else:
        basis = f"from {looked:,} {what} of the last {_hours(hours)}"
        if looked >= MOST_DRAWN:
            basis += "; there are more that are not summed yet: ask again in a minute"
    return NoisyTenants(tenants, basis)


def _noisy_now(reach: Reach, pipelines: Sequence[str], by: By, limit: int) -> NoisyTenants:
    """Return the noisiest of the tenants that have a runner or fail, by the counters of their cursors."""
    most = 1_000
    at_work, found = reach.at_work(pipelines, most), list[Noisy]()
    for name in pipelines:
        tenants = reach.tenants_in(name)
        names = sorted({*at_work[name], *tenants.troubled(name, most)})
        for row in tenants.counts(name, names, 1):
            counts = (row["events"], row["runs"], row["records"], row["failures"])
            found.append(Noisy(name, row["tenant"], *counts, run_ms=0))
    figure, others = "runs" if by == "run time" else by, ("events", "runs", "records", "failures")
    found.sort(key=lambda one: (*(-getattr(one, name) for name in (figure, *others)), one.pipeline, one.tenant))
    return NoisyTenants(
        found[:limit],
        f"{NO_HISTORY}; counts are those since the first run of tenants that have a runner or fail, failures are those "
        "in a row, and run times are not known",
    )
