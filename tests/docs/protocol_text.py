"""Prints the gate's tables and numbers into docs/reference/gate.md, from those in code; `make docs` runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from taskbridge.gate import State
from taskbridge.gate.constants import Constant
from tests.docs.printed import Printed
from verification.model import admission
from verification.model.admission import CIRCUIT, SLOTS, WAIT_QUEUE
from verification.model.transitions import TRANSITIONS, Row

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


def grouped() -> list[tuple[str, Row]]:
    """Return the rows with the names of their states; rows that stand for every state become one."""
    found: list[tuple[str, Row]] = []
    for row in TRANSITIONS:
        everywhere = [
            other for other in TRANSITIONS if (other.verb, other.when, other.effect) == (row.verb, (), row.effect)
        ]
        if not row.when and len(everywhere) == len(State):
            if row.state is State.IDLE:
                found.append(("any other", row))
        else:
            found.append((row.state.value, row))
    return found


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| state | event | when | next | answer | effect |", "| --- | --- | --- | --- | --- | --- |"]
    for state, row in grouped():
        after = "the same" if state == "any other" else row.next.value
        when = _when(row, TRANSITIONS)
        lines.append(f"| {state} | {row.verb.value} | {when} | {after} | {row.answer.name} | {row.effect} |")
    return "\n".join(lines)


def _when(row: Transition, rows: Sequence[Transition]) -> str:
    alone = sum(other.state is row.state and other.verb is row.verb for other in rows) == 1
    return "; ".join(str(condition.value) for condition in row.when) or ("" if alone else "otherwise")


def _admission(rows: Sequence[admission.Row[Any]]) -> str:
    """Return a table of a pipeline's circuit, run slots or wait queue as Markdown."""
    lines = ["| state | event | when | next | effect |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = (row.state.value, row.verb.value, _when(row, rows), row.next.value, row.effect.value)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers() -> str:
    """Return the gate's constants as Markdown."""
    lines = ["| name | number | what it is |", "| --- | ---: | --- |"]
    lines += [f"| `{one.name}` | {one:,} | {one.value} |" for one in Constant]
    return "\n".join(lines)


def diagram() -> str:
    """Return the transitions that change the state as a Mermaid diagram."""
    edges: dict[tuple[State, State], list[str]] = {}
    for _, row in grouped():
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
