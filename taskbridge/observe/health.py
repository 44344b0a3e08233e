"""Is the deployment healthy, and if not, why? `status`, `doctor` and the dashboard all report these findings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.texts import counted
from taskbridge.common.times import moment
from taskbridge.gate import RunnerStatus, State, Survey
from taskbridge.observe.context import Context
from taskbridge.observe.status import state_of
from taskbridge.observe.types import ActiveTenant, Finding, Health, PipelineLine
from taskbridge.store import Backlog, read_ages, read_backlogs, unmatched_sources

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.errors import Unavailable
    from taskbridge.gate.inspector import Queued, Running

__all__ = ["MOST_COUNTED", "MOST_RUNNERS", "health", "left_out", "nobody_looks"]

MOST_RUNNERS: Final = 100
"""Pending records are counted for this many tenants, those whose runners are due first."""
MOST_COUNTED: Final = 2_000
"""Records, failing tenants and paused tenants of a pipeline are counted up to this number."""
MOST_UNDECLARED: Final = 1_000
"""Tenants of a pipeline that is not declared here are counted up to this number."""
MOST_NAMED: Final = 3
"""How many pipelines a sentence names."""
NO_WORKER_SECONDS: Final = 15.0
"""Workers store their position at least every few seconds."""
OVERDUE_SECONDS: Final = 2.0
OVERDUE_GRAVE: Final = 30.0
"""Workers act on a deadline within a fraction of a second, unless they are busy."""
OLD_SECONDS: Final = 300.0
"""How long a record may wait, in addition to its pipeline's longest delay, before it is reported."""
REPLACED_SECONDS: Final = 3_600.0
"""For how long the replacement of a run is reported: nothing else shows that one process of a worker is frozen."""
QUEUED_SECONDS: Final = 30.0
"""How long a run message may be queued before it is reported; it is grave if no run has ended in that time."""
LONG_RUN_SECONDS: Final = 300.0
"""How long a run may take before it is reported, unless its pipeline's time limit is longer."""


class _Paused(NamedTuple):
    """The number of paused tenants of a pipeline, the first of them, and whether the whole pipeline is paused."""

    tenants: int = 0
    first: str | None = None
    whole: bool = False


class _Seen(NamedTuple):
    """A pipeline's state in Redis and in Postgres. `since_poll`: seconds since a worker last polled for its records."""

    pipeline: Pipeline
    survey: Survey
    backlog: Backlog
    since_poll: float
    paused: _Paused
    tail_interval: float

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def nobody_looks(self) -> bool:
        return nobody_looks(self.since_poll, self.tail_interval)

    @property
    def is_served(self) -> bool:
        return not self.nobody_looks and self.survey.overdue_seconds <= OVERDUE_SECONDS

    def finding(self, sentence: str, remedy: str, **more: Any) -> Finding:
        return Finding(f"{self.name}: {sentence}", remedy, pipeline=self.name, **more)


def _look(context: Context, surveys: Mapping[str, Survey]) -> list[_Seen]:
    names, database = [*surveys], context.database
    sources = {name: context.pipelines[name].source for name in names}
    first = {name: survey.tenants for name, survey in surveys.items()}
    paused = {
        row.pop("pipeline"): _Paused(**row) for row in context.rows("look_paused", pipelines=names, size=MOST_COUNTED)
    }
    backlogs = read_backlogs(database, sources, first, MOST_COUNTED)
    ages = read_ages(database, names)
    interval = context.settings.tail_interval
    return [
        _Seen(context.pipelines[name], survey, backlogs[name], ages[name].poller, paused[name], interval)
        for name, survey in surveys.items()
    ]


def health(context: Context) -> Health:
    """Return the health of the deployment, without the pipelines whose Redis is unavailable.

    Raises:
        Unavailable: no Redis is available.
    """
    surveys, errors = context.survey(context.names(), MOST_RUNNERS)
    if not surveys:
        raise next(iter(errors.values()))
    unavailable, seen = _unavailable(context, errors), _look(context, surveys)
    nobody, others = _nobody_works(seen), left_out(context)
    slow = _slow_work(context, seen)
    findings = [
        *([nobody] if nobody else ()),
        *(
            found
            for one in seen
            for found in (*_unserved(one, is_known=nobody is not None), *slow.get(one.name, ()), *_of_pipeline(one))
        ),
        *_unmatched(context),
        *([others] if others else ()),
    ]
    # The most recent problem comes first.
    findings.sort(key=lambda one: (one is not nobody, one.pipeline is None, not one.grave, one.seconds))
    findings = [*unavailable.values(), *findings]
    lines = [_line(context, one) for one in seen]
    return Health(
        colour="red" if any(one.grave for one in findings) else "yellow" if findings else "green",
        sentence=_sentence(findings, sum(one.runners for one in lines)),
        findings=findings,
        pipelines=lines,
        oldest_pending_seconds=max((one.oldest_seconds for one in lines), default=0.0),
        overdue_seconds=max((one.survey.overdue_seconds for one in lines), default=0.0),
        is_overdue=any(one.survey.overdue_seconds > OVERDUE_SECONDS for one in lines),
        seconds_since_poll=max((one.since_poll for one in seen), default=math.inf),
        is_looked_for=not any(one.nobody_looks for one in seen),
        open_circuits=[one.pipeline for one in lines if one.survey.circuit.open],
        runners=sum(one.runners for one in lines),
        workers=sorted({active.worker for one in lines for active in one.active if active.worker}),
        queued=context.queued(surveys),
        pending=sum(one.pending for one in lines),
        unseen=any(one.unseen for one in lines),
        quarantined=sum(one.quarantined for one in lines),
        paused=sum(one.paused.tenants + one.paused.whole for one in seen),
        failing=sum(one.failing for one in lines),
        unavailable=[*unavailable],
    )


def left_out(context: Context) -> Finding | None:
    """Return a finding about pipelines in Postgres that are not declared here, or None if there are none."""
    found = context.rows("undeclared_pipelines", declared=context.names(), most=MOST_UNDECLARED)
    if not found:
        return None
    first = [
        f"{row['pipeline']} ({counted(row['tenants'], 'tenant')}"
        f"{' or more' if row['tenants'] >= MOST_UNDECLARED else ''})"
        for row in found[:MOST_NAMED]
    ]
    cut = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
    return Finding(
        f"pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: {', '.join(first)}{cut}",
        "add their modules to TASKBRIDGE_PIPELINES, or run `taskbridge pipeline remove` for each that no longer exists",
    )


def nobody_looks(seconds_since_poll: float, tail_interval: float) -> bool:
    """Whether no worker polls for a pipeline's records; `seconds_since_poll`: seconds since the last poll."""
    return seconds_since_poll > NO_WORKER_SECONDS + tail_interval


def _unavailable(context: Context, errors: Mapping[str, Unavailable]) -> dict[str, Finding]:
    """Return a finding for each Redis that is unavailable, by its name."""
    found = {}
    for error in dict.fromkeys(errors.values()):
        names = [name for name, one in errors.items() if one is error]
        redis = context.pipelines[names[0]].redis
        found[redis or "default"] = Finding(
            f"Redis ({redis or 'default'}): {error.what}; its pipelines ({', '.join(names)}) are not shown",
            error.remedy,
            grave=True,
        )
    return found


def _nobody_works(seen: Sequence[_Seen]) -> Finding | None:
    """Return a single finding for all pipelines if no worker polls for any of them."""
    if len(seen) < 2 or not all(one.nobody_looks for one in seen):
        return None
    last = min(one.since_poll for one in seen)
    since = "" if math.isinf(last) else f" for {last:,.0f} s"
    return Finding(
        f"no worker is running: none has polled any of the {len(seen):,} pipelines{since}",
        "start a worker that declares them; if one is running, read its log",
        grave=True,
        seconds=last,
    )


def _unserved(one: _Seen, *, is_known: bool) -> Iterator[Finding]:
    """Yield findings that no worker serves a pipeline (unless that has been reported), or too few workers."""
    overdue = one.survey.overdue_seconds
    if one.nobody_looks and not is_known:
        since = "has ever polled for its records"
        if not math.isinf(one.since_poll):
            since = f"has polled for records for {one.since_poll:,.0f} s"
        remedy = "start a worker that declares the pipeline; if one is running, read its log"
        yield one.finding(f"no worker {since}", remedy, grave=True, seconds=one.since_poll)
    if overdue > OVERDUE_SECONDS:
        yield one.finding(
            f"a run was due {overdue:,.0f} s ago, and no worker has begun it",
            "start more workers, or check whether one is frozen",
            grave=overdue > OVERDUE_GRAVE,
            seconds=overdue,
        )


def _unmatched(context: Context) -> Iterator[Finding]:
    for source, count in unmatched_sources(context.database, MOST_COUNTED).items():
        messages = _up_to(count, "message", "matches", "match")
        remedy = f"taskbridge quarantine list --unmatched --pipeline {source}"
        yield Finding(f"{source}: {messages} no criterion", remedy)


def _of_pipeline(one: _Seen) -> Iterator[Finding]:
    """Yield what is wrong with a pipeline, the most serious first."""
    name, backlog, paused = one.name, one.backlog, one.paused
    if one.survey.circuit.open:
        yield _open_circuit(one)
    if paused.whole:
        yield one.finding("the whole pipeline is paused", f"taskbridge resume --pipeline {name}")
    if backlog.oldest_seconds > OLD_SECONDS + one.pipeline.policy.spacing.last_ttl / 1000:
        command = shlex.join(("taskbridge", "inspect", backlog.oldest_tenant or "", "--pipeline", name))
        yield one.finding(
            f"the oldest pending record, of {backlog.oldest_tenant!r}, has waited for "
            f"{backlog.oldest_seconds / 60:,.0f} min",
            f"`{command}` shows why",
            tenant=backlog.oldest_tenant,
        )
    if backlog.failing:
        fail = f"{_up_to(backlog.failing, 'tenant', 'is', 'are')} failing, such as {backlog.fails!r}"
        yield one.finding(fail, f"taskbridge status --failing --pipeline {name}", fails=True)
    if backlog.quarantined:
        records = _up_to(backlog.quarantined, "record", "is", "are")
        yield one.finding(f"{records} in quarantine", f"taskbridge quarantine list --pipeline {name}", fails=True)
    if paused.tenants:
        command = shlex.join(("taskbridge", "resume", paused.first or "", "--pipeline", name))
        others = f"; `taskbridge status --pipeline {name}` lists the others" if paused.tenants > 1 else ""
        yield one.finding(
            f"{_up_to(paused.tenants, 'tenant', 'is', 'are')} paused, such as {paused.first!r}",
            f"resume it with `{command}`{others}",
            tenant=paused.first,
        )
    if one.survey.replaced_ms is not None and (seconds := one.survey.replaced_ms / 1000) <= REPLACED_SECONDS:
        on = f" on the worker {one.survey.replaced_on}" if one.survey.replaced_on else ""
        yield one.finding(
            f"a run{on} sent no heartbeat and was replaced {seconds / 60:,.0f} min ago: its process died or is frozen, "
            "or Redis was not available to it",
            "check whether all processes of that worker are working, and restart it if one is not; if Redis was "
            "restarted, failed over or refused writes at that time, nothing is left to do here",
            seconds=seconds,
        )


def _open_circuit(one: _Seen) -> Finding:
    if not one.survey.runners:
        return one.finding(
            "the circuit is open, and no tenant has any work: the next record of any tenant will be its probe",
            "check the service that the handler calls before then",
            fails=True,
        )
    probes = counted(one.survey.circuit.probes, "probe")
    waiting = counted(one.survey.circuit.waiting, "tenant is", "tenants are")
    return one.finding(
        f"the circuit is open, {probes} failed, {waiting} in the wait queue",
        "check the service that the handler calls; `taskbridge status` shows the errors",
        grave=True,
        fails=True,
    )


def _slow_work(context: Context, seen: Sequence[_Seen]) -> dict[str, list[Finding]]:
    """Return findings about the queue and the runs of pipelines that are served.

    Deadlines move with each republished message and with each heartbeat, so frozen processes and handlers that do not
    return never make a deadline overdue.
    """
    served = {one.name: one for one in seen if one.is_served}
    queued = context.longest_queued({name: one.survey.tenants for name, one in served.items()}, context.ttl_ms)
    late = [name for name, queue in queued.items() if queue.seconds > QUEUED_SECONDS]
    longest = {
        name: max(LONG_RUN_SECONDS, 2 * (one.pipeline.soft_time_limit or 0.0)) + context.settings.run_budget
        for name, one in served.items()
    }
    progress: bool | None = False
    if late:
        running = any(run.seconds <= longest[name] for name, queue in queued.items() for run in queue.running)
        names = [one.name for one in seen]
        progress = running or context.value("past_lately", pipelines=names, seconds=QUEUED_SECONDS)
    found = {name: [_slow_queue(served[name], queued[name], progress)] for name in late}
    for name, queue in queued.items():
        if queue.running and queue.running[0].seconds > longest[name]:
            found.setdefault(name, []).append(_long_runs(served[name], queue.running, longest[name]))
    return found


def _long_runs(one: _Seen, running: Sequence[Running], longest: float) -> Finding:
    first, count = running[0], sum(run.seconds > longest for run in running)
    on = f" on the worker {first.worker}" if first.worker else ""
    others = f", and {counted(count - 1, 'other run')} for too long" if count > 1 else ""
    return one.finding(
        f"the run of {first.tenant!r}{on} has been running for {first.seconds / 60:,.0f} min{others}: its handler does "
        "not return",
        "find out what it waits for, and restart the worker (with `kill -9` if it does not stop); to prevent this, set "
        "timeouts in the handler, or a `soft_time_limit` for the pipeline",
        seconds=first.seconds,
        tenant=first.tenant,
    )


def _slow_queue(one: _Seen, queued: Queued, progress: bool | None) -> Finding:
    """Return a finding about a message that has been queued for long; `progress`: whether runs end; None: unknown."""
    sentence = f"a run message has been in the queue for {queued.seconds:,.0f} s, that of {queued.tenant!r}"
    more = "start more workers, or give them more processes (`--concurrency`)"
    remedy = "the workers' pool processes are busy or frozen: restart the workers (with `kill -9` if one does not stop)"
    if progress:
        sentence, remedy = f"the queue is long: {sentence}", more
    elif progress is None:
        remedy = f"{remedy}, or {more}"
    else:
        sentence = f"{sentence}, and no run has ended in the last {QUEUED_SECONDS:.0f} s"
    return one.finding(sentence, remedy, grave=progress is False, seconds=queued.seconds, tenant=queued.tenant)


def _up_to(count: int, what: str, does: str, several_do: str) -> str:
    if count >= MOST_COUNTED:
        return f"{count:,} or more {what}s {several_do}"
    return counted(count, f"{what} {does}", f"{what}s {several_do}")


def _sentence(findings: list[Finding], runners: int) -> str:
    if not findings:
        active = counted(runners, "tenant has a runner", "tenants have a runner") if runners else "no tenant is active"
        return f"all is well: {active}, nothing is failing, and nothing is stuck"
    first, *others = findings
    if not others:
        return first.sentence
    about = [name for name in dict.fromkeys(one.pipeline for one in others) if name and name != first.pipeline]
    whose = f", also about {', '.join(about[:MOST_NAMED])}" if about else ""
    cut = f" and {len(about) - MOST_NAMED:,} more" if len(about) > MOST_NAMED else ""
    return f"{first.sentence}, and {counted(len(others), 'more finding')}{whose}{cut}"


def _line(context: Context, one: _Seen) -> PipelineLine:
    survey, paused = one.survey, one.paused
    inspector = context.inspector_of(one.name)
    now_ms = inspector.now_ms()
    runners = zip(survey.tenants, inspector.look(one.name, survey.tenants), strict=True)
    # Only tenants with a runner are counted. Paused tenants, and those that no worker has found yet, have none.
    is_cut = survey.runners > MOST_RUNNERS or one.backlog.pending >= MOST_COUNTED
    return PipelineLine(
        one.name,
        survey.runners,
        *one.backlog,
        unseen=is_cut or one.nobody_looks or bool(paused.tenants or paused.whole),
        survey=survey,
        paused=paused.whole,
        active=[_active(tenant, runner, now_ms, context.ttl_ms, paused=paused.whole) for tenant, runner in runners],
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
