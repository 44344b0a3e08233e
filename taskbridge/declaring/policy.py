"""Policies, which decide when a tenant's next run may start, and rate limits. Both validate their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from taskbridge.common.limits import check_option
from taskbridge.declaring.criteria import Criterion, check_criteria
from taskbridge.errors import InvalidPolicy

__all__ = ["NO_LIMITS", "DelaySinceLastRun", "LatencyNeutral", "Limits", "Policy", "RateLimit", "Spacing"]


@dataclass(frozen=True, slots=True)
class Spacing:
    """A policy as the gate sees it, in whole milliseconds.

    `delay` is the minimum time from the start of a tenant's last run to the start of its next; `lease` is how long an
    event keeps the runner alive (0: not at all); `last_ttl` is how long the last run delays a tenant that has become
    idle (0: not at all); `empty_tick` is the time after which a lingering runner sweeps although no event arrived (0:
    only at the end of the lease).
    """

    delay: int
    lease: int = 0
    last_ttl: int = 0
    empty_tick: int = 0


class Policy(Protocol):
    """What a pipeline needs of its policy."""

    @property
    def spacing(self) -> Spacing:
        """The policy in the gate's units."""


@dataclass(frozen=True)
class LatencyNeutral:
    """Start at once, then absorb the burst.

    Args:
        lease: how many seconds an event keeps its tenant's runner alive; 0 to 3600. With 0, the runner ends as soon as
            there are no new records.
        tick: the minimum number of seconds from the start of one run to the start of the tenant's next run. It must
            be above 0, and not longer than `lease` unless `lease` is 0.
        sweep_empty_ticks: look for new records at every tick of the lease, even if no event arrived.

    Raises:
        InvalidPolicy: a value is out of range, or the tick is longer than the lease.
    """

    lease: float = 1.2
    tick: float = 0.2
    sweep_empty_ticks: bool = False

    def __post_init__(self) -> None:
        check_option("the lease", "lease", self.lease)
        check_option("the tick", "tick", self.tick)
        if 0 < self.lease < self.tick:
            raise InvalidPolicy(
                f"the tick ({self.tick:g} s) is longer than the lease ({self.lease:g} s), so the runner would end "
                "before its second run: lengthen the lease or shorten the tick"
            )
        if 0 < self.lease < 0.001:
            raise InvalidPolicy(f"the lease is {self.lease:g} s: it must be 0 or at least 0.001 s")
        if self.sweep_empty_ticks and not self.lease:
            raise InvalidPolicy("sweep_empty_ticks needs a lease above 0: without one there is no tick to sweep at")

    @cached_property
    def spacing(self) -> Spacing:
        """The policy in the gate's units.

        The last run is not remembered after the burst, so that the first event of the next burst does not wait.
        """
        tick = _milliseconds(self.tick)
        return Spacing(delay=tick, lease=_milliseconds(self.lease), empty_tick=tick if self.sweep_empty_ticks else 0)


@dataclass(frozen=True)
class DelaySinceLastRun:
    """Start at once on a tenant's first event. Start the next run after a delay since the start of the last one.

    The delay depends on the criterion that a message matches. Records that were not written by `record_event` have the
    smallest delay of all criteria. A run takes all records of its tenant, including those that are not due yet.

    Args:
        criteria: at least one; kept as a tuple.

    Raises:
        InvalidPolicy: there is no criterion, or two are the same or contradict each other.
    """

    criteria: Sequence[Criterion]

    def __post_init__(self) -> None:
        object.__setattr__(self, "criteria", check_criteria(self.criteria))

    @cached_property
    def spacing(self) -> Spacing:
        """The policy in the gate's units, for an event without a delay of its own: with the smallest one."""
        return self.spacing_for(self.smallest_ms)

    @cached_property
    def smallest_ms(self) -> int:
        """The smallest delay of the criteria in milliseconds, used for records that have none of their own."""
        return min(criterion.delay_ms for criterion in self.criteria)

    def spacing_for(self, delay_ms: int) -> Spacing:
        """The policy in the gate's units, for an event with this delay.

        The last run is remembered for the longest delay, since the next event may have that one.
        """
        return Spacing(delay=delay_ms, last_ttl=max(delay_ms, *(criterion.delay_ms for criterion in self.criteria)))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How many records, or calls of the handler, are allowed per unit of time, over all workers.

    Args:
        rate: a number, `records` or `calls`, a slash, and `s`, `m`, `h` or `d`, as in "600 records/m" or "10 calls/s".
            "600/m" means records.
        burst: how many are allowed at once after an idle time, at least 1. The default is the number that the rate
            allows in one second. For calls it is the number for a tenth of a second, so that a downstream which counts
            per second sees hardly more than its limit.

    Raises:
        InvalidPolicy: the rate cannot be read, or a number is out of range.
    """

    rate: str
    burst: int | None = None

    def __post_init__(self) -> None:
        if not _RATE.fullmatch(str(self.rate)):
            raise InvalidPolicy(
                f"the rate limit {self.rate!r} is invalid: write records or calls per time, as in '600/m' or "
                "'10 calls/s'"
            )
        if not 0 < self.interval_us <= _PERIODS["d"]:
            raise InvalidPolicy(f"the rate limit {self.rate!r} is out of range: it must lie between 1/d and 1000000/s")
        if self.burst is not None and (type(self.burst) is not int or self.burst < 1):
            raise InvalidPolicy(f"the burst of a rate limit is {self.burst!r}: give a whole number of at least 1")

    @property
    def of_calls(self) -> bool:
        """Whether it limits calls of the handler instead of records."""
        return " calls" in self.rate

    @property
    def interval_us(self) -> float:
        """Microseconds per record or call; 0 if the rate is out of range."""
        count, period = self.rate.split("/")
        number = int(count.split()[0])
        return _PERIODS[period] / number if 0 < number <= _PERIODS[period] else 0

    @property
    def most(self) -> int:
        """How many are allowed at once."""
        return self.burst or max(1, int((100_000 if self.of_calls else 1_000_000) / self.interval_us))

    def within(self, milliseconds: int) -> int:
        """How many the rate allows in this many milliseconds, at least 1."""
        return max(1, int(milliseconds * 1000 / self.interval_us))


class Limits(NamedTuple):
    """A limit in records and one in calls; None: no such limit."""

    records: RateLimit | None = None
    calls: RateLimit | None = None

    @classmethod
    def of(cls, name: str, given: object) -> Limits:
        """Return the limits `given` for the option `name`: a limit or its rate, a list of them, or None.

        Raises:
            InvalidPolicy: it is something else, or two limits are of the same kind.
        """
        items = list(given) if isinstance(given, tuple | list) else [] if given is None else [given]
        limits: dict[bool, RateLimit] = {}
        for item in items:
            if not isinstance(item, RateLimit | str):
                raise InvalidPolicy(
                    f"{name} contains {item!r}: give a RateLimit, or its rate, such as '600/m' or '10 calls/s'"
                )
            limit = RateLimit(item) if isinstance(item, str) else item
            if limit.of_calls in limits:
                kind = "calls" if limit.of_calls else "records"
                raise InvalidPolicy(f"{name} has two limits of {kind}: give at most one of records and one of calls")
            limits[limit.of_calls] = limit
        return cls(limits.get(False), limits.get(True))


NO_LIMITS: Final = Limits()

_RATE: Final = re.compile(r"[0-9]{1,12}( records| calls)?/[smhd]")
_PERIODS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
