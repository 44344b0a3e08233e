"""Where a tenant's runner stands."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["State"]


class State(StrEnum):
    """The states of `taskbridge.gate.transitions`. An idle tenant has no key in Redis."""

    IDLE = "idle"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
