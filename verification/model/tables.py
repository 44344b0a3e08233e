"""Which row of a transition table applies, of the gate's or of one of `admission.py`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar

from verification.model import admission, transitions

R = TypeVar("R", bound="transitions.Row | admission.Row[Any]")


def choose(table: Iterable[R], state: StrEnum, verb: StrEnum, holding: frozenset[Any]) -> R:
    """Return the first row for `state` and `verb` whose conditions are all in `holding`."""
    for row in table:
        if row.state is state and row.verb is verb and holding.issuperset(row.when):
            return row
    raise LookupError(f"no transition for {verb.value} in state {state.value}")
