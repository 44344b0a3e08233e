"""Why a tenant is not running, in one sentence: `why`, `status` and the dashboard say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, ahead, moment, span
from taskbridge.gate import RunnerStatus, State
from taskbridge.gate.inspector import CircuitStatus, Hold, Place, UsedUp
from taskbridge.observing.shapes import Cause
from taskbridge.observing.troubles import nobody_looks
from taskbridge.process.heartbeat import BEATS
from taskbridge.store import Pause

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.gate.inspector import Inspector

__all__ = ["Seen", "is_alive", "text_of_state", "used_up", "why"]

UNTOLD: Final = "its last run ended before it could store why; the log of a worker says more"
ORDER_OF_TURNS: Final = "pipelines alternate, and tenants of one go in order of arrival"
LATE_MS: Final = 1_000
"""A worker acts on a deadline within this time, unless it is busy or there is none."""


class Seen(NamedTuple):
    """All that the sentence is made from."""

    pipeline: str
    tenant: str
    runner: RunnerStatus
    place: Place
    circuit: CircuitStatus
    counts: dict[str, Any]
    pause: Pause | None
    now_ms: int
    tail_seconds: float
    ttl_ms: int
    tail_interval: float
    most_runs: int
    used_up: Sequence[UsedUp] = ()
    """The rate limits that are used up, where one holds it."""

    @property
    def nobody_looks(self) -> bool:
        """Whether no worker has looked for records of the pipeline for long."""
        return nobody_looks(self.tail_seconds, self.tail_interval)

    @property
    def late_ms(self) -> int:
        """How long ago the deadline passed."""
        return _late_ms(self.runner, self.now_ms)

    @property
    def due(self) -> str:
        """In how long the deadline comes."""
        left = None if self.runner.deadline_ms is None else (self.runner.deadline_ms - self.now_ms) / 1000
        return ahead(left)

    @property
    def beat_ms(self) -> int | None:
        """When the run that is on gave its last heartbeat: that moved its deadline on by the TTL."""
        if self.runner.state is not State.RUNNING or self.runner.deadline_ms is None:
            return None
        return self.runner.deadline_ms - self.ttl_ms

    @property
    def is_alive(self) -> bool | None:
        """Whether the run that is on is alive; None: none is on."""
        return is_alive(self.runner, self.now_ms, self.ttl_ms)


def _late_ms(runner: RunnerStatus, now_ms: int) -> int:
    return 0 if runner.deadline_ms is None else max(0, now_ms - runner.deadline_ms)


def is_alive(runner: RunnerStatus, now_ms: int, ttl_ms: int) -> bool | None:
    """Whether the last heartbeat of the run that is on is no older than the next one may be late; None: none is on."""
    if runner.state is not State.RUNNING or runner.deadline_ms is None:
        return None
    return now_ms - (runner.deadline_ms - ttl_ms) <= 2 * ttl_ms / BEATS


_HELD: Final[Mapping[Hold, Cause]] = {
    Hold.TURN: Cause.TURN,
    Hold.WAIT_QUEUE: Cause.WAIT_QUEUE,
    Hold.RATE: Cause.RATE,
    Hold.RETRY: Cause.BACK_OFF,
    Hold.ASKED: Cause.ASKED_TO_WAIT,
    Hold.PAUSED: Cause.PAUSED,
}
_UNTIL_A_TIME: Final = (Hold.RATE, Hold.RETRY, Hold.ASKED)
"""What holds a runner no longer once its deadline has passed: then it waits for a worker alone."""


def text_of_state(runner: RunnerStatus, now_ms: int, ttl_ms: int, *, paused: bool, pending: bool = False) -> str:
    """Return the runner's state in a few words; a pause, what holds it and a run that is not alive are named.

    `pending`: whether its tenant has records that nobody has handled.
    """
    if paused and runner.state in (State.IDLE, State.WAITING):
        return "paused"
    if pending and runner.state is State.IDLE:
        return str(Cause.FOUND_SOON)
    if is_alive(runner, now_ms, ttl_ms) is False:
        return str(Cause.FROZEN)
    if runner.hold is None or (runner.hold in _UNTIL_A_TIME and _late_ms(runner, now_ms) > LATE_MS):
        return str(runner.state)
    return str(_HELD[runner.hold])


def used_up(
    inspector: Inspector, pipeline: Pipeline, runners: Mapping[str, RunnerStatus]
) -> dict[str, Sequence[UsedUp]]:
    """Return which limits are used up, of those tenants that a rate limit holds."""
    held = [tenant for tenant, runner in runners.items() if runner.hold is Hold.RATE]
    if not held or not pipeline.is_limited:
        return {}
    found = inspector.used_up(pipeline.name, held, pipeline.rate_limit, pipeline.tenant_rate_limit)
    return dict(zip(held, found, strict=True))


def why(seen: Seen) -> tuple[Cause, str]:
    """Return the cause, and the sentence, which goes on after the tenant's name and a colon."""
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
        return Cause.LINGERING, f"all is handled; its runner waits for more events until its lease ends, {seen.due}"
    return Cause.TICK, f"its next run waits for its time since the run before, and comes {seen.due}"


def _running(seen: Seen) -> tuple[Cause, str]:
    runner, since = seen.runner, ago(moment(seen.runner.began_ms))
    where = f"run {runner.token}{f' on the worker {runner.worker}' if runner.worker else ''}"
    beat = "" if seen.beat_ms is None else f"{max(0, seen.now_ms - seen.beat_ms) / 1000:.1f} s"
    if seen.is_alive is False:
        comes = (
            f"and {_nobody(seen)}"
            if seen.nobody_looks
            else "and no worker replaces it: start one"
            if seen.late_ms > LATE_MS
            else f"and a worker that is up gives its place to another run {seen.due}"
        )
        return (
            Cause.FROZEN,
            f"{where} has it and gave its last heartbeat {beat} ago: it died or is frozen, {comes}",
        )
    pause = "" if seen.pause is None else f"; {_paused(seen.pause)}, which holds it after the batch in hand"
    return Cause.RUNNING, f"it is running: {where}, begun {since}, last heartbeat {beat} ago{pause}"


def _paused(pause: Pause) -> str:
    what = "paused" if pause.tenant is not None else "its whole pipeline is paused"
    by = f" by {pause.paused_by}" if pause.paused_by else ""
    return f"{what}{by}, {ago(pause.paused_at)}{f' ({one_line(pause.reason)})' if pause.reason else ''}"


def _queued(seen: Seen) -> tuple[Cause, str]:
    token = seen.runner.token or ""
    since = span(_made(token))
    if seen.nobody_looks:
        return Cause.NO_WORKER, f"its run message has been in the queue for {since}, and {_nobody(seen)}"
    return Cause.QUEUED, f"its run message has been in the queue for {since}: a worker begins it when one comes free"


def _idle(seen: Seen) -> tuple[Cause, str]:
    counts = seen.counts
    if not counts["known"]:
        return Cause.UNKNOWN, f"no tenant of {seen.pipeline} is called so: it has neither records nor a runner"
    if counts["pending"]:
        pending = counted(counts["pending"], "record is", "records are")
        records = f"{pending} pending, the oldest for {span(counts['pending_since'])}"
        if seen.nobody_looks:
            return Cause.NO_WORKER, f"{records}, and {_nobody(seen)}"
        return (
            Cause.FOUND_SOON,
            f"{records}, and it has no runner yet: a worker looks for such records every {seen.tail_interval:g} s",
        )
    rest = (
        f"; {counted(counts['quarantined'], 'record is', 'records are')} in quarantine" if counts["quarantined"] else ""
    )
    last = f", and its last run began {ago(counts['last_run_at'])}" if counts["last_run_at"] else ""
    return Cause.NOTHING, f"idle: nothing is pending{last}{rest}"


def _in_wait_queue(seen: Seen, in_line: str) -> tuple[Cause, str]:
    """Say for what a tenant of the wait queue waits, where the circuit is closed."""
    circuit, rest = seen.circuit, seen.circuit.rests_until_ms
    if rest is not None and rest > seen.now_ms:
        until = ahead((rest - seen.now_ms) / 1000)
        said = f"its handler asked the whole pipeline to wait (RetryAfter), which is over {until}; {in_line}"
        return Cause.ASKED_TO_WAIT, said
    if circuit.width is not None:
        said = (
            f"{in_line}: its handler had asked the whole pipeline to wait (RetryAfter), after which it begins with "
            f"{counted(circuit.width, 'run')} at a time, and with more once records are handled"
        )
        return Cause.WAIT_QUEUE, said
    most = f", of which there are {seen.most_runs:,}" if seen.most_runs else ""
    return Cause.WAIT_QUEUE, f"{in_line} for a free run slot of {seen.pipeline}{most}"


def _held(seen: Seen) -> tuple[Cause, str]:
    runner, circuit, place = seen.runner, seen.circuit, seen.place
    # What it waits for may be over, and then only a worker is missing.
    if seen.late_ms > LATE_MS and (seen.nobody_looks or runner.hold is Hold.RATE):
        return _late(seen)
    number = "it is" if place.in_wait_queue is None else f"it is number {place.in_wait_queue:,} of {place.waiting:,}"
    in_line = f"{number} in the wait queue"
    if runner.hold is Hold.TURN:
        turn = "" if place.for_turn is None else f": it is number {place.for_turn:,} of {place.turns:,}"
        return Cause.TURN, f"it waits for its turn{turn}; {ORDER_OF_TURNS}"
    if runner.hold is Hold.RATE:
        return Cause.RATE, f"{_limit(seen)} is used up; it may go on {seen.due}"
    if circuit.open and (place.in_wait_queue is not None or runner.hold is Hold.WAIT_QUEUE):
        since = span(moment(circuit.opened_at_ms))
        probe = ahead(((circuit.until_ms or 0) - seen.now_ms) / 1000)
        said = (
            f"the circuit of {seen.pipeline} has been open for {since}: everything fails; {in_line}, and the next "
            f"probe may begin {probe}{_last_error(seen)}"
        )
        return Cause.CIRCUIT, said
    if runner.hold is Hold.WAIT_QUEUE:
        return _in_wait_queue(seen, in_line)
    if seen.late_ms > LATE_MS:
        return _late(seen)
    if seen.counts["failures"] and runner.hold not in (Hold.ASKED, Hold.PAUSED):
        times = seen.counts["failures"]
        since = f", for {span(seen.counts['failing_since'])}" if seen.counts["failing_since"] else ""
        return (
            Cause.BACK_OFF,
            f"back-off: it failed {counted(times, 'time')} in a row{since}; next try {seen.due}{_last_error(seen)}",
        )
    if runner.hold is Hold.ASKED:
        return Cause.ASKED_TO_WAIT, f"its handler asked to wait (RetryAfter); next try {seen.due}"
    if runner.hold is Hold.PAUSED:
        return Cause.PAUSED, "its pause is over; a worker starts it within TASKBRIDGE_BASE_INTERVAL"
    return Cause.BACK_OFF, f"{UNTOLD}; next try {seen.due}"


def _limit(seen: Seen) -> str:
    """Name the limit that the tenant waits for, as far as that is known.

    Its own limits are charged by its own runs alone, so one that it waits for ends with its wait. Other tenants have
    charged the pipeline's ones since.
    """
    due_ms = seen.runner.deadline_ms or 0
    own = [one for one in seen.used_up if one.is_own and one.until_ms > due_ms - LATE_MS]
    found = max(own or seen.used_up, key=lambda one: one.until_ms, default=None)
    if found is None:
        return "its rate limit"
    count, period = found.limit.rate.split("/")
    size = f"{counted(int(count.split()[0]), 'call' if found.limit.of_calls else 'record')}/{period}"
    return f"its own rate limit of {size}" if found.is_own else f"the rate limit of {seen.pipeline}, {size},"


def _late(seen: Seen) -> tuple[Cause, str]:
    late = f"its run was due {seen.late_ms / 1000:.0f} s ago"
    if seen.nobody_looks:
        return Cause.NO_WORKER, f"{late}, and {_nobody(seen)}"
    return Cause.QUEUED, f"{late}: the workers are busy with runs that were due before"


def _nobody(seen: Seen) -> str:
    if math.isinf(seen.tail_seconds):
        return f"no worker has ever looked for records of {seen.pipeline}: start one that declares it"
    last = f"{seen.tail_seconds:,.0f} s"
    return f"no worker has looked for records of {seen.pipeline} for {last}: start one that declares it"


def _last_error(seen: Seen) -> str:
    error = seen.counts["last_error"]
    return f"; last error: {one_line(error)}" if error and seen.counts["failures"] else ""


def _made(token: str) -> datetime | None:
    """Return when a run was made: the first 16 digits of its token are microseconds of the Unix epoch."""
    return moment(int(token[:16]) // 1000) if token[:16].isdigit() else None
