"""Formatting of times: how long ago, and how long until."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["ago", "ahead", "moment", "span"]


def ago(at: datetime | None) -> str:
    """Return how long ago a time was by this machine's clock; if that is behind the server's, 0 s."""
    return "-" if at is None else f"{span(at)} ago"


def span(at: datetime | None) -> str:
    """Return the time since `at` by this machine's clock."""
    if at is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def ahead(seconds: float | None) -> str:
    """Return in how long something happens, in the two largest units."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole <= 0:
        return "now"
    for size, unit, part, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"in {whole // size}{unit} {whole % size // part}{smaller}"
    return f"in {whole}s"


def moment(ms: int | None) -> datetime | None:
    """Return the time of so many milliseconds since the Unix epoch."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
