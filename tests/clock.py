"""A gate whose clock is the test's."""

from __future__ import annotations

from taskbridge.gate import Gate


class InjectedClock(Gate):
    """A gate whose scripts are told the time; `given` keeps what they were told, in microseconds."""

    def start_at(self, us: int) -> None:
        self.us = us
        self.given: list[int] = []

    def _now(self) -> str:
        self.us += 1
        self.given.append(self.us)
        return f"{self.us // 1000}.{self.us % 1000:03d}"
