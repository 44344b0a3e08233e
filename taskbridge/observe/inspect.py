"""Why a tenant is not running."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, ahead, moment, span
from taskbridge.gate import RunnerStatus, State
from taskbridge.gate.inspector import CircuitStatus, Hold, Ranks
from taskbridge.observe.context import Context
from taskbridge.observe.health import nobody_looks
from taskbridge.observe.history import RunRow, runs
from taskbridge.observe.status import (
    LATE_MS,
    Cause,
    QuarantineRow,
    TenantLine,
    is_alive,
    late_ms,
    quarantined,
    tenant_values,
)
from taskbridge.store import Pause, read_ages
from taskbridge.store.stats import WaitingRecords

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline

__all__ = ["Holder", "Seen", "TenantAnswer", "tenant", "why"]

MOST_RECORDS: Final = 10_000
"""Records of each state are counted up to this number."""
SHOWN_RUNS: Final = 20
SHOWN_QUARANTINE: Final = 10
ORDER_OF_TURNS: Final = "pipelines alternate, and the tenants of a pipeline are served in order of arrival"


@dataclass(frozen=True, slots=True)
class Holder:
    """The current run of a tenant: its token and worker, when it began, and its last heartbeat by Redis's clock.

    `alive`: whether the heartbeat is recent enough; None if unknown.
    """

    token: str
    worker: str | None
    since: datetime | None
    beat_at: datetime | None
    alive: bool | None


@dataclass(frozen=True, slots=True)
class TenantAnswer(TenantLine):
    """A tenant in detail; its `sentence` says why it is not running, or since when it has been.

    `delay`: for a pipeline with criteria, the records that wait.
    """

    cause: Cause
    sentence: str
    holder: Holder | None
    pause: Pause | None
    quarantine: list[QuarantineRow]
    """The first 10."""
    runs_shown: list[RunRow]
    """The last 20, the last one first."""
    delay: WaitingRecords | None

    @property
    def known(self) -> bool:
        """Whether the pipeline knows the tenant."""
        return self.cause is not Cause.UNKNOWN


class Seen(NamedTuple):
    """Everything that determines why a tenant is not running."""

    declared: Pipeline
    runner: RunnerStatus
    ranks: Ranks
    circuit: CircuitStatus
    counts: dict[str, Any]
    pause: Pause | None
    now_ms: int
    seconds_since_poll: float
    ttl_ms: int
    tail_interval: float

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""
        return self.declared.name

    @property
    def nobody_looks(self) -> bool:
        """Whether no worker polls for records of the pipeline."""
        return nobody_looks(self.seconds_since_poll, self.tail_interval)

    @property
    def late_ms(self) -> int:
        """How many milliseconds ago the deadline passed."""
        return late_ms(self.runner, self.now_ms)

    @property
    def due(self) -> str:
        """How long until the deadline, in words."""
        return ahead(None if self.runner.deadline_ms is None else (self.runner.deadline_ms - self.now_ms) / 1000)

    @property
    def beat_ms(self) -> int | None:
        """When the current run sent its last heartbeat, which set the deadline one TTL later."""
        if self.runner.state is not State.RUNNING or self.runner.deadline_ms is None:
            return None
        return self.runner.deadline_ms - self.ttl_ms

    @property
    def is_alive(self) -> bool | None:
        """Whether the current run is alive; None: there is no current run."""
        return is_alive(self.runner, self.now_ms, self.ttl_ms)

    @property
    def nobody(self) -> str:
        """For how long no worker has polled for records, in words."""
        if math.isinf(self.seconds_since_poll):
            return f"no worker has ever polled {self.pipeline}: start one that declares it"
        return f"no worker has polled {self.pipeline} for {self.seconds_since_poll:,.0f} s: start one that declares it"

    @property
    def last_error(self) -> str:
        """The error of the tenant's last run, if it failed."""
        error = self.counts["last_error"]
        return f"; last error: {one_line(error)}" if error and self.counts["failures"] else ""


def tenant(context: Context, pipeline: str, name: str) -> TenantAnswer:
    """Return a tenant of a pipeline, and why it is not running; raises as `Context.pipeline`."""
    declared, inspector = context.pipeline(pipeline), context.inspector_of(pipeline)
    tenants = context.tenants_of(declared.source)
    # A run stores its failure before it releases the runner, so counts that are read later include it.
    (runner,) = inspector.look(pipeline, [name])
    (counts,) = tenants.counts(pipeline, [name], MOST_RECORDS)
    pauses = [Pause(**row) for row in context.rows("pauses", pipeline=pipeline, tenants=[name])]
    pause = pauses[0] if pauses else None
    seen = Seen(
        declared,
        runner,
        inspector.ranks(pipeline, [name])[0],
        inspector.circuit(pipeline),
        counts,
        pause,
        inspector.now_ms(),
        read_ages(context.database, [pipeline])[pipeline].poller,
        context.ttl_ms,
        context.settings.tail_interval,
    )
    cause, sentence = why(seen)
    delay = None
    if declared.criteria is not None and counts["pending"]:
        delay = tenants.waiting(pipeline, name, declared.criteria.smallest_ms)
    return TenantAnswer(
        **tenant_values(context, pipeline, counts, runner, seen.now_ms, paused=pause is not None),
        cause=cause,
        sentence=sentence,
        holder=_holder(seen),
        pause=pause,
        quarantine=quarantined(context, pipeline, name, limit=SHOWN_QUARANTINE),
        runs_shown=runs(context, pipeline, name, limit=SHOWN_RUNS),
        delay=delay,
    )


def _holder(seen: Seen) -> Holder | None:
    runner = seen.runner
    if runner.state is not State.RUNNING or runner.token is None:
        return None
    return Holder(runner.token, runner.worker or None, moment(runner.began_ms), moment(seen.beat_ms), seen.is_alive)


def why(seen: Seen) -> tuple[Cause, str]:
    """Return the cause, and a sentence to follow the tenant's name and a colon."""
    runner, counts = seen.runner, seen.counts
    if runner.state is State.RUNNING:
        return _running(seen)
    if seen.pause is not None and (seen.pause.tenant is not None or counts["known"] or runner.state is not State.IDLE):
        return Cause.PAUSED, _paused(seen.pause)
    if runner.state is State.QUEUED:
        return _queued(seen)
    if runner.state is State.IDLE:
        return _idle(seen)
    if runner.hold is not None:
        return _held(seen)
    if seen.late_ms > LATE_MS:
        return _late(seen)
    if not counts["pending"] and runner.lease_ends_ms is not None:
        return Cause.LINGERING, f"everything is handled; its runner waits for events until its lease ends {seen.due}"
    return Cause.TICK, f"its next run is due {seen.due}, after the tick or the delay of a criterion"


def _running(seen: Seen) -> tuple[Cause, str]:
    runner = seen.runner
    run = f"run {runner.token}{f' on the worker {runner.worker}' if runner.worker else ''}"
    beat = "" if seen.beat_ms is None else f"{max(0, seen.now_ms - seen.beat_ms) / 1000:.1f} s"
    if seen.is_alive is False:
        next_run = seen.nobody if seen.nobody_looks else f"a worker will replace it {seen.due}"
        sentence = f"{run} has it and sent its last heartbeat {beat} ago: it died or is frozen, and {next_run}"
        return Cause.FROZEN, sentence
    pause = "" if seen.pause is None else f"; {_paused(seen.pause)}, which takes effect after the current batch"
    begun = ago(moment(runner.began_ms))
    return Cause.RUNNING, f"it is running: {run}, began {begun}, last heartbeat {beat} ago{pause}"


def _paused(pause: Pause) -> str:
    what = "paused" if pause.tenant is not None else "its whole pipeline is paused"
    by = f" by {pause.paused_by}" if pause.paused_by else ""
    return f"{what}{by}, {ago(pause.paused_at)}{f' ({one_line(pause.reason)})' if pause.reason else ''}"


def _queued(seen: Seen) -> tuple[Cause, str]:
    queued = f"its run message has been in the queue for {span(_created(seen.runner.token or ''))}"
    if seen.nobody_looks:
        return Cause.NO_WORKER, f"{queued}, and {seen.nobody}"
    return Cause.QUEUED, f"{queued}: a worker will begin it when a slot is free"


def _created(token: str) -> datetime | None:
    """Return when a run was created: its token starts with 16 digits, microseconds since the Unix epoch."""
    return moment(int(token[:16]) // 1000) if token[:16].isdigit() else None


def _idle(seen: Seen) -> tuple[Cause, str]:
    counts = seen.counts
    if not counts["known"]:
        return Cause.UNKNOWN, f"{seen.pipeline} has no such tenant: it has neither records nor a runner"
    if counts["pending"]:
        pending = counted(counts["pending"], "record is", "records are")
        records = f"{pending} pending, the oldest for {span(counts['pending_since'])}"
        if seen.nobody_looks:
            return Cause.NO_WORKER, f"{records}, and {seen.nobody}"
        return (
            Cause.FOUND_SOON,
            f"{records}, and it has no runner yet: workers poll for such records every {seen.tail_interval:g} s",
        )
    last = f", and its last run began {ago(counts['last_run_at'])}" if counts["last_run_at"] else ""
    kept = counts["quarantined"]
    rest = f"; {counted(kept, 'record is', 'records are')} in quarantine" if kept else ""
    return Cause.NOTHING, f"idle: nothing is pending{last}{rest}"


def _held(seen: Seen) -> tuple[Cause, str]:
    runner, circuit, ranks = seen.runner, seen.circuit, seen.ranks
    # If what held it is over, it only waits for a worker.
    if seen.late_ms > LATE_MS and (seen.nobody_looks or runner.hold is Hold.RATE):
        return _late(seen)
    if runner.hold is Hold.TURN:
        turn = "" if ranks.for_turn is None else f": it is number {ranks.for_turn:,} of {ranks.turns:,}"
        return Cause.TURN, f"it waits for its turn{turn}; {ORDER_OF_TURNS}"
    if runner.hold is Hold.RATE:
        return Cause.RATE, f"{_rate_limits(seen.declared)} is used up; it resumes {seen.due}"
    if runner.hold is Hold.WAIT_QUEUE or (circuit.open and ranks.in_wait_queue is not None):
        return _in_wait_queue(seen)
    if seen.late_ms > LATE_MS:
        return _late(seen)
    return _until_a_time(seen)


def _until_a_time(seen: Seen) -> tuple[Cause, str]:
    hold, counts = seen.runner.hold, seen.counts
    if hold is Hold.ASKED:
        return Cause.ASKED_TO_WAIT, f"its handler asked to wait (RetryAfter); next try {seen.due}"
    if hold is Hold.PAUSED:
        return Cause.PAUSED, "its pause is over; a worker will start it within TASKBRIDGE_BASE_INTERVAL"
    if not counts["failures"]:
        unknown = "its last run failed, but the error was not stored: see the logs of the workers"
        return Cause.BACK_OFF, f"{unknown}; next try {seen.due}"
    times = counted(counts["failures"], "time")
    since = f", for {span(counts['failing_since'])}" if counts["failing_since"] else ""
    return Cause.BACK_OFF, f"back-off: it failed {times} in a row{since}; next try {seen.due}{seen.last_error}"


def _in_wait_queue(seen: Seen) -> tuple[Cause, str]:
    circuit, ranks = seen.circuit, seen.ranks
    number = "it is" if ranks.in_wait_queue is None else f"it is number {ranks.in_wait_queue:,} of {ranks.waiting:,}"
    position = f"{number} in the wait queue"
    if circuit.open:
        since = span(moment(circuit.opened_at_ms))
        probe = ahead(((circuit.until_ms or 0) - seen.now_ms) / 1000)
        return Cause.CIRCUIT, (
            f"the circuit of {seen.pipeline} has been open for {since}, because everything failed; {position}, and the "
            f"next probe may begin {probe}{seen.last_error}"
        )
    if circuit.rests_until_ms is not None and circuit.rests_until_ms > seen.now_ms:
        until = ahead((circuit.rests_until_ms - seen.now_ms) / 1000)
        sentence = f"its handler asked the whole pipeline to wait (RetryAfter), which ends {until}; {position}"
        return Cause.ASKED_TO_WAIT, sentence
    if circuit.width is not None:
        return Cause.WAIT_QUEUE, (
            f"{position}: its handler had asked the whole pipeline to wait (RetryAfter), which now resumes with "
            f"{counted(circuit.width, 'run')} at a time, and with more as records are handled"
        )
    most = f" ({seen.declared.max_runs:,} in all)" if seen.declared.max_runs else ""
    return Cause.WAIT_QUEUE, f"{position} for a free run slot of {seen.pipeline}{most}"


def _rate_limits(declared: Pipeline) -> str:
    """Name the declared limits, one of which the tenant waits for."""
    names = []
    for name, limits in (
        ("its own rate limit", declared.tenant_rate_limit),
        (f"the rate limit of {declared.name}", declared.rate_limit),
    ):
        if any(limits):
            names.append(f"{name} ({' and '.join(one.rate for one in limits if one is not None)})")
    return " or ".join(names) or "its rate limit"


def _late(seen: Seen) -> tuple[Cause, str]:
    late = f"its run was due {seen.late_ms / 1000:.0f} s ago"
    if seen.nobody_looks:
        return Cause.NO_WORKER, f"{late}, and {seen.nobody}"
    return Cause.QUEUED, f"{late}: the workers are busy with runs that were due earlier"
