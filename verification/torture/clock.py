"""A process whose wall clock is wrong by some seconds; the monotonic clock stays right, as on a real machine."""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any

__all__ = ["move"]

_TIME, _TIME_NS = time.time, time.time_ns
_Datetime = datetime.datetime


def move(seconds: float) -> None:
    """Move `time.time`, `time.time_ns` and `datetime.now` of this process, wherever they were imported to."""

    def moved_time() -> float:
        return _TIME() + seconds

    def moved_time_ns() -> int:
        return _TIME_NS() + round(seconds * 1e9)

    class AlsoReal(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _Datetime)

    class Moved(_Datetime, metaclass=AlsoReal):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _Datetime.fromtimestamp(moved_time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return _Datetime.fromtimestamp(moved_time(), datetime.UTC).replace(tzinfo=None)

    replaced: dict[int, Any] = {id(_TIME): moved_time, id(_TIME_NS): moved_time_ns, id(_Datetime): Moved}
    for module in [*sys.modules.values()]:
        names = getattr(module, "__dict__", {})
        if names is globals():
            continue
        for name, value in [*names.items()]:
            if id(value) in replaced:
                names[name] = replaced[id(value)]
