"""A gate whose clock the test controls."""

from __future__ import annotations

from typing import Any, Final

from taskbridge.gate import Gate
from taskbridge.process.runtime import Runtime

__all__ = ["InjectedClock", "inject_clock"]

DAY_US: Final = 86_400_000_000


class InjectedClock(Gate):
    """A gate that passes the time to its scripts; `given` has all times passed, in microseconds."""

    us: int
    given: list[int]

    def start_at(self, us: int) -> None:
        """Set the time in microseconds of the Unix epoch. Each command advances it by one."""
        self.us = us
        self.given = []

    def pass_to(self, ms: int) -> None:
        """Advance the time to `ms`, in milliseconds of the Unix epoch; it never goes back."""
        self.us = max(self.us, ms * 1000)

    def now_ms(self) -> int:
        """Return the current time of this clock."""
        return self.us // 1000

    def _now(self) -> str:
        self.us += 1
        self.given.append(self.us)
        return f"{self.us // 1000}.{self.us % 1000:03d}"


def inject_clock(runtime: Runtime) -> InjectedClock:
    """Replace the runtime's gate by one with a controlled clock, on the same Redis, and return it.

    The clock starts a day ahead of the server's, so that no key expires while the clock is frozen.
    """
    gate = runtime.make_gate(InjectedClock)
    seconds: Any
    seconds, _ = runtime.redis.time()
    gate.start_at(int(seconds) * 1_000_000 + DAY_US)
    runtime.__dict__["gate"] = runtime.__dict__["event_gate"] = gate
    return gate
