"""Charts as SVG: where each mark lies. The templates draw them, and the stylesheet has their colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from taskbridge.common.histogram import BOUNDS_MS, within
from taskbridge.observing.history import WINDOW_MS
from taskbridge.observing.shapes import Minute

__all__ = ["Bars", "Chart", "Line", "counts", "delays", "rates"]

WIDTH: Final = 1060
HEIGHT: Final = 124
LEFT: Final = 46
"""Room for the numbers beside the axis."""
FOOT: Final = 18
"""Room for the times below it."""
_STEPS: Final = (1, 2, 5, 10)
_DELAYS: Final = (1, 10, 100, 1_000, 10_000)
_LEAST_MS: Final = 1
_MOST_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the grid with its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars as one path."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line as one path, with gaps where nothing is known."""

    kind: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: `said` is what it shows, for those who do not see it."""

    said: str
    marks: list[Mark]
    times: list[Mark]
    bars: list[Bars]
    lines: list[Line]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def counts(minutes: Sequence[Minute], hours: float, now: datetime) -> Chart:
    """Return events, runs and failed runs over the last `hours`."""
    places = _Places(hours, now)
    top = _top(max((one.events for one in minutes), default=0), max((one.runs for one in minutes), default=0))
    wide = max(1.0, places.width(minutes[0].seconds if minutes else 60) - 0.5)
    named = (
        ("events", [one.events for one in minutes]),
        ("runs", [one.runs for one in minutes]),
        ("failed", [one.failed for one in minutes]),
    )
    bars = [
        Bars(
            name,
            name,
            "".join(_bar(places.x(one.at), count / top, wide) for one, count in zip(minutes, values, strict=True)),
        )
        for name, values in named
    ]
    events, runs, failed = (sum(values) for _, values in named)
    said = f"{events:,} events, {runs:,} runs and {failed:,} failed runs in the last {hours:g} hours"
    return Chart(said, _grid(top), places.times(), bars, [])


def delays(minutes: Sequence[Minute], hours: float, now: datetime) -> Chart:
    """Return the delays of first events over the last `hours`, beside those after a window of 500 ms."""
    places = _Places(hours, now)
    gap = places.width(minutes[0].seconds if minutes else 60) * 1.5
    half = [one.first_event_p50_ms for one in minutes]
    named = (
        ("p99", "99 of 100 within", [one.first_event_p99_ms for one in minutes]),
        ("p50", "half within", half),
        ("window", f"half within, had events waited {WINDOW_MS} ms", [one and one + WINDOW_MS for one in half]),
    )
    lines = [
        _line(kind, name, [(places.x(one.at), value) for one, value in zip(minutes, values, strict=True)], gap)
        for kind, name, values in named
    ]
    known = [one for one in half if one is not None]
    said = "delays of first events: none is known"
    if known:
        ends = dict.fromkeys(within(one).removeprefix("≤ ") for one in (min(known), max(known)))
        said = f"delays of first events: half within {' to '.join(ends)}"
    marks = [Mark(_log_y(at), f"{at} ms" if at < 1_000 else f"{at // 1_000} s") for at in _DELAYS]
    marks.append(Mark(_log_y(math.inf), f"> {BOUNDS_MS[-1] // 1_000} s"))
    return Chart(said, marks, places.times(), [], lines)


def rates(points: Sequence[tuple[datetime, float, float]], seconds: int, now: datetime) -> Chart:
    """Return events and runs each second; `points` are time, events and runs."""
    places = _Places(seconds / 3600, now)
    top = _top(*(events for _, events, _ in points), *(runs for _, _, runs in points))
    lines = [
        Line(name, name, _path([(places.x(at), _y(value / top)) for at, value in values]))
        for name, values in (
            ("events", [(at, events) for at, events, _ in points]),
            ("runs", [(at, runs) for at, _, runs in points]),
        )
    ]
    said = "events and runs each second, of the last minute"
    return Chart(said, _grid(top), [], [], lines)


class _Places:
    """Where times lie."""

    def __init__(self, hours: float, now: datetime) -> None:
        self._first = now - timedelta(hours=hours)
        self._seconds = hours * 3600
        self._hours = hours

    def x(self, at: datetime) -> float:
        return LEFT + max(0.0, self.width((at - self._first).total_seconds()))

    def width(self, seconds: float) -> float:
        return (WIDTH - LEFT) * seconds / self._seconds

    def times(self) -> list[Mark]:
        """Return up to some marks at full hours, or at parts of one."""
        step = next(one for one in (600, 3_600, 10_800, 21_600, 43_200, 86_400) if self._seconds / one <= 8)
        first = math.ceil(self._first.timestamp() / step) * step
        pattern = "%H:%M" if self._hours <= 24 else "%d %b %H:%M" if self._hours <= 72 else "%d %b"
        found = []
        for second in range(first, int(self._first.timestamp() + self._seconds) + 1, step):
            at = datetime.fromtimestamp(second, UTC)
            if LEFT + 16 < self.x(at) < WIDTH - 16:
                found.append(Mark(round(self.x(at), 1), at.strftime(pattern)))
        return found


def _top(*values: float) -> float:
    """Return the upper end of the axis: a round number that is not below any value."""
    most = max((*values, 1.0))
    size = 10 ** math.floor(math.log10(most))
    return float(next(step * size for step in _STEPS if step * size >= most))


def _grid(top: float) -> list[Mark]:
    return [
        Mark(_y(share), f"{top * share:,.4g}" if top * share < 1000 else f"{top * share:,.0f}") for share in (0, 0.5, 1)
    ]


def _y(share: float) -> float:
    return round((HEIGHT - FOOT) - (HEIGHT - FOOT - 8) * share, 1)


def _log_y(milliseconds: float) -> float:
    bounded = min(max(milliseconds, _LEAST_MS), _MOST_MS)
    return _y(math.log10(bounded / _LEAST_MS) / math.log10(_MOST_MS / _LEAST_MS))


def _bar(x: float, share: float, wide: float) -> str:
    if not share:
        return ""
    # What is not 0 is seen.
    height = max(1.0, (HEIGHT - FOOT - 8) * share)
    return f"M{x:.1f} {HEIGHT - FOOT}v{-height:.1f}h{wide:.1f}v{height:.1f}z"


def _line(kind: str, name: str, values: Sequence[tuple[float, float | None]], gap: float) -> Line:
    parts: list[list[tuple[float, float]]] = [[]]
    points = [(x, _log_y(value)) for x, value in values if value is not None]
    parts[0] += points[:1]
    for before, point in pairwise(points):
        if point[0] - before[0] > gap:
            parts.append([])
        parts[-1].append(point)
    return Line(kind, name, "".join(_path(part) for part in parts))


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        # A point alone is a short line.
        return f"M{points[0][0]:.1f} {points[0][1]}h4"
    return "".join(f"{'L' if at else 'M'}{x:.1f} {y}" for at, (x, y) in enumerate(points))
