"""What is wrong with the work of a pipeline: `taskbridge doctor`, the dashboard and `Answers.health` say the same."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from taskbridge.common.texts import counted
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.gate import Survey
from taskbridge.store import MOST_UNDECLARED, Backlog, Past, PausedCount

if TYPE_CHECKING:
    from taskbridge.gate.inspector import Inspector, Queued, Running
    from taskbridge.settings import Settings
    from taskbridge.store.db import Database

__all__ = [
    "MOST_COUNTED",
    "MOST_RUNNERS",
    "Trouble",
    "is_overdue",
    "nobody_looks",
    "nobody_works",
    "slow_work",
    "troubles",
    "undeclared",
    "unmatched",
    "unseen",
    "unserved",
]

MOST_RUNNERS: Final = 100
"""Of so many tenants whose runners are due first pending records are counted."""
MOST_COUNTED: Final = 2_000
"""Records, failing tenants and paused tenants of a pipeline are counted up to this."""
OLD_SECONDS: Final = 300.0
"""A record that waits for so long, beside its pipeline's longest delay, is worth a word."""
NO_WORKER_SECONDS: Final = 15.0
"""A worker notes at least every few seconds how far it has looked for records."""
OVERDUE_SECONDS: Final = 2.0
OVERDUE_GRAVE: Final = 30.0
"""Workers act on a deadline within a fraction of a second, unless they are busy."""
REPLACED_SECONDS: Final = 3_600.0
"""A run that was replaced is told of for so long: nothing else tells of the one frozen process of a worker."""
MOST_NAMED: Final = 3
"""So many pipelines are named in one sentence."""

QUEUED_SECONDS: Final = 30.0
"""A run message that waits for so long is worth a word, and it is grave where no run has ended within this time."""
LONG_RUN_SECONDS: Final = 300.0
"""A run that is on for so long is worth a word, where no limit of its pipeline lets one take longer."""


class Trouble(NamedTuple):
    """What is wrong, and what to do.

    `grave`: nothing of the pipeline is handled, and nobody wanted that. `seconds`: for how long; infinite where nobody
    knows. `tenant`: the one that the sentence names. `page`: of the dashboard, which tells more where no tenant is
    named.
    """

    sentence: str
    remedy: str
    grave: bool = False
    seconds: float = math.inf
    page: Literal["checks", "failing"] = "checks"
    tenant: str | None = None


def nobody_looks(tail_seconds: float, tail_interval: float) -> bool:
    """Whether no worker has looked for records of a pipeline for long; `tail_seconds`: since the last look."""
    return tail_seconds > NO_WORKER_SECONDS + tail_interval


def is_overdue(overdue_seconds: float) -> bool:
    """Whether a deadline passed so long ago that the workers should have acted on it."""
    return overdue_seconds > OVERDUE_SECONDS


def nobody_works(tail_seconds: float, pipelines: int) -> Trouble:
    """Return what is wrong where nobody looks for records of any pipeline; `tail_seconds`: since the last look."""
    since = "" if math.isinf(tail_seconds) else f" for {tail_seconds:,.0f} s"
    return Trouble(
        f"no worker is at work: none has looked for records of any of the {pipelines:,} pipelines{since}",
        "start a worker that declares them; if one runs, read its log",
        True,
        tail_seconds,
    )


def undeclared(tenants: Mapping[str, int]) -> Trouble:
    """Return what is wrong where Postgres knows pipelines that this process does not declare, with these tenants."""
    first = [
        f"{name} ({counted(count, 'tenant')}{' or more' if count >= MOST_UNDECLARED else ''})"
        for name, count in [*tenants.items()][:MOST_NAMED]
    ]
    cut = f" and {len(tenants) - MOST_NAMED:,} more" if len(tenants) > MOST_NAMED else ""
    them = "it" if len(tenants) == 1 else "them"
    return Trouble(
        f"nothing is known here of {', '.join(first)}{cut}: this process does not declare {them}",
        f"name the modules that declare {them} in TASKBRIDGE_PIPELINES, or `taskbridge pipeline remove` it",
    )


def unmatched(source: str, count: int, most: int) -> Trouble:
    """Return what is wrong where messages of a source match no criterion; up to `most` were counted."""
    exact = counted(count, "message matches", "messages match")
    messages = exact if count < most else f"{count:,} or more messages match"
    return Trouble(f"{source}: {messages} no criterion", f"taskbridge quarantine list --unmatched --pipeline {source}")


def unseen(
    survey: Survey, backlog: Backlog, *, is_looked_for: bool, is_paused: bool, runners: int, records: int
) -> bool:
    """Whether there may be more pending records of a pipeline than `backlog` has, and older ones.

    Counted are those of tenants with a runner. Tenants that are paused, or that no worker has found, have none.

    Args:
        survey: has the runners that are due first.
        backlog: has the records of their tenants.
        is_looked_for: whether workers look for records.
        is_paused: whether a tenant, or the pipeline, is paused.
        runners: so many tenants were counted at the most.
        records: so many records were counted at the most.
    """
    return not is_looked_for or is_paused or survey.runners > runners or backlog.pending >= records


def unserved(tail_seconds: float, tail_interval: float, overdue_seconds: float) -> Iterator[Trouble]:
    """Yield what tells that no worker serves a pipeline, or that they are too few.

    Args:
        tail_seconds: since a worker has looked for its records.
        tail_interval: how often one does.
        overdue_seconds: since the first of its deadlines that passed.
    """
    if math.isinf(tail_seconds):
        yield Trouble("no worker has ever looked for its records", "start a worker that declares the pipeline", True)
    elif nobody_looks(tail_seconds, tail_interval):
        yield Trouble(
            f"no worker has looked for records for {tail_seconds:,.0f} s",
            "start a worker that declares the pipeline; if one runs, read its log",
            True,
            tail_seconds,
        )
    if is_overdue(overdue_seconds):
        yield Trouble(
            f"a run was due {overdue_seconds:,.0f} s ago, and no worker has begun it",
            "start more workers, or see whether one is frozen",
            overdue_seconds > OVERDUE_GRAVE,
            overdue_seconds,
        )


def slow_work(
    inspector: Inspector,
    database: Database,
    settings: Settings,
    pipelines: Pipelines | Mapping[str, Pipeline],
    surveys: Mapping[str, Survey],
    tails: Mapping[str, float],
) -> dict[str, list[Trouble]]:
    """Return what is wrong with the queue and the runs of each pipeline that `unserved` says nothing of.

    Deadlines move, with each message that is published again and with each heartbeat. So processes that are frozen, or
    whose calls do not come back, make nothing overdue. `tails` is as in `unserved`.
    """
    served = {
        name: one.tenants
        for name, one in surveys.items()
        if not nobody_looks(tails[name], settings.tail_interval) and not is_overdue(one.overdue_seconds)
    }
    found = inspector.longest_queued(served, round(settings.runner_ttl * 1000))
    late = {name: one for name, one in found.items() if one.seconds > QUEUED_SECONDS}
    longest = {name: _longest_run(pipelines[name], settings.run_budget) for name in found}
    is_going = bool(late) and (
        any(run.seconds <= longest[name] for name, one in found.items() for run in one.running)
        or Past(database).ended_within([*surveys], QUEUED_SECONDS)
    )
    troubles: dict[str, list[Trouble]] = {}
    for name, one in found.items():
        here = [_slow_queue(one, is_going)] if name in late else []
        if one.running and one.running[0].seconds > longest[name]:
            here.append(_long_runs(one.running, longest[name]))
        if here:
            troubles[name] = here
    return troubles


def _longest_run(pipeline: Pipeline, run_budget: float) -> float:
    """Return for how many seconds a run of a pipeline may be on until that is worth a word."""
    return max(LONG_RUN_SECONDS, 2 * (pipeline.soft_time_limit or 0.0)) + run_budget


def _long_runs(running: Sequence[Running], longest: float) -> Trouble:
    first, count = running[0], sum(one.seconds > longest for one in running)
    on = f" on the worker {first.worker}" if first.worker else ""
    others = f", and {counted(count - 1, 'other is', 'others are')} on for too long" if count > 1 else ""
    return Trouble(
        f"the run of {first.tenant!r}{on} has been on for {first.seconds / 60:,.0f} min{others}: its handler does not "
        "come back",
        "see what it waits for, and restart the worker (one that does not end needs `kill -9`); time-outs of what the "
        "handler calls, or the pipeline's `soft_time_limit`, end the next one",
        seconds=first.seconds,
        tenant=first.tenant,
    )


def _slow_queue(queued: Queued, is_going: bool | None) -> Trouble:
    """Return what is wrong where a message waits for long; `is_going`: whether any run is, None: nobody knows."""
    waits = f"a run message has been in the queue for {queued.seconds:,.0f} s, that of {queued.tenant!r}"
    more = "start more workers, or give them more processes (`--concurrency`)"
    frozen = (
        "the workers' pool processes are busy or frozen: restart the workers (one that does not end needs `kill -9`)"
    )
    if is_going:
        return Trouble(f"the queue is long: {waits}", more, False, queued.seconds, tenant=queued.tenant)
    if is_going is None:
        return Trouble(waits, f"{frozen}, or {more}", False, queued.seconds, tenant=queued.tenant)
    waits = f"{waits}, and no run has ended in the last {QUEUED_SECONDS:.0f} s"
    return Trouble(waits, frozen, True, queued.seconds, tenant=queued.tenant)


def troubles(pipeline: Pipeline, survey: Survey, backlog: Backlog, paused: PausedCount) -> Iterator[Trouble]:
    """Yield what is wrong with the work of a pipeline, what stops most of it first."""
    name = pipeline.name
    if survey.circuit.open and not survey.runners:
        yield Trouble(
            "the circuit is open, and nobody has anything to do: the next record of any tenant is its probe",
            "look at what the handler calls before that comes",
            page="failing",
        )
    elif survey.circuit.open:
        probes = counted(survey.circuit.probes, "probe")
        waiting = counted(survey.circuit.waiting, "tenant is", "tenants are")
        yield Trouble(
            f"the circuit is open, {probes} failed, {waiting} in the wait queue",
            "look at what the handler calls; `taskbridge status` shows the errors",
            grave=True,
            page="failing",
        )
    if paused.whole:
        yield Trouble("the whole pipeline is paused, so its records wait", f"taskbridge resume --pipeline {name}")
    if backlog.oldest_seconds > OLD_SECONDS + pipeline.policy.spacing.last_ttl / 1000:
        yield Trouble(
            f"records wait, the oldest for {backlog.oldest_seconds / 60:,.0f} min, of {backlog.oldest_tenant!r}",
            f"{shlex.join(('taskbridge', 'why', backlog.oldest_tenant or '', '--pipeline', name))} says why",
            tenant=backlog.oldest_tenant,
        )
    if survey.replaced_ms is not None and (replaced := survey.replaced_ms / 1000) <= REPLACED_SECONDS:
        on = f" on the worker {survey.replaced_on}" if survey.replaced_on else ""
        yield Trouble(
            f"a run{on} gave no heartbeat and was replaced {replaced / 60:,.0f} min ago: its process died or is frozen",
            "see whether all processes of that worker are at work, and restart it if one is not",
            seconds=replaced,
        )
    if backlog.failing:
        fail = f"{_up_to(backlog.failing, 'tenant', 'fails', 'fail')}, such as {backlog.fails!r}"
        yield Trouble(fail, f"taskbridge status --failing --pipeline {name}", page="failing")
    if backlog.quarantined:
        records = _up_to(backlog.quarantined, "record", "is")
        yield Trouble(f"{records} in quarantine", f"taskbridge quarantine list --pipeline {name}", page="failing")
    if paused.tenants:
        yield Trouble(
            f"{_up_to(paused.tenants, 'tenant', 'is')} paused, such as {paused.first!r}",
            f"{shlex.join(('taskbridge', 'resume', paused.first or '', '--pipeline', name))} ends it"
            + (f"; `taskbridge status --pipeline {name}` says who else is" if paused.tenants > 1 else ""),
            tenant=paused.first,
        )


def _up_to(count: int, what: str, does: str, several_do: str = "are") -> str:
    if count >= MOST_COUNTED:
        return f"{count:,} or more {what}s {several_do}"
    return counted(count, f"{what} {does}", f"{what}s {several_do}")
