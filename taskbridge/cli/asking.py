"""The answers of `taskbridge.observing.answers`, for commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from taskbridge.observing.answers import Answers

if TYPE_CHECKING:
    from taskbridge.process.light_runtime import LightRuntime

__all__ = ["answers_of", "clock", "seconds"]


def answers_of(runtime: LightRuntime) -> Answers:
    """Return the answers about the deployment and the pipelines of a runtime."""
    declared = {name: runtime.pipelines[name] for name in runtime.pipelines.names()}
    return Answers(runtime.database, runtime.gate, declared, runtime.settings)


def clock(at: datetime | None) -> str:
    """Return a time of UTC with its milliseconds, as wide whether or not there is one."""
    return f"{'-':24}" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def seconds(milliseconds: float) -> str:
    """Return a span of time in seconds."""
    return f"{milliseconds / 1000:,.1f} s"
