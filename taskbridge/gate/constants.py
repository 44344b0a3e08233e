"""The gate's constants: scripts get them by name, the docs print them, and the tests' reference model uses them."""

from __future__ import annotations

from enum import Enum

__all__ = ["Constant"]


class Constant(int, Enum):
    """A whole number; its `value` is the description printed in the docs. A name ends with its unit, if it has one."""

    CIRCUIT_OPENS_AFTER = (
        5,
        "failures that blame the downstream, of at least two tenants, open the circuit if nothing is handled meanwhile",
    )
    CIRCUIT_WAIT_MS = 1_000, "how long a circuit stays open at first"
    LONGEST_CIRCUIT_WAIT_MS = 30_000, "the longest time a circuit stays open; it doubles with each failed probe"
    WALKS_AFTER = 5, "failed probes in a row after which probes also try records other than the first"
    WALK = 13, "probes in a row that try records further and further ahead; the next one tries the first again"
    BEHIND = (
        100_000_000_000_000,
        "milliseconds added to sort continuations behind first events in a wait queue, and to mark runs of reminders",
    )
    SLOW_START_ENDS = 64, "runs at a time at which the slow start of a pipeline without a cap ends"
    FIRSTS_IN_A_ROW = 3, "how many first events in a row go before a waiting continuation"
    DECLINED_MS = (
        200,
        "delay before a run is published again that a worker declined because it does not declare the pipeline",
    )
    TURN_DEADLINE_MS = (
        60_000,
        (
            "deadline of a tenant that waits for its turn; it matters only if the fair queue is lost. A tenant that "
            "came from a wait queue keeps the deadline it had there"
        ),
    )
    GRACE_MS = (
        1_000,
        "how long after its deadline a run message still counts as in flight: it may be about to be published again",
    )
    LONGEST_REPUBLISH_MS = (
        300_000,
        "the longest time until a message is published again, or a tenant leaves the wait queue",
    )
    REPEATED_WITHIN_MS = 15_000, "how long a worker that lost the reply of a `take` can ask for its messages again"
    EMPTY_RUN_MS = (
        200,
        "the minimum time from the start of a run that took nothing to the next, if delays count from the last run",
    )
    MARK_EVERY_US = 100_000, "how often tickers store the time"
    POLLER_MEMORY_MS = 60_000, "how long Redis remembers which worker polled last"
    OWNER_MS = (
        300_000,
        "the minimum time for which a gate belongs to a deployment after its last worker stops; with work left, a day",
    )
    DAY_MS = (
        86_400_000,
        (
            "how long circuits, slots, wait queues, turns and pauses are kept if nothing changes, and how long the "
            'note "all last runs that can still delay a run are in Redis" is kept; without it they are rebuilt from '
            "Postgres"
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
