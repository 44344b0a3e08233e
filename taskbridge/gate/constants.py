"""The gate's constants: scripts get them by name, the docs print them, and the tests' reference model uses them."""

from __future__ import annotations

from enum import Enum

__all__ = ["Constant"]


class Constant(int, Enum):
    """A whole number; its `value` is the description printed in the docs. A name ends with its unit, if it has one."""

    CIRCUIT_OPENS_AFTER = (
        5,
        "failures of at least two tenants that blame the downstream or the pipeline: they open the circuit",
    )
    CIRCUIT_WAIT_MS = 1_000, "how long the circuit stays open at first"
    LONGEST_CIRCUIT_WAIT_MS = 30_000, "the longest time it stays open: each failed probe doubles the time"
    WALKS_AFTER = 5, "failed probes in a row after which probes also try later records"
    WALK = 13, "probes in a cycle: one tries the first record, the rest try records further and further ahead"
    BEHIND = (
        100_000_000_000_000,
        (
            "added to a score: in a wait queue, it sorts continuations behind first events; in the set of queued runs, "
            "it marks those that a reminder queued"
        ),
    )
    SLOW_START_ENDS = 64, "runs at a time that end the slow start of a pipeline without a cap"
    FIRSTS_IN_A_ROW = 3, "first events in a row that go before a waiting continuation"
    DECLINED_MS = (
        200,
        "when a declined run is published again",
    )
    TURN_DEADLINE_MS = (
        60_000,
        "deadline of a tenant that waits for its turn, in case the fair queue is lost",
    )
    GRACE_MS = (
        1_000,
        (
            "how long a run message still counts towards the limits on queued runs after its deadline: it may be "
            "published again within that time"
        ),
    )
    LONGEST_REPUBLISH_MS = (
        300_000,
        (
            "the longest wait before a message is published again, or before a tenant in the wait queue asks again to "
            "begin"
        ),
    )
    REPEATED_WITHIN_MS = 15_000, "how long a worker that lost the reply of a `take` can ask for its messages again"
    EMPTY_RUN_MS = (
        200,
        "minimum time from the start of a run that took nothing to the next, under `DelaySinceLastRun`",
    )
    MARK_EVERY_US = 100_000, "how often tickers store the time"
    POLLER_MEMORY_MS = 60_000, "how long Redis remembers which worker polled last"
    OWNER_MS = (
        300_000,
        "how long a gate belongs to a deployment after its last worker stops; with work left, a day",
    )
    DAY_MS = (
        86_400_000,
        (
            "how long circuits, slots, wait queues, turns and pauses are kept if nothing changes; also how often the "
            "start times of the last runs are rebuilt from Postgres, even if Redis seems complete"
        ),
    )
    MONTH_MS = (
        2_592_000_000,
        "how long the gate's stored time and the counts of replaced runs are kept if nothing changes",
    )

    def __new__(cls, number: int, meaning: str) -> Constant:
        """Make the number. Constants with equal numbers stay distinct, because the value is the description."""
        constant = int.__new__(cls, number)
        constant._value_ = meaning
        return constant

    __str__ = __repr__ = int.__repr__
    """As redis-py sends it."""

    def __format__(self, spec: str) -> str:
        """Format it as a number."""
        return int.__format__(self, spec)
