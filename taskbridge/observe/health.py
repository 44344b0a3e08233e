"""Is the deployment healthy, and if not, why? `status`, `doctor` and the dashboard all report these findings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from taskbridge.common.texts import counted
from taskbridge.gate import Survey
from taskbridge.observe.context import Context
from taskbridge.store import Backlog, read_ages, read_backlogs, unmatched_sources

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.errors import Unavailable
    from taskbridge.gate.inspector import Queued, Running

__all__ = ["MOST_RUNNERS", "Finding", "Health", "PipelineHealth", "health", "left_out", "nobody_looks"]

MOST_RUNNERS: Final = 100
"""Pending records are counted for this many tenants, those whose runners are due first."""
MOST_COUNTED: Final = 2_000
"""Records, failing tenants and paused tenants of a pipeline are counted up to this number."""
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


Colour = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator may have to act on, in one line of text.

    `remedy`: a command or advice; may be empty. `grave`: work has stopped, and nobody stopped it on purpose.
    `tenant`: the tenant that the sentence names.
    """

    sentence: str
    remedy: str = ""
    grave: bool = False
    pipeline: str | None = None
    tenant: str | None = None

    @property
    def colour(self) -> Colour:
        """Red if it is grave, otherwise yellow."""
        return "red" if self.grave else "yellow"


class PipelineHealth(NamedTuple):
    """The current state of a pipeline, in Redis and in Postgres. Most counts have a limit.

    `paused`: the first paused tenants; `is_paused`: whether the whole pipeline is. `seconds_since_poll`: seconds since
    a worker last polled for its records; infinite if never. `unseen`: there may be more pending records, and older
    ones, because these are counted only for tenants that are paused or have a runner.
    """

    declared: Pipeline
    survey: Survey
    backlog: Backlog
    paused: Sequence[str]
    is_paused: bool
    seconds_since_poll: float
    is_polled: bool

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.declared.name

    @property
    def unseen(self) -> bool:
        """Whether there may be more pending records than those of the backlog."""
        is_cut = max(self.survey.runners, len(self.paused)) > MOST_RUNNERS or self.backlog.pending >= MOST_COUNTED
        return is_cut or self.is_paused or not self.is_polled

    @property
    def is_served(self) -> bool:
        """Whether workers poll for records and act on deadlines."""
        return self.is_polled and self.survey.overdue_seconds <= OVERDUE_SECONDS

    def finding(self, sentence: str, remedy: str, *, grave: bool = False, tenant: str | None = None) -> Finding:
        """Return a finding about the pipeline."""
        return Finding(f"{self.pipeline}: {sentence}", remedy, grave, self.pipeline, tenant)


@dataclass(frozen=True, slots=True)
class Health:
    """The health of all pipelines, without those on the Redis servers that are `unavailable`."""

    sentence: str
    findings: list[Finding]
    pipelines: list[PipelineHealth]
    unavailable: list[str]

    @property
    def colour(self) -> Colour:
        """The colour of the gravest finding; green if there is none."""
        return "red" if any(one.grave for one in self.findings) else "yellow" if self.findings else "green"


def _look(context: Context, surveys: Mapping[str, Survey]) -> list[PipelineHealth]:
    names, database = [*surveys], context.database
    sources = {name: context.pipelines[name].source for name in names}
    pauses = {row["pipeline"]: row for row in context.rows("look_paused", pipelines=names, size=MOST_COUNTED)}
    tenants = {name: survey.tenants for name, survey in surveys.items()}
    backlogs = read_backlogs(database, sources, tenants, MOST_COUNTED)
    ages = read_ages(database, names)
    interval = context.settings.tail_interval
    return [
        PipelineHealth(
            context.pipelines[name],
            survey,
            backlogs[name],
            pauses[name]["tenants"],
            pauses[name]["whole"],
            ages[name].poller,
            not nobody_looks(ages[name].poller, interval),
        )
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
    unavailable, pipelines = _unavailable(context, errors), _look(context, surveys)
    nobody, others = _nobody_works(pipelines), left_out(context)
    slow = _slow_work(context, pipelines)
    findings = [
        *(
            finding
            for one in pipelines
            for finding in (
                *_unserved(one, is_known=nobody is not None),
                *slow.get(one.pipeline, ()),
                *_of_pipeline(one),
            )
        ),
        *_unmatched(context),
        *([others] if others else ()),
    ]
    findings.sort(key=lambda one: not one.grave)
    findings = [*unavailable.values(), *([nobody] if nobody else ()), *findings]
    return Health(_sentence(findings, pipelines), findings, pipelines, [*unavailable])


def left_out(context: Context) -> Finding | None:
    """Return a finding about pipelines in Postgres that are not declared here, or None if there are none."""
    names = [row["pipeline"] for row in context.rows("undeclared_pipelines", declared=context.names())]
    if not names:
        return None
    return Finding(
        f"pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: {', '.join(names)}",
        "set TASKBRIDGE_PIPELINES to what their workers use; in a Django project, run `manage.py taskbridge` instead",
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


def _nobody_works(pipelines: Sequence[PipelineHealth]) -> Finding | None:
    """Return a single finding for all pipelines if no worker polls for any of them."""
    if len(pipelines) < 2 or any(one.is_polled for one in pipelines):
        return None
    last = min(one.seconds_since_poll for one in pipelines)
    since = "" if math.isinf(last) else f" for {last:,.0f} s"
    return Finding(
        f"no worker is running: none has polled any of the {len(pipelines):,} pipelines{since}",
        "start a worker that declares them; if one is running, read its log",
        grave=True,
    )


def _unserved(one: PipelineHealth, *, is_known: bool) -> Iterator[Finding]:
    """Yield findings that no worker serves a pipeline (unless that has been reported), or too few workers."""
    overdue = one.survey.overdue_seconds
    if not one.is_polled and not is_known:
        since = "has ever polled for its records"
        if not math.isinf(one.seconds_since_poll):
            since = f"has polled for records for {one.seconds_since_poll:,.0f} s"
        remedy = "start a worker that declares the pipeline; if one is running, read its log"
        yield one.finding(f"no worker {since}", remedy, grave=True)
    if overdue > OVERDUE_SECONDS:
        yield one.finding(
            f"a run was due {overdue:,.0f} s ago, and no worker has begun it",
            "start more workers, or check whether one is frozen",
            grave=overdue > OVERDUE_GRAVE,
        )


def _unmatched(context: Context) -> Iterator[Finding]:
    for source, count in unmatched_sources(context.database, MOST_COUNTED).items():
        messages = _up_to(count, "message", "matches", "match")
        remedy = f"taskbridge quarantine list --unmatched --pipeline {source}"
        yield Finding(f"{source}: {messages} no criterion", remedy)


def _of_pipeline(one: PipelineHealth) -> Iterator[Finding]:
    """Yield what is wrong with a pipeline, the most serious first."""
    name, backlog, survey = one.pipeline, one.backlog, one.survey
    if survey.circuit.open:
        yield _open_circuit(one)
    if one.is_paused:
        yield one.finding("the whole pipeline is paused", f"taskbridge resume --pipeline {name}")
    if backlog.oldest_seconds > OLD_SECONDS + one.declared.policy.spacing.last_ttl / 1000:
        command = shlex.join(("taskbridge", "inspect", backlog.oldest_tenant or "", "--pipeline", name))
        yield one.finding(
            f"the oldest pending record, of {backlog.oldest_tenant!r}, has waited for "
            f"{backlog.oldest_seconds / 60:,.0f} min",
            f"`{command}` shows why",
            tenant=backlog.oldest_tenant,
        )
    if backlog.failing:
        tenants = _up_to(backlog.failing, "tenant", "is", "are")
        yield one.finding(
            f"{tenants} failing, such as {backlog.fails!r}", f"taskbridge status --failing --pipeline {name}"
        )
    if backlog.quarantined:
        records = _up_to(backlog.quarantined, "record", "is", "are")
        yield one.finding(f"{records} in quarantine", f"taskbridge quarantine list --pipeline {name}")
    if one.paused:
        first, count = one.paused[0], len(one.paused)
        command = shlex.join(("taskbridge", "resume", first, "--pipeline", name))
        others = f"; `taskbridge status --pipeline {name}` lists the others" if count > 1 else ""
        yield one.finding(
            f"{_up_to(count, 'tenant', 'is', 'are')} paused, such as {first!r}",
            f"resume it with `{command}`{others}",
            tenant=first,
        )
    if survey.replaced_ms is not None and (seconds := survey.replaced_ms / 1000) <= REPLACED_SECONDS:
        on = f" on the worker {survey.replaced_on}" if survey.replaced_on else ""
        yield one.finding(
            f"a run{on} sent no heartbeat and was replaced {seconds / 60:,.0f} min ago: its process died or is frozen, "
            "or Redis was not available to it",
            "check whether all processes of that worker are working, and restart it if one is not; if Redis was "
            "restarted, failed over or refused writes at that time, nothing is left to do here",
        )


def _open_circuit(one: PipelineHealth) -> Finding:
    if not one.survey.runners:
        return one.finding(
            "the circuit is open, and no tenant has any work: the next record of any tenant will be its probe",
            "check the service that the handler calls before then",
        )
    probes = counted(one.survey.circuit.probes, "probe")
    waiting = counted(one.survey.circuit.waiting, "tenant is", "tenants are")
    return one.finding(
        f"the circuit is open, {probes} failed, {waiting} in the wait queue",
        "check the service that the handler calls; `taskbridge status` shows the errors",
        grave=True,
    )


def _slow_work(context: Context, pipelines: Sequence[PipelineHealth]) -> dict[str, list[Finding]]:
    """Return findings about the queue and the runs of pipelines that are served.

    Deadlines move with each republished message and with each heartbeat, so frozen processes and handlers that do not
    return never make a deadline overdue.
    """
    served = {one.pipeline: one for one in pipelines if one.is_served}
    queues = context.longest_queued({name: one.survey.tenants for name, one in served.items()})
    longest = {
        name: max(LONG_RUN_SECONDS, 2 * (one.declared.soft_time_limit or 0.0)) + context.settings.run_budget
        for name, one in served.items()
    }
    progress: bool | None = True
    if any(queue.seconds > QUEUED_SECONDS for queue in queues.values()):
        names = [one.pipeline for one in pipelines]
        progress = any(
            run.seconds <= longest[name] for name, queue in queues.items() for run in queue.running
        ) or context.value("past_lately", pipelines=names, seconds=QUEUED_SECONDS)
    return {
        name: [
            *_slow_queue(served[name], queue, progress),
            *_long_runs(served[name], [run for run in queue.running if run.seconds > longest[name]]),
        ]
        for name, queue in queues.items()
    }


def _slow_queue(one: PipelineHealth, queue: Queued, progress: bool | None) -> Iterator[Finding]:
    """Yield a finding if a message has been queued for long; `progress`: whether runs end; None: unknown."""
    if queue.seconds <= QUEUED_SECONDS:
        return
    sentence = f"a run message has been in the queue for {queue.seconds:,.0f} s, that of {queue.tenant!r}"
    more = "start more workers, or give them more processes (`--concurrency`)"
    if progress:
        yield one.finding(f"the queue is long: {sentence}", more, tenant=queue.tenant)
        return
    ended = "" if progress is None else f", and no run has ended in the last {QUEUED_SECONDS:.0f} s"
    yield one.finding(
        f"{sentence}{ended}",
        "the workers' pool processes are busy or frozen: restart the workers (with `kill -9` if one does not stop), or "
        f"{more}",
        grave=progress is False,
        tenant=queue.tenant,
    )


def _long_runs(one: PipelineHealth, runs: Sequence[Running]) -> Iterator[Finding]:
    """Yield a finding about runs that have taken too long, the longest first."""
    if not runs:
        return
    first = runs[0]
    on = f" on the worker {first.worker}" if first.worker else ""
    others = f", and {counted(len(runs) - 1, 'other run')} for too long" if len(runs) > 1 else ""
    yield one.finding(
        f"the run of {first.tenant!r}{on} has been running for {first.seconds / 60:,.0f} min{others}: its handler does "
        "not return",
        "find out what it waits for, and restart the worker (with `kill -9` if it does not stop); to prevent this, set "
        "timeouts in the handler, or a `soft_time_limit` for the pipeline",
        tenant=first.tenant,
    )


def _up_to(count: int, what: str, does: str, several_do: str) -> str:
    if count >= MOST_COUNTED:
        return f"{count:,} or more {what}s {several_do}"
    return counted(count, f"{what} {does}", f"{what}s {several_do}")


def _sentence(findings: Sequence[Finding], pipelines: Sequence[PipelineHealth]) -> str:
    if not findings:
        runners = sum(one.survey.runners for one in pipelines)
        active = counted(runners, "tenant has a runner", "tenants have a runner") if runners else "no tenant is active"
        return f"all is well: {active}, nothing is failing, and nothing is stuck"
    others = f", and {counted(len(findings) - 1, 'more finding')}" if len(findings) > 1 else ""
    return f"{findings[0].sentence}{others}"
