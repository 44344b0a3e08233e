"""What the gate is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "Begun",
    "Blame",
    "Due",
    "Outcome",
    "Reminder",
    "Settlement",
    "TailHold",
    "Timing",
]


class Blame(StrEnum):
    """What a failed run says against; the value is what `circuit.lua` reads."""

    NOBODY = ""
    RECORD = "record"
    DOWNSTREAM = "downstream"
    PIPELINE = "pipeline"


class Outcome(StrEnum):
    """How a run ended; the value is what `settle.lua` reads.

    MORE: records are left, and it is the next tenant's turn. STOPPED: the worker stops in the middle of its turn.
    """

    MORE = "more"
    STOPPED = "stopped"
    DONE = "done"
    RETRY = "retry"
    STALE = "stale"


class Settlement(NamedTuple):
    """What a run tells the gate at its end, in the order in which `settle.lua` reads it.

    `took` is how many records the run took: where delays count from the last run, one that took none does not count.
    `handled` is how many of them the handler was given with success, which closes the circuit. With RETRY go
    `retry_ms`, whether the run `failed` or only waits, and what it blames; with `all_wait` the whole pipeline waits as
    long, and then begins with one run at a time. With STALE goes `owner`, the token that Postgres holds.
    """

    outcome: Outcome
    took: int = 1
    handled: int = 0
    failed: bool = True
    blame: Blame = Blame.NOBODY
    retry_ms: int = 0
    owner: str = ""
    all_wait: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Bounds of recovery, in whole milliseconds; see `taskbridge.settings`."""

    runner_ttl: int = 5_000
    republish: int = 5_000


class Begun(NamedTuple):
    """What a run learns when it begins.

    Counts of this burst (all its events, those since the last run, its runs with this one), how many runs before this
    one failed in a row, and in the burst's first run the milliseconds since its first event. `probe` is None unless the
    run probes an open circuit: then it says which of the tenant's records to try, counted from 0. `died`: the tenant's
    run before this one did not end, and was replaced.
    """

    events: int
    new_events: int
    runs: int
    failures: int
    age_ms: int
    probe: int | None = None
    died: bool = False


class Due(NamedTuple):
    """Whom a ticker should start. Milliseconds until it should look again, and since the oldest deadline that passed.

    None: there is no deadline, or none has passed. `turns` is how many tenants, of all pipelines, wait for their turn.
    """

    tenants: list[str]
    next_ms: int | None
    late_ms: int | None
    turns: int = 0


class Reminder(NamedTuple):
    """A tenant with records that no run has looked at.

    `delay_ms` is the least time since its last run; `last_ms` when that was, in milliseconds of the Unix epoch, for a
    Redis that has forgotten it (None: there was none, or it does not matter).
    """

    tenant: str
    delay_ms: int
    last_ms: int | None = None


class TailHold(NamedTuple):
    """Whether this process looks after a pipeline's tail: 0, or the milliseconds until another's hold ends.

    `lost`: Redis lost its data, or came back with older data. `ends_ms`: when the hold ends, by the gate's clock.
    """

    wait_ms: int
    lost: bool
    ends_ms: int
