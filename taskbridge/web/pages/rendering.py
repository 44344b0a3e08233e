"""The templates, and how they format numbers, times and names."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from taskbridge.common.histogram import within
from taskbridge.common.texts import counted, one_line, printable
from taskbridge.common.times import ago, ahead, moment

__all__ = ["TEMPLATES"]

_NONE: Final = "–"  # noqa: RUF001 - a dash as wide as a digit
LONGEST_LINE: Final = 300
_HIDDEN: Final = re.compile("[\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def _visible(value: object) -> object:
    r"""Escape zero-width and bidirectional characters, as in `\u202e`, so that no name can look like another one.

    Joiners are kept, because some scripts and emoji need them.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return _HIDDEN.sub(lambda found: ascii(found[0])[1:-1], value)
    return value


def _number(value: int | None) -> str:
    """Return a number with thousands separators."""
    return _NONE if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    """Return a duration, such as 350 ms, 12 s or 2:30:00."""
    if math.isinf(seconds):
        return "never"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def _milliseconds(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.0f} ms"


def _ago(at: datetime | None) -> str:
    """Return how long ago a time was, or how long until then."""
    if at is None:
        return _NONE
    seconds = (at - datetime.now(UTC)).total_seconds()
    return ahead(seconds) if seconds > 0 else ago(at)


def _clock(at: datetime | None, to: str = "seconds") -> str:
    """Return a time in UTC, with seconds or milliseconds."""
    return _NONE if at is None else f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(' ', to)} UTC"


def _share(part: float, whole: float) -> str:
    """Return a percentage, rounded down, so that 99.99 % is not shown as 100 %."""
    return _NONE if not whole else f"{math.floor(1000 * part / whole) / 10:.1f} %"


def _line(text: str | None) -> str:
    """Return the text of an error on one line of limited length."""
    line = printable(one_line(text or ""))
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} …"


TEMPLATES: Final = Environment(
    loader=PackageLoader("taskbridge.web.pages"),
    autoescape=True,
    finalize=_visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
"""All text is escaped."""
TEMPLATES.filters.update(
    n=_number,
    seconds=_duration,
    ms=_milliseconds,
    within=lambda ms: _NONE if ms is None else within(ms),
    ago=_ago,
    clock=_clock,
    moment=moment,
    line=_line,
    counted=counted,
)
TEMPLATES.globals.update(share=_share, second=timedelta(seconds=1))
