"""A gate whose clock is the test's."""

from __future__ import annotations

from typing import Any, Final

from taskbridge.gate import Gate
from taskbridge.process.runtime import Runtime

__all__ = ["InjectedClock", "inject_clock"]

DAY_US: Final = 86_400_000_000


class InjectedClock(Gate):
    """A gate whose scripts are told the time; `given` keeps what they were told, in microseconds."""

    us: int
    given: list[int]

    def start_at(self, us: int) -> None:
        """Let the time be `us` microseconds of the Unix epoch. It moves by one with each command, else stands still."""
        self.us = us
        self.given = []

    def pass_to(self, ms: int) -> None:
        """Let time pass up to `ms`, in milliseconds of the Unix epoch; it never goes back."""
        self.us = max(self.us, ms * 1000)

    def now_ms(self) -> int:
        """Return the injected time."""
        return self.us // 1000

    def _now(self) -> str:
        self.us += 1
        self.given.append(self.us)
        return f"{self.us // 1000}.{self.us % 1000:03d}"


def inject_clock(runtime: Runtime) -> InjectedClock:
    """Give the runtime a gate whose clock is the test's, on the same Redis, and return it.

    The clock starts a day ahead of the server's, so that no key expires by itself while a test stands still.
    """
    gate = runtime.make_gate(InjectedClock)
    seconds: Any
    seconds, _ = runtime.redis.time()
    gate.start_at(int(seconds) * 1_000_000 + DAY_US)
    runtime.__dict__["gate"] = runtime.__dict__["event_gate"] = gate
    return gate
