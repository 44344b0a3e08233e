"""Documents: JSON as jsonb holds it, and as Python can read it. jsonb can hold what Python cannot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from taskbridge.common.texts import error_text

__all__ = ["DEEPEST", "decoded", "unreadable"]

DEEPEST: Final = 500
"""Levels of nesting that a producer may write. Python 3.11 reads about 950, less the depth of the
program that reads; 3.13 several thousand."""
LONGEST_INTEGER: Final = 4_300
"""Digits of an integer that Python reads (sys.int_info.default_max_str_digits)."""

# A float that overflows has 309 digits before its point: jsonb writes no exponents.
_LONG_NUMBER: Final = re.compile(r"[0-9]{309}")
# Wherever it begins, ten of every thirtieth character are in it. To look at those first takes a twentieth of the time.
_STRIDE: Final = 30
_SAMPLED: Final = re.compile(r"[0-9]{10}")
_LONGEST_INTEGER: Final = re.compile(rf"[0-9]{{{LONGEST_INTEGER + 1}}}")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]+")


def decoded(text: str) -> tuple[Any, str | None]:
    """Return the document that jsonb gave as `text`, and None; or an empty one, and why it cannot be decoded."""
    try:
        careful = _SAMPLED.search(text[::_STRIDE]) and _LONG_NUMBER.search(text)
        return (_CAREFUL if careful else _DECODE)(text)[0], None
    except (ValueError, RecursionError) as error:
        return {}, f"the document cannot be decoded: {error_text(error)}"


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"a number of {len(text):,} characters is too large for a float")
    return number


# As Postgres writes JSON there is no space around it, which `json.loads` would look for first.
_DECODE: Final[Callable[[str], tuple[Any, int]]] = json.JSONDecoder().raw_decode
_CAREFUL: Final[Callable[[str], tuple[Any, int]]] = json.JSONDecoder(parse_float=_finite).raw_decode


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
