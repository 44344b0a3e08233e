"""The values that callers pass to the gate and get from it."""

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
    "PollingHold",
    "Reminder",
    "Settlement",
    "Timing",
]


class Blame(StrEnum):
    """What a failed run blames; `circuit.lua` reads the value."""

    NOBODY = ""
    RECORD = "record"
    DOWNSTREAM = "downstream"
    PIPELINE = "pipeline"


class Outcome(StrEnum):
    """How a run ended; `settle.lua` reads the value.

    MORE: records are left, and the tenant's turn is over. STOPPED: the worker stops before the turn is over. PAUSED: an
    operator has paused the tenant or its pipeline.
    """

    MORE = "more"
    STOPPED = "stopped"
    DONE = "done"
    RETRY = "retry"
    STALE = "stale"
    PAUSED = "paused"


class Settlement(NamedTuple):
    """What a run reports to the gate at its end, in the order in which `settle.lua` reads it.

    `took`: how many records the run took; if delays count from the last run, a run that took none does not count.
    `handled`: how many of them were handled; if any was, the circuit closes. For RETRY: `retry_ms`, whether the run
    `failed` or only waits, and what it blames; with `all_wait` the whole pipeline waits that long, and then begins with
    one run at a time. For STALE: `owner`, the token of the cursor's owner. `counted`: the death of the previous run is
    stored, so no other run counts it.
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
    """Recovery times in whole milliseconds; see `taskbridge.settings`."""

    runner_ttl: int = 5_000
    republish: int = 5_000


class DeadRun(NamedTuple):
    """A run that did not end and was replaced: its token, and the name of its worker ("" if it had none)."""

    token: str
    worker: str


class Begun(NamedTuple):
    """What a run gets from the gate when it begins.

    For this burst: `events`, `new_events` since its last run, and `runs` including this one. `failures`: how many runs
    in a row have failed before this one. `age_ms`: milliseconds since the first event; None if an earlier run acted on
    it. `probe`: for a run that probes an open circuit, the index of the record to try; else None. `died`: the run that
    this one replaced because it did not end. `traceparent`: the span of the runner's first event, if that was traced.
    `found`: there was no event since the last run; the change poller found the records. `burst`: the token of the
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
    """The result of a traced event.

    `token`: the run that it started, or that was queued or running; `first`: the `traceparent` of the first event of
    the runner that counted this one. Each is empty if there is none.
    """

    answer: Answer
    token: str
    first: str


class Message(NamedTuple):
    """A run message that was taken out of its queue: its original text, and its run."""

    queue: Queue
    text: str
    run: RunKey


class Due(NamedTuple):
    """The `tenants` that a ticker should start now, and `next_ms` until its next tick (None: there is no deadline).

    `late_ms`: how many milliseconds ago the oldest deadline passed (None: none has). `waiting`: how many tenants, of
    all pipelines, are in the fair queue.
    """

    tenants: list[str]
    next_ms: int | None
    late_ms: int | None
    waiting: int = 0


class Reminder(NamedTuple):
    """A tenant with records that no run has read.

    `delay_ms`: the minimum time since its last run. `last_ms`: when that was, in milliseconds since the Unix epoch, in
    case Redis has lost it (None: there was none, or it does not matter).
    """

    tenant: str
    delay_ms: int
    last_ms: int | None = None


class PollingHold(NamedTuple):
    """The hold of a pipeline's change poller. `wait_ms`: 0 if this process has it, else until another's hold ends.

    `lost`: Redis lost its data, or came back with older data. `ends_ms`: when the hold ends, by the gate's clock.
    """

    wait_ms: int
    lost: bool
    ends_ms: int
