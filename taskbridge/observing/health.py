"""Whether the deployment is healthy, and what is not: `status`, `doctor` and the dashboard report the same findings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from taskbridge.common.texts import counted
from taskbridge.common.times import moment
from taskbridge.gate import RunnerStatus, State, Survey
from taskbridge.observing.context import Context
from taskbridge.observing.status import state_of
from taskbridge.observing.types import ActiveTenant, Finding, Health, PipelineLine
from taskbridge.store import Backlog, read_ages, read_backlogs, unmatched_sources

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.gate.inspector import Queued, Running

__all__ = ["MOST_COUNTED", "MOST_RUNNERS", "health", "left_out", "nobody_looks", "unserved", "work"]

MOST_RUNNERS: Final = 100
"""Pending records are counted of so many tenants, those whose runners are due first."""
MOST_COUNTED: Final = 2_000
"""Records, failing tenants and paused tenants of a pipeline are counted up to this."""
MOST_UNDECLARED: Final = 1_000
"""Tenants of a pipeline that is not declared here are counted up to this."""
MOST_NAMED: Final = 3
"""How many pipelines one sentence names."""
NO_WORKER_SECONDS: Final = 15.0
"""Workers store at least every few seconds how far they have looked for records."""
OVERDUE_SECONDS: Final = 2.0
OVERDUE_GRAVE: Final = 30.0
"""Workers act on a deadline within a fraction of a second, unless they are busy."""
OLD_SECONDS: Final = 300.0
"""How long a record may wait, beside its pipeline's longest delay, before it is reported."""
REPLACED_SECONDS: Final = 3_600.0
"""How long the replacement of a run is reported: nothing else reveals a single frozen process of a worker."""
QUEUED_SECONDS: Final = 30.0
"""How long a run message may be queued before it is reported; it is grave if no run has ended within this time."""
LONG_RUN_SECONDS: Final = 300.0
"""How long a run may take before it is reported, if its pipeline has no limit that lets one take longer."""


class Paused(NamedTuple):
    """How many tenants of a pipeline are paused, the first by name, and whether the pipeline itself is."""

    tenants: int
    first: str | None
    whole: bool


class _Look(NamedTuple):
    """Each pipeline in Redis and in Postgres. `tails`: seconds since a worker looked for its records."""

    surveys: Mapping[str, Survey]
    backlogs: Mapping[str, Backlog]
    tails: Mapping[str, float]
    paused: Mapping[str, Paused]


def _look(context: Context) -> _Look:
    names = context.names()
    surveys = context.inspector.survey(names, MOST_RUNNERS)
    sources = {name: context.pipelines[name].source for name in names}
    first = {name: survey.tenants for name, survey in surveys.items()}
    paused = {
        row["pipeline"]: Paused(row["tenants"], row["first"], row["whole"])
        for row in context.rows("look_paused", pipelines=names, size=MOST_COUNTED)
    }
    return _Look(
        surveys,
        read_backlogs(context.database, sources, first, MOST_COUNTED),
        {name: ages.tail for name, ages in read_ages(context.database, names).items()},
        paused,
    )


def health(context: Context) -> Health:
    """Return whether all is well, and what is not."""
    look = _look(context)
    nobody = [*_nobody_works(look, context.settings.tail_interval)]
    findings = [*nobody]
    if not nobody:
        for name, survey in look.surveys.items():
            found = unserved(look.tails[name], context.settings.tail_interval, survey.overdue_seconds)
            findings += [_named(name, one) for one in found]
    else:
        findings += [
            _named(name, one) for name, survey in look.surveys.items() for one in _overdue(survey.overdue_seconds)
        ]
    findings += _work(context, look)
    # What has just begun is news.
    findings.sort(key=lambda one: (one not in nobody, one.pipeline is None, not one.grave, one.seconds))
    lines = [_line(context, name, look) for name in look.surveys]
    running = [one for line in lines for one in line.active if one.worker]
    return Health(
        colour="red" if any(one.grave for one in findings) else "yellow" if findings else "green",
        sentence=_sentence(findings, sum(one.runners for one in lines)),
        findings=findings,
        pipelines=lines,
        oldest_pending_seconds=max((one.oldest_seconds for one in lines), default=0.0),
        overdue_seconds=max((one.survey.overdue_seconds for one in lines), default=0.0),
        is_overdue=any(one.survey.overdue_seconds > OVERDUE_SECONDS for one in lines),
        tail_seconds=max(look.tails.values(), default=math.inf),
        is_looked_for=not any(nobody_looks(one, context.settings.tail_interval) for one in look.tails.values()),
        open_circuits=[one.pipeline for one in lines if one.survey.circuit.open],
        runners=sum(one.runners for one in lines),
        workers=sorted({one.worker for one in running if one.worker}),
        queued=context.inspector.queued(),
        pending=sum(one.pending for one in lines),
        unseen=any(one.unseen for one in lines),
        quarantined=sum(one.quarantined for one in lines),
        paused=sum(one.tenants + one.whole for one in look.paused.values()),
        failing=sum(one.failing for one in lines),
    )


def work(context: Context) -> list[Finding]:
    """Return what is wrong with the work, apart from what `unserved` reports."""
    return _work(context, _look(context))


def left_out(context: Context) -> Finding | None:
    """Return that Postgres knows pipelines that are not declared here, so no answer includes them; None: none."""
    found = context.rows("undeclared_pipelines", declared=context.names(), most=MOST_UNDECLARED)
    if not found:
        return None
    first = [
        f"{row['pipeline']} ({counted(row['tenants'], 'tenant')}"
        f"{' or more' if row['tenants'] >= MOST_UNDECLARED else ''})"
        for row in found[:MOST_NAMED]
    ]
    cut = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
    them = "it" if len(found) == 1 else "them"
    return Finding(
        f"nothing is known here of {', '.join(first)}{cut}: this process does not declare {them}",
        f"name the modules that declare {them} in TASKBRIDGE_PIPELINES, or `taskbridge pipeline remove` it",
    )


def nobody_looks(tail_seconds: float, tail_interval: float) -> bool:
    """Whether no worker has looked for records of a pipeline for too long; `tail_seconds`: since the last look."""
    return tail_seconds > NO_WORKER_SECONDS + tail_interval


def unserved(tail_seconds: float, tail_interval: float, overdue_seconds: float) -> Iterator[Finding]:
    """Yield findings that no worker serves a pipeline, or too few do.

    Args:
        tail_seconds: since a worker has looked for its records.
        tail_interval: how often one does.
        overdue_seconds: since the first of its deadlines that passed.
    """
    if math.isinf(tail_seconds):
        yield Finding("no worker has ever looked for its records", "start a worker that declares the pipeline", True)
    elif nobody_looks(tail_seconds, tail_interval):
        yield Finding(
            f"no worker has looked for records for {tail_seconds:,.0f} s",
            "start a worker that declares the pipeline; if one runs, read its log",
            True,
            seconds=tail_seconds,
        )
    yield from _overdue(overdue_seconds)


def _overdue(seconds: float) -> Iterator[Finding]:
    if seconds > OVERDUE_SECONDS:
        yield Finding(
            f"a run was due {seconds:,.0f} s ago, and no worker has begun it",
            "start more workers, or see whether one is frozen",
            seconds > OVERDUE_GRAVE,
            seconds=seconds,
        )


def _nobody_works(look: _Look, tail_interval: float) -> Iterator[Finding]:
    """Yield the one finding that replaces those of several pipelines, if nobody looks for records of any."""
    if len(look.tails) > 1 and all(nobody_looks(one, tail_interval) for one in look.tails.values()):
        last = min(look.tails.values())
        since = "" if math.isinf(last) else f" for {last:,.0f} s"
        yield Finding(
            f"no worker is at work: none has looked for records of any of the {len(look.tails):,} pipelines{since}",
            "start a worker that declares them; if one runs, read its log",
            True,
            seconds=last,
        )


def _work(context: Context, look: _Look) -> list[Finding]:
    slow = _slow_work(context, look)
    found = [
        _named(name, one)
        for name in look.surveys
        for one in (*slow.get(name, ()), *_of_pipeline(context.pipelines[name], look))
    ]
    for source, count in unmatched_sources(context.database, MOST_COUNTED).items():
        exact = counted(count, "message matches", "messages match")
        messages = exact if count < MOST_COUNTED else f"{count:,} or more messages match"
        remedy = f"taskbridge quarantine list --unmatched --pipeline {source}"
        found.append(Finding(f"{source}: {messages} no criterion", remedy))
    others = left_out(context)
    return found if others is None else [*found, others]


def _of_pipeline(pipeline: Pipeline, look: _Look) -> Iterator[Finding]:
    """Yield what is wrong with the work of a pipeline, what stops most of it first."""
    name = pipeline.name
    survey, backlog, paused = look.surveys[name], look.backlogs[name], look.paused[name]
    if survey.circuit.open:
        yield _open_circuit(survey)
    if paused.whole:
        yield Finding("the whole pipeline is paused, so its records wait", f"taskbridge resume --pipeline {name}")
    if backlog.oldest_seconds > OLD_SECONDS + pipeline.policy.spacing.last_ttl / 1000:
        command = shlex.join(("taskbridge", "inspect", backlog.oldest_tenant or "", "--pipeline", name))
        yield Finding(
            f"records wait, the oldest for {backlog.oldest_seconds / 60:,.0f} min, of {backlog.oldest_tenant!r}",
            f"{command} says why",
            tenant=backlog.oldest_tenant,
        )
    if survey.replaced_ms is not None and (replaced := survey.replaced_ms / 1000) <= REPLACED_SECONDS:
        on = f" on the worker {survey.replaced_on}" if survey.replaced_on else ""
        yield Finding(
            f"a run{on} gave no heartbeat and was replaced {replaced / 60:,.0f} min ago: its process died or is frozen",
            "see whether all processes of that worker are at work, and restart it if one is not",
            seconds=replaced,
        )
    if backlog.failing:
        fail = f"{_up_to(backlog.failing, 'tenant', 'fails', 'fail')}, such as {backlog.fails!r}"
        yield Finding(fail, f"taskbridge status --failing --pipeline {name}", fails=True)
    if backlog.quarantined:
        records = _up_to(backlog.quarantined, "record", "is")
        yield Finding(f"{records} in quarantine", f"taskbridge quarantine list --pipeline {name}", fails=True)
    if paused.tenants:
        command = shlex.join(("taskbridge", "resume", paused.first or "", "--pipeline", name))
        others = f"; `taskbridge status --pipeline {name}` says who else is" if paused.tenants > 1 else ""
        yield Finding(
            f"{_up_to(paused.tenants, 'tenant', 'is')} paused, such as {paused.first!r}",
            f"{command} ends it{others}",
            tenant=paused.first,
        )


def _open_circuit(survey: Survey) -> Finding:
    if not survey.runners:
        return Finding(
            "the circuit is open, and nobody has anything to do: the next record of any tenant is its probe",
            "look at what the handler calls before that comes",
            fails=True,
        )
    probes = counted(survey.circuit.probes, "probe")
    waiting = counted(survey.circuit.waiting, "tenant is", "tenants are")
    return Finding(
        f"the circuit is open, {probes} failed, {waiting} in the wait queue",
        "look at what the handler calls; `taskbridge status` shows the errors",
        grave=True,
        fails=True,
    )


def _slow_work(context: Context, look: _Look) -> dict[str, list[Finding]]:
    """Return what is wrong with the queue and the runs of the pipelines that `unserved` does not report.

    Deadlines move with each message that is published again and with each heartbeat, so frozen processes, and handlers
    that do not return, make nothing overdue.
    """
    served = {
        name: survey.tenants
        for name, survey in look.surveys.items()
        if not any(unserved(look.tails[name], context.settings.tail_interval, survey.overdue_seconds))
    }
    queued = context.inspector.longest_queued(served, context.ttl_ms)
    late = [name for name, one in queued.items() if one.seconds > QUEUED_SECONDS]
    longest = {
        name: max(LONG_RUN_SECONDS, 2 * (context.pipelines[name].soft_time_limit or 0.0)) + context.settings.run_budget
        for name in queued
    }
    progress: bool | None = False
    if late:
        running = any(run.seconds <= longest[name] for name, one in queued.items() for run in one.running)
        progress = running or context.value("past_lately", pipelines=[*look.surveys], seconds=QUEUED_SECONDS)
    found: dict[str, list[Finding]] = {name: [_slow_queue(queued[name], progress)] for name in late}
    for name, one in queued.items():
        if one.running and one.running[0].seconds > longest[name]:
            found.setdefault(name, []).append(_long_runs(one.running, longest[name]))
    return found


def _long_runs(running: Sequence[Running], longest: float) -> Finding:
    first, count = running[0], sum(one.seconds > longest for one in running)
    on = f" on the worker {first.worker}" if first.worker else ""
    others = f", and {counted(count - 1, 'other is', 'others are')} on for too long" if count > 1 else ""
    return Finding(
        f"the run of {first.tenant!r}{on} has been on for {first.seconds / 60:,.0f} min{others}: its handler does not "
        "return",
        "see what it waits for, and restart the worker (one that does not end needs `kill -9`); time-outs of what the "
        "handler calls, or the pipeline's `soft_time_limit`, end the next one",
        seconds=first.seconds,
        tenant=first.tenant,
    )


def _slow_queue(queued: Queued, progress: bool | None) -> Finding:
    """Return what is wrong if a message waits for long; `progress`: whether any run ends; None: unknown."""
    waits = f"a run message has been in the queue for {queued.seconds:,.0f} s, that of {queued.tenant!r}"
    more = "start more workers, or give them more processes (`--concurrency`)"
    frozen = (
        "the workers' pool processes are busy or frozen: restart the workers (one that does not end needs `kill -9`)"
    )
    if progress:
        sentence, remedy = f"the queue is long: {waits}", more
    elif progress is None:
        sentence, remedy = waits, f"{frozen}, or {more}"
    else:
        sentence, remedy = f"{waits}, and no run has ended in the last {QUEUED_SECONDS:.0f} s", frozen
    return Finding(sentence, remedy, progress is False, seconds=queued.seconds, tenant=queued.tenant)


def _named(pipeline: str, one: Finding) -> Finding:
    return replace(one, pipeline=pipeline, sentence=f"{pipeline}: {one.sentence}")


def _up_to(count: int, what: str, does: str, several_do: str = "are") -> str:
    if count >= MOST_COUNTED:
        return f"{count:,} or more {what}s {several_do}"
    return counted(count, f"{what} {does}", f"{what}s {several_do}")


def _sentence(findings: list[Finding], runners: int) -> str:
    if findings:
        first, *others = findings
        if not others:
            return first.sentence
        about = [name for name in dict.fromkeys(one.pipeline for one in others) if name and name != first.pipeline]
        whose = f", also about {', '.join(about[:MOST_NAMED])}" if about else ""
        cut = f" and {len(about) - MOST_NAMED:,} more" if len(about) > MOST_NAMED else ""
        return f"{first.sentence}, and {counted(len(others), 'more finding')}{whose}{cut}"
    active = (
        counted(runners, "tenant has a runner", "tenants have a runner") if runners else "nobody has anything to do"
    )
    return f"all is well: {active}, nothing fails, and nothing is held up"


def _line(context: Context, name: str, look: _Look) -> PipelineLine:
    survey, backlog, paused = look.surveys[name], look.backlogs[name], look.paused[name]
    now_ms = context.inspector.now_ms()
    runners = zip(survey.tenants, context.inspector.look(name, survey.tenants), strict=True)
    # Pending records are counted of tenants with a runner. Paused tenants, and those that no worker has found, have
    # none.
    is_cut = survey.runners > MOST_RUNNERS or backlog.pending >= MOST_COUNTED
    is_unseen = nobody_looks(look.tails[name], context.settings.tail_interval) or bool(paused.tenants or paused.whole)
    return PipelineLine(
        name,
        survey.runners,
        *backlog,
        unseen=is_cut or is_unseen,
        survey=survey,
        paused=paused.whole,
        active=[_active(one, runner, now_ms, context.ttl_ms, paused=paused.whole) for one, runner in runners],
    )


def _active(tenant: str, runner: RunnerStatus, now_ms: int, ttl_ms: int, *, paused: bool) -> ActiveTenant:
    is_running = runner.state is State.RUNNING
    return ActiveTenant(
        tenant,
        state_of(runner, now_ms, ttl_ms, paused=paused),
        max(0.0, ((runner.lease_ends_ms or 0) - now_ms) / 1000),
        runner.events,
        runner.runs,
        (runner.worker or None) if is_running else None,
        moment(runner.began_ms) if is_running else None,
    )
