"""The chart of the first page, as inline SVG. Its colours are in the stylesheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup

from taskbridge.observe.history import Sums

__all__ = ["chart"]

WIDTH: Final = 1060
HEIGHT: Final = 124
LEFT: Final = 46
"""Space for the labels of the y axis."""
FOOT: Final = 18
"""Space for the labels of the x axis."""
_STEPS: Final = (1, 2, 5, 10)
_SERIES: Final = ("events", "runs", "failed")


def chart(sums: Sequence[Sums], hours: float, now: datetime) -> Markup:
    """Return a bar chart of events, runs and failed runs over the last `hours`, with a text for screen readers."""
    first, width = now - timedelta(hours=hours), (WIDTH - LEFT) / (hours * 3600)
    most = max((getattr(one, name) for one in sums for name in _SERIES), default=0)
    top = _round_up(most)
    parts = [
        Markup('<path class="grid" d="M{} {}H{}"/><text class="axis" x="{}" y="{}" text-anchor="end">{}</text>').format(
            LEFT, y := _y(share), WIDTH, LEFT - 6, y + 3, f"{top * share:,.4g}"
        )
        for share in (0, 0.5, 1)
    ]
    for name in _SERIES:
        bars = "".join(
            _bar(
                LEFT + max(0.0, (one.at - first).total_seconds() * width),
                getattr(one, name) / top,
                max(1.0, one.seconds * width - 0.5),
            )
            for one in sums
        )
        parts.append(Markup('<path class="bars k-{}" d="{}"/>').format(name, bars))
    parts += [
        Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            round(x, 1), HEIGHT - 4, at.strftime("%H:%M" if hours <= 24 else "%d %b")
        )
        for at in _times(first, hours)
        if LEFT + 16 < (x := LEFT + (at - first).total_seconds() * width) < WIDTH - 16
    ]
    counts = " and ".join(f"{sum(getattr(one, name) for one in sums):,} {name}" for name in ("events", "runs"))
    label = f"{counts} in the last {hours:g} hours"
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return svg.format(WIDTH, HEIGHT, label, Markup("").join(parts))


def _round_up(value: float) -> float:
    """Return the upper end of the axis: a round number of at least `value`."""
    size = 10 ** math.floor(math.log10(max(value, 1)))
    return float(next(step * size for step in _STEPS if step * size >= value))


def _y(share: float) -> float:
    return round((HEIGHT - FOOT) - (HEIGHT - FOOT - 8) * share, 1)


def _bar(x: float, share: float, wide: float) -> str:
    if not share:
        return ""
    # Any value above 0 must be visible.
    height = max(1.0, (HEIGHT - FOOT - 8) * share)
    return f"M{x:.1f} {HEIGHT - FOOT}v{-height:.1f}h{wide:.1f}v{height:.1f}z"


def _times(first: datetime, hours: float) -> list[datetime]:
    """Return up to 8 round times for the axis."""
    seconds = hours * 3600
    step = next(one for one in (600, 3_600, 10_800, 21_600, 43_200, 86_400) if seconds / one <= 8)
    begin = math.ceil(first.timestamp() / step) * step
    return [datetime.fromtimestamp(one, UTC) for one in range(begin, int(first.timestamp() + seconds) + 1, step)]
