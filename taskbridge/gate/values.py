"""What the gate is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from taskbridge.common.run_key import RunKey
from taskbridge.gate.keys import Queue
from taskbridge.gate.state import Answer

__all__ = [
    "Begun",
    "Blame",
    "Due",
    "Message",
    "Notified",
    "Outcome",
    "Reminder",
    "Settlement",
    "PollingHold",
    "Timing",
]


class Blame(StrEnum):
    """What a failed run blames; the value is what `circuit.lua` reads."""

    NOBODY = ""
    RECORD = "record"
    DOWNSTREAM = "downstream"
    PIPELINE = "pipeline"


class Outcome(StrEnum):
    """How a run ended; the value is what `settle.lua` reads.

    MORE: records are left, and the tenant's turn is over. STOPPED: the worker stops before the turn is over. PAUSED: an
    operator has paused the tenant, or its pipeline.
    """

    MORE = "more"
    STOPPED = "stopped"
    DONE = "done"
    RETRY = "retry"
    STALE = "stale"
    PAUSED = "paused"


class Settlement(NamedTuple):
    """What a run tells the gate at its end, in the order in which `settle.lua` reads it.

    `took`: how many records the run took; where delays count from the last run, one that took none does not count.
    `handled`: how many of them were handled; if any was, the circuit closes. For RETRY: `retry_ms`, whether the run
    `failed` or only waits, and what it blames; with `all_wait` the whole pipeline waits as long, and then begins with
    one run at a time. For STALE: `owner`, the token of the cursor's owner. `counted`: the death of the run before this
    one is stored, so that no other run counts it.
    """

    outcome: Outcome
    took: int = 1
    handled: int = 0
    failed: bool = True
    blame: Blame = Blame.NOBODY
    retry_ms: int = 0
    owner: str = ""
    all_wait: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Bounds of recovery, in whole milliseconds; see `taskbridge.settings`."""

    runner_ttl: int = 5_000
    republish: int = 5_000


class DeadRun(NamedTuple):
    """A run that did not end, and was replaced: its token, and its worker; "" outside of one."""

    token: str
    worker: str


class Begun(NamedTuple):
    """What a run learns when it begins.

    Of this burst: `events`, `new_events` since its last run, and `runs` with this one. `failures`: how many runs before
    this one failed in a row. `age_ms`: the milliseconds since its first event; None: a run before this one has acted on
    that. `probe`: which of the tenant's records, counted from 0, a run that probes an open circuit tries; else None.
    `died`: the run that this one replaced because it did not end. `traceparent`: the span of the runner's first event,
    where that was traced. `found`: no event came since the last run; the tail found records. `burst`: the token of the
    burst's first run.
    """

    events: int
    new_events: int
    runs: int
    failures: int
    age_ms: int | None
    probe: int | None = None
    died: DeadRun | None = None
    traceparent: str = ""
    found: bool = False
    burst: str = ""


class Notified(NamedTuple):
    """What became of an event that was traced.

    `token`: the run that it started, or that was queued or on; `first`: the `traceparent` of the first event of the
    runner that took this one. Each is empty where there is none.
    """

    answer: Answer
    token: str
    first: str


class Message(NamedTuple):
    """A run message that was taken out of its queue: its text as it lay there, and whose run it is."""

    queue: Queue
    text: str
    run: RunKey


class Due(NamedTuple):
    """Which `tenants` a ticker should start now, and `next_ms` until it should look again (None: there is no deadline).

    `late_ms` is how long ago the oldest deadline passed (None: none has), in milliseconds like `next_ms`. `waiting`:
    how many tenants, of all pipelines, are in the fair queue.
    """

    tenants: list[str]
    next_ms: int | None
    late_ms: int | None
    waiting: int = 0


class Reminder(NamedTuple):
    """A tenant with records that no run has looked at.

    `delay_ms` is the least time since its last run; `last_ms` when that was, in milliseconds of the Unix epoch, for a
    Redis that has forgotten it (None: there was none, or it does not matter).
    """

    tenant: str
    delay_ms: int
    last_ms: int | None = None


class PollingHold(NamedTuple):
    """The hold of a pipeline's tail. `wait_ms`: 0 if this process has it, else the milliseconds until another's ends.

    `lost`: Redis lost its data, or came back with older data. `ends_ms`: when the hold ends, by the gate's clock.
    """

    wait_ms: int
    lost: bool
    ends_ms: int
