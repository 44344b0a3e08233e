"""The gate's numbers, each once: scripts get them by name, the docs print them, the tests' reference uses them."""

from __future__ import annotations

from enum import Enum

__all__ = ["Constant"]


class Constant(int, Enum):
    """A whole number; its `value` is the sentence that the docs print. A name ends with its unit, if it has one."""

    CIRCUIT_OPENS_AFTER = 5, "failures in a row that blame the downstream, of two tenants at least, open the circuit"
    CIRCUIT_WAIT_MS = 1_000, "how long a circuit stays open at first"
    LONGEST_CIRCUIT_WAIT_MS = 30_000, "the longest that it stays open; the wait doubles with each failed probe"
    WALKS_AFTER = 5, "probes in a row that failed; from then on probes try other records than the first"
    WALK = 13, "probes in a row that try records further and further ahead; the next tries the first again"
    BEHIND = (
        100_000_000_000_000,
        "milliseconds that put continuations behind the first events of a wait queue, and runs of reminders apart",
    )
    SLOW_START_ENDS = 64, "runs at a time at which the slow start of a pipeline without a cap is over"
    FIRSTS_IN_A_ROW = 3, "first events that go before a continuation that waits"
    DECLINED_MS = 200, "until a run is published again that came to a worker which does not declare its pipeline"
    TURN_DEADLINE_MS = (
        60_000,
        "the deadline of who waits for a turn, should the turns be lost; who was in a wait queue keeps its own",
    )
    GRACE_MS = 1_000, "how long past its deadline a message counts as queued that was not published again"
    LONGEST_REPUBLISH_MS = (
        300_000,
        "the longest until a message is published again, or a tenant leaves the wait queue",
    )
    REPEATED_WITHIN_MS = 15_000, "how long a worker that lost the reply of a `take` may ask for its messages again"
    EMPTY_RUN_MS = 200, "from the start of a run that took nothing to the next, where delays count from the last run"
    MARK_EVERY_US = 100_000, "how often tickers note the time"
    POLLER_MEMORY_MS = 60_000, "how long Redis knows who held a tail last"
    OWNER_MS = (
        300_000,
        "how long a gate belongs to a deployment of which no worker runs any more, at the least; with work left, a day",
    )
    DAY_MS = (
        86_400_000,
        "how long circuits, slots, wait queues, turns and pauses are kept unchanged; all last runs count as known",
    )
    MONTH_MS = 2_592_000_000, "how long the clock's mark and the counts of replaced runs are kept that nothing changes"

    def __new__(cls, number: int, meaning: str) -> Constant:
        """Make the number; equal ones stay two, since the meaning is the value."""
        constant = int.__new__(cls, number)
        constant._value_ = meaning
        return constant

    __str__ = __repr__ = int.__repr__
    """As redis-py sends it."""

    def __format__(self, spec: str) -> str:
        """As a number."""
        return int.__format__(self, spec)
