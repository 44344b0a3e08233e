"""Documents: JSON as jsonb holds it, and as Python can read it. jsonb can hold what Python cannot."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final

import msgspec

from taskbridge.common.texts import error_text

__all__ = ["DEEPEST", "decoded", "unreadable"]

DEEPEST: Final = 500
"""Levels of nesting that a producer may write. Python 3.11 reads about 950, less the depth of the
program that reads; 3.13 several thousand."""
LONGEST_INTEGER: Final = 4_300
"""Digits of an integer that Python reads (sys.int_info.default_max_str_digits)."""

_LONGEST_INTEGER: Final = re.compile(rf"[0-9]{{{LONGEST_INTEGER + 1}}}")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]+")

# It reads what `json.loads` reads, in less than half of the time. It refuses a number that is too large for a float,
# where `json.loads` gives infinity.
_decode: Final = msgspec.json.Decoder().decode


def decoded(text: str) -> tuple[Any, str | None]:
    """Return the document that jsonb gave as `text`, and None; or an empty one, and why it cannot be decoded."""
    try:
        return _decode(text), None
    except (msgspec.DecodeError, RecursionError) as error:
        return {}, f"the document cannot be decoded: {error_text(error)}"


def unreadable(text: str) -> str | None:
    """Return why a worker could not read this JSON text again; None: it could."""
    if len(text) > LONGEST_INTEGER and _LONGEST_INTEGER.search(text) and _LONGEST_INTEGER.search(_STRING.sub("", text)):
        return f"it holds an integer of more than {LONGEST_INTEGER:,} digits"
    if text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST:
        return f"it is nested more than {DEEPEST} levels deep"
    return None


def _depth(text: str) -> int:
    brackets = _NO_BRACKETS.sub("", _STRING.sub("", text))
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets))
