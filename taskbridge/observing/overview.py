"""How all pipelines stand: health, what fails, the pulse, and lists of tenants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from taskbridge.common.texts import counted
from taskbridge.common.times import moment
from taskbridge.gate import Hold, RunnerStatus, State, Survey
from taskbridge.observing.causes import text_of_state
from taskbridge.observing.reach import Reach
from taskbridge.observing.shapes import (
    ActiveTenant,
    Colour,
    ErrorGroup,
    Finding,
    Health,
    PipelineLine,
    PipelinePulse,
    Pulse,
    Sort,
    TenantLine,
)
from taskbridge.observing.troubles import (
    MOST_COUNTED,
    MOST_NAMED,
    MOST_RUNNERS,
    Trouble,
    nobody_looks,
    nobody_works,
    slow_work,
    troubles,
    undeclared,
    unmatched,
    unseen,
    unserved,
)
from taskbridge.store import Backlog, PausedCount, read_ages, read_backlogs, unmatched_sources

__all__ = ["MOST_OF_A_TENANT", "MOST_SORTED", "failing", "health", "left_out", "pulse", "tenants"]

MOST_ERRORS: Final = 1_000
MOST_SORTED: Final = 100
"""Tenants of each kind that are looked at to sort them."""
MOST_OF_A_TENANT: Final = 100
"""So many records of each are counted in a list of tenants."""
RATE_SECONDS: Final = 5.0


def health(reach: Reach) -> Health:
    """Return whether all is well, with what is not."""
    names = sorted(reach.pipelines)
    surveys = reach.inspector.survey(names, MOST_RUNNERS)
    sources = {name: reach.pipelines[name].source for name in names}
    backlogs = read_backlogs(
        reach.database, sources, {name: one.tenants for name, one in surveys.items()}, MOST_COUNTED
    )
    tails = {name: ages.tail for name, ages in read_ages(reach.database, names).items()}
    paused = {name: reach.looks.paused(name, MOST_COUNTED) for name in names}
    # One cause has one finding, and not one for each pipeline.
    nobody = len(names) > 1 and all(nobody_looks(one, reach.settings.tail_interval) for one in tails.values())
    found = [
        (one, name)
        for name in names
        for one in _troubles(reach, name, surveys[name], backlogs[name], 0.0 if nobody else tails[name], paused[name])
    ]
    slow = slow_work(reach.inspector, reach.database, reach.settings, reach.pipelines, surveys, tails)
    found += [(one, name) for name, several in slow.items() for one in several]
    # What has just begun is news.
    found.sort(key=lambda one: (not one[0].grave, one[0].seconds))
    findings = [_finding(nobody_works(min(tails.values()), len(names)))] if nobody else []
    findings += [_finding(one, name) for one, name in found]
    findings += [
        _finding(unmatched(source, count, MOST_COUNTED))
        for source, count in unmatched_sources(reach.database, MOST_COUNTED).items()
    ]
    others = left_out(reach)
    findings += [] if others is None else [others]
    colour: Colour = "red" if any(one.colour == "red" for one in findings) else "yellow" if findings else "green"
    runners = sum(one.runners for one in surveys.values())
    pipelines = [
        PipelineLine(
            name,
            surveys[name].runners,
            *backlogs[name],
            unseen=unseen(
                surveys[name],
                backlogs[name],
                is_looked_for=not nobody_looks(tails[name], reach.settings.tail_interval),
                is_paused=bool(one.tenants or one.whole),
                runners=MOST_RUNNERS,
                records=MOST_COUNTED,
            ),
            survey=surveys[name],
        )
        for name, one in paused.items()
    ]
    return Health(
        colour=colour,
        sentence=_sentence(findings, runners),
        oldest_pending_seconds=max((one.oldest_seconds for one in backlogs.values()), default=0.0),
        overdue_seconds=max((one.overdue_seconds for one in surveys.values()), default=0.0),
        tail_seconds=max(tails.values(), default=math.inf),
        open_circuits=[name for name in names if surveys[name].circuit.open],
        runners=runners,
        workers=_workers(reach, surveys),
        pending=sum(one.pending for one in backlogs.values()),
        unseen=any(one.unseen for one in pipelines),
        quarantined=sum(one.quarantined for one in backlogs.values()),
        paused=sum(one.tenants + one.whole for one in paused.values()),
        failing=sum(one.failing for one in backlogs.values()),
        findings=findings,
        at=datetime.now(UTC),
        pipelines=pipelines,
    )


def left_out(reach: Reach) -> Finding | None:
    """Return that Postgres knows pipelines which are not asked about here, so none of these was looked at."""
    others = reach.looks.undeclared(sorted(reach.pipelines))
    return _finding(undeclared(others)) if others else None


def _finding(one: Trouble, pipeline: str | None = None) -> Finding:
    said = one.sentence if pipeline is None else f"{pipeline}: {one.sentence}"
    return Finding("red" if one.grave else "yellow", said, one.remedy, pipeline, one.tenant, one.page)


def _sentence(findings: list[Finding], runners: int) -> str:
    if findings:
        first, *others = findings
        if not others:
            return first.sentence
        about = [name for name in dict.fromkeys(one.pipeline for one in others) if name and name != first.pipeline]
        whose = f", also about {', '.join(about[:MOST_NAMED])}" if about else ""
        cut = f" and {len(about) - MOST_NAMED:,} more" if len(about) > MOST_NAMED else ""
        return f"{first.sentence}, and {counted(len(others), 'more finding')}{whose}{cut}"
    work = counted(runners, "tenant has a runner", "tenants have a runner") if runners else "nobody has anything to do"
    return f"all is well: {work}, nothing fails, and nothing is held up"


def _troubles(
    reach: Reach, name: str, survey: Survey, backlog: Backlog, tail_seconds: float, paused: PausedCount
) -> Iterator[Trouble]:
    yield from unserved(tail_seconds, reach.settings.tail_interval, survey.overdue_seconds)
    yield from troubles(reach.pipelines[name], survey, backlog, paused)


def _workers(reach: Reach, surveys: Mapping[str, Survey]) -> list[str]:
    found = {
        one.worker
        for name, survey in surveys.items()
        for one in reach.inspector.look(name, survey.tenants)
        if one.worker and one.state is State.RUNNING
    }
    return sorted(found)


def pulse(reach: Reach, most: int = 50) -> Pulse:
    """Return how all stands now, with up to `most` active tenants of each pipeline; made for once a second."""
    names = sorted(reach.pipelines)
    surveys = reach.inspector.survey(names, most)
    rates = _rates(reach)
    held = {name: reach.looks.paused_among(name, ["", *surveys[name].tenants]) for name in names}
    now_ms = reach.inspector.now_ms()
    queued = reach.inspector.queued()
    pipelines = []
    for name in names:
        survey = surveys[name]
        found = zip(survey.tenants, reach.inspector.look(name, survey.tenants), strict=True)
        rate: Mapping[str, Any] = (rates or {}).get(name, {})
        events, runs, records = (
            None if rates is None else rate.get(what, 0) / RATE_SECONDS for what in ("events", "runs", "records")
        )
        pipelines.append(
            PipelinePulse(
                name,
                survey.runners,
                survey.circuit.waiting,
                survey.overdue_seconds,
                survey.circuit.open,
                moment(survey.circuit.until_ms),
                "" in held[name],
                events,
                runs,
                records,
                [_active(reach, tenant, runner, now_ms, paused=tenant in held[name]) for tenant, runner in found],
            )
        )
    return Pulse(datetime.now(UTC), queued, pipelines)


def _rates(reach: Reach) -> dict[str, dict[str, Any]] | None:
    if not reach.past.exists:
        return None
    return reach.past.rates([*reach.pipelines], reach.looks.now() - timedelta(seconds=RATE_SECONDS))


def _active(reach: Reach, tenant: str, runner: RunnerStatus, now_ms: int, *, paused: bool) -> ActiveTenant:
    return ActiveTenant(
        tenant,
        text_of_state(runner, now_ms, reach.ttl_ms, paused=paused),
        max(0.0, ((runner.lease_ends_ms or 0) - now_ms) / 1000),
        runner.events,
        runner.runs,
        (runner.worker or None) if runner.state is State.RUNNING else None,
        moment(runner.began_ms) if runner.state is State.RUNNING else None,
    )


def tenants(
    reach: Reach,
    pipeline: str,
    *,
    failing: bool = False,
    sort: Sort = "name",
    after: str = "",
    limit: int = 50,
    records: int = MOST_OF_A_TENANT,
) -> list[TenantLine]:
    """Return up to `limit` tenants of a pipeline; with `failing` those whose last run failed.

    Of each tenant up to `records` records of each state are counted.

    By name they come after the tenant `after`. By another order they are the first of up to 400 tenants: those
    whose runners are due first, those with the most failures, those with the most in quarantine, and by name.
    """
    of_pipeline = reach.tenants_in(pipeline)
    if sort == "name" and failing:
        names = reach.looks.failing(pipeline, after, limit)
    elif sort == "name":
        # A tenant that was only notified so far has a runner, and neither a record nor a cursor.
        at_work = reach.at_work([pipeline], MOST_SORTED).get(pipeline, ())
        names = sorted({*of_pipeline.after(pipeline, after, limit), *(name for name in at_work if name > after)})[
            :limit
        ]
    else:
        survey = [] if failing else reach.inspector.survey([pipeline], MOST_SORTED)[pipeline].tenants
        first = [] if failing else of_pipeline.after(pipeline, "", MOST_SORTED)
        names = sorted({*survey, *first, *of_pipeline.troubled(pipeline, MOST_SORTED, MOST_COUNTED)})
    counts = of_pipeline.counts(pipeline, names, records)
    runners = dict(zip(names, reach.inspector.look(pipeline, names), strict=True))
    held, now_ms = reach.looks.paused_among(pipeline, names), reach.inspector.now_ms() if names else 0
    lines = [
        _line(reach, row, pipeline, runners[row["tenant"]], now_ms, paused=row["tenant"] in held) for row in counts
    ]
    if sort == "name":
        return lines
    if failing:
        lines = [one for one in lines if one.failures]
    now = datetime.now(UTC)
    if sort == "oldest":
        return sorted(lines, key=lambda one: (one.pending_since or now, one.tenant))[:limit]
    return sorted(lines, key=lambda one: (-getattr(one, sort), one.tenant))[:limit]


def _line(
    reach: Reach, row: dict[str, Any], pipeline: str, runner: RunnerStatus, now_ms: int, *, paused: bool
) -> TenantLine:
    names = (
        *("pending", "pending_since", "handled", "quarantined", "discarded", "last_run_at", "first_event_ms"),
        *("events", "runs", "sweeps", "records", "failures", "failing_since", "last_error"),
    )
    # A cursor knows of a burst's events only once a run has begun.
    burst = (row["burst_events"], row["burst_runs"]) if runner.state is State.IDLE else (runner.events, runner.runs)
    due_at = moment(runner.deadline_ms) if runner.state is State.WAITING and not runner.waits_for_turn else None
    return TenantLine(
        pipeline,
        row["tenant"],
        text_of_state(runner, now_ms, reach.ttl_ms, paused=paused, pending=bool(row["pending"])),
        **{name: row[name] for name in names},
        burst_events=burst[0],
        burst_runs=burst[1],
        lease_seconds=max(0.0, ((runner.lease_ends_ms or 0) - now_ms) / 1000),
        held=runner.held,
        paused=paused,
        due_at=due_at,
        next_try_at=due_at if runner.hold in (Hold.RATE, Hold.RETRY, Hold.ASKED) and not paused else None,
    )


def failing(reach: Reach, pipeline: str | None = None, limit: int = 50) -> list[ErrorGroup]:
    """Return what fails now, grouped by the kind of error, those with the most tenants first.

    Up to 1,000 failing tenants and 1,000 records in quarantine of each pipeline are looked at.
    """
    found = [
        ErrorGroup(name, **row)
        for name in reach.chosen(pipeline)
        for row in reach.looks.errors(name, reach.source(name), MOST_ERRORS, limit)
    ]
    return sorted(found, key=lambda one: (-one.tenants, -one.quarantined, one.pipeline, one.error))[:limit]
