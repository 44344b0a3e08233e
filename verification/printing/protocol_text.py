"""Prints the gate's tables and numbers into docs/reference/gate.md, from those in code; `make docs` runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Protocol

from taskbridge.gate import Answer, State
from taskbridge.gate.constants import Constant
from verification.model import admission
from verification.model.admission import CIRCUIT, SLOTS, WAIT_QUEUE, Effect
from verification.model.transitions import TRANSITIONS, Condition, Row
from verification.printing.printed import Printed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gate.md"


class Transition(Protocol):
    """What the rows of all tables have."""

    @property
    def state(self) -> Enum: ...
    @property
    def verb(self) -> Enum: ...
    @property
    def when(self) -> tuple[Enum, ...]: ...
    @property
    def next(self) -> Enum: ...


IMPLIED: Final = {Condition.CURRENT, Condition.OVERDUE}
"""The conditions that the page states as rules, instead of in each row."""


def shown() -> list[Row]:
    """Return the rows of the table; the page states as rules what repeats a call, and what matches no other row."""
    without_match = (Answer.REFUSED, Answer.LOST, Answer.NOT_DUE)
    return [row for row in TRANSITIONS if Condition.REPEATED not in row.when and row.answer not in without_match]


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| event | state | when | next | answer | effect |", "| --- | --- | --- | --- | --- | --- |"]
    rows = shown()
    for row in rows:
        cells = (row.verb.value, row.state.value, _when(row, rows), row.next.value, row.answer.name, row.effect)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _when(row: Transition, rows: Sequence[Transition]) -> str:
    alone = sum(other.state is row.state and other.verb is row.verb for other in rows) == 1
    conditions = [str(condition.value) for condition in row.when if condition not in IMPLIED]
    return "; ".join(conditions) or ("" if alone else "otherwise")


def _admission(rows: Sequence[admission.Row[Any]]) -> str:
    """Return a table of a pipeline's circuit, run slots or wait queue as Markdown, without rows that change nothing."""
    lines = ["| event | state | when | next | effect |", "| --- | --- | --- | --- | --- |"]
    verbs = list(dict.fromkeys(row.verb for row in rows))
    changing = [row for row in rows if row.next is not row.state or row.effect is not Effect.NONE]
    changing.sort(key=lambda row: verbs.index(row.verb))
    cells = ((row.verb.value, _when(row, rows), row.next.value, row.effect.value, row.state.value) for row in changing)
    for (verb, when, after, effect), alike in groupby(cells, key=lambda row: row[:4]):
        states = ", ".join(row[4] for row in alike)
        lines.append(f"| {verb} | {states} | {when} | {after} | {effect} |")
    return "\n".join(lines)


def numbers() -> str:
    """Return the gate's constants as Markdown."""
    lines = ["| name | number | what it is |", "| --- | ---: | --- |"]
    lines += [f"| `{one.name}` | {one:,} | {one.value} |" for one in Constant]
    return "\n".join(lines)


def diagram() -> str:
    """Return the transitions that change the state as a Mermaid diagram."""
    edges: dict[tuple[State, State], list[str]] = {}
    for row in shown():
        if row.state is not row.next:
            words = edges.setdefault((row.state, row.next), [])
            if row.verb.value not in words:
                words.append(row.verb.value)
    lines = [f"    {state} --> {after}: {', '.join(words)}" for (state, after), words in edges.items()]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            "    [*] --> idle",
            *(line.replace("settle: ", "settle ") for line in lines),
            "```",
        ]
    )


PARTS: Final[dict[str, Callable[[], str]]] = {
    "transitions": table,
    "diagram": diagram,
    "circuit": partial(_admission, CIRCUIT),
    "run slots": partial(_admission, SLOTS),
    "wait queue": partial(_admission, WAIT_QUEUE),
    "numbers": numbers,
}
"""What prints that which stands between each pair of marks, such as `<!-- diagram -->`."""


if __name__ == "__main__":
    for name, text_of in PARTS.items():
        Printed(PAGE, name).write(text_of())
