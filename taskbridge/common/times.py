"""How long ago, and how long until, for people."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "ahead", "iso", "moment", "span"]


def ago(at: datetime | None) -> str:
    """Say how long ago by this machine's clock; one that goes behind the server's shows 0 s."""
    return "-" if at is None else f"{span(at)} ago"


def span(at: datetime | None) -> str:
    """Say for how long something has been so, by this machine's clock."""
    if at is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ahead(seconds: float | None) -> str:
    """Say in how long, in its two largest units."""
    if seconds is None:
        return "-"
    left = round(seconds)
    if left <= 0:
        return "now"
    for size, unit, part, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            return f"in {left // size}{unit} {left % size // part}{smaller}"
    return f"in {left}s"


def iso(at: datetime | None) -> str | None:
    """Return a time as ISO 8601 in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat()


def moment(ms: int | None) -> datetime | None:
    """Return the time that so many milliseconds of the Unix epoch stand for."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
