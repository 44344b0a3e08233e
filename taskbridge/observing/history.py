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

__all__ = ["bursts", "noisy", "over_time", "run_row", "runs", "saved", "tenant_runs"]

WINDOW_MS: Final = 500
"""What a burst is compared with: collecting events for so long before the first is acted on."""
MOST_POINTS: Final = 500
MOST_FAILED: Final = 200
"""So many failed runs are grouped."""
SHOWN_TENANTS: Final = 5
NO_HISTORY: Final = "there is no run history: no run yet, or TASKBRIDGE_HISTORY_DAYS is 0"
MOST_MINUTES: Final = 400
"""So many minutes with runs are looked at for a page of runs."""
FIRST_SPANS: Final = (timedelta(seconds=10), timedelta(minutes=2))
"""How far back the last runs are looked for first: the last minutes have no sums yet."""
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
    reach: Reach, pipeline: str | None, tenant: str | None, *, failed: bool, before: Before | None, limit: int
) -> list[RunRow]:
    """Return the last runs; see `Answers.runs`."""
    if pipeline is not None:
        reach.pipeline(pipeline)
        if tenant is not None:
            at = None if before is None else before.at
            found = reach.past.of_tenant(pipeline, tenant, failed=failed, before=at, limit=limit)
            return [run_row(row) for row in found]
    return [run_row(row) for row in _lately(reach, pipeline, failed=failed, before=before, limit=limit)]


def failed(reach: Reach, pipeline: str | None, hours: float, limit: int) -> FailedRuns:
    """Return what failed; see `Answers.failed`."""
    if not reach.past.exists:
        return FailedRuns([], NO_HISTORY)
    if pipeline is not None:
        reach.pipeline(pipeline)
    since = reach.looks.now() - timedelta(hours=hours)
    found = _lately(reach, pipeline, failed=True, before=None, limit=MOST_FAILED)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        if row["began_at"] >= since:
            groups.setdefault((row["pipeline"], row["error_kind"] or ""), []).append(row)
    made = [_failed_group(name, failing) for (name, _), failing in groups.items()]
    made.sort(key=lambda one: (-one.runs, one.pipeline, one.error))
    are_all = len(found) < MOST_FAILED or found[-1]["began_at"] < since
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
    """Return the last runs of all tenants. The sums of the minutes say where there are any."""
    past = reach.past
    end = before or Before(reach.looks.now() + timedelta(seconds=1))
    at, found = end, list[dict[str, Any]]()
    for span in FIRST_SPANS:
        since = end.at - span
        found += past.between(pipeline, since, at, failed=failed, limit=limit - len(found))
        at = Before(since)
        if len(found) >= limit:
            return found
    oldest = end.at - timedelta(days=max(1, reach.settings.history_days) + 1)
    wanted = limit - len(found)
    rest = [*_unsummed(reach, pipeline, oldest, at, failed=failed, limit=wanted)]
    rest += _summed(reach, pipeline, oldest, at, failed=failed, limit=wanted)
    # A minute with sums of one pipeline may have runs of another that has none.
    once = {(row["pipeline"], row["tenant"], row["token"]): row for row in rest}
    return found + sorted(once.values(), key=lambda row: (row["began_at"], row["token"]), reverse=True)[:wanted]


def _unsummed(
    reach: Reach, pipeline: str | None, oldest: datetime, until: Before, *, failed: bool, limit: int
) -> Iterator[dict[str, Any]]:
    """Yield the last runs of each pipeline since its last minute with sums: only a worker makes these."""
    for name, minute in reach.past.summed(pipeline).items():
        since = oldest if minute is None else minute + timedelta(minutes=1)
        if since < until.at:
            yield from reach.past.between(name, since, until, failed=failed, limit=limit)


def _summed(
    reach: Reach, pipeline: str | None, oldest: datetime, until: Before, *, failed: bool, limit: int
) -> list[dict[str, Any]]:
    """Return the last runs of the minutes that have sums."""
    found = list[dict[str, Any]]()
    minutes = reach.past.minutes(pipeline, oldest, until.at, failed=failed, limit=MOST_MINUTES)
    for since, before in _spans(minutes, limit):
        last = min(Before(before), until)
        found += reach.past.between(pipeline, since, last, failed=failed, limit=limit - len(found))
        if len(found) >= limit:
            break
    return found


def _spans(minutes: Sequence[tuple[datetime, int]], wanted: int) -> Iterator[tuple[datetime, datetime]]:
    """Return spans of time, the last one first, that have enough runs each and few minutes without any."""
    until, last, runs = None, None, 0
    for minute, count in minutes:
        if until is not None and last is not None and (runs >= wanted or last - minute > timedelta(minutes=10)):
            yield last, until
            until, runs = None, 0
        until = until or minute + timedelta(minutes=1)
        last, runs = minute, runs + count
    if until is not None and last is not None:
        yield last, until


def bursts(reach: Reach, pipeline: str, tenant: str | None, limit: int) -> list[BurstRow]:
    """Return the last bursts; see `Answers.bursts`."""
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


def saved(reach: Reach, pipeline: str, days: int) -> list[DayRow]:
    """Return what each day saved; see `Answers.saved`."""
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


def over_time(reach: Reach, pipeline: str | None, hours: float, until: datetime | None) -> list[Minute]:
    """Return sums over time; see `Answers.over_time`."""
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


def noisy(reach: Reach, pipeline: str | None, by: By, hours: float, limit: int) -> NoisyTenants:
    """Return who caused the most; see `Answers.noisy`."""
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
        tenants = reach.tenants(name)
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
