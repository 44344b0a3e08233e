"""Prints the gate's transition table into docs/explanation/protocol.md, from the table in code; `make docs` runs it."""

from __future__ import annotations

from pathlib import Path

from taskbridge.gate.transitions import TRANSITIONS, Row, State

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "protocol.md"
MARKS = {"table": "<!-- transitions -->", "diagram": "<!-- diagram -->"}


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
        alone = sum(other.state is row.state and other.verb is row.verb for other in TRANSITIONS) == 1
        when = "; ".join(condition.value for condition in row.when) or ("" if alone else "otherwise")
        lines.append(f"| {state} | {row.verb.value} | {when} | {after} | {row.answer.name} | {row.effect} |")
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


def parts(page: str) -> dict[str, str]:
    """Return what stands between each pair of marks of `page`."""
    return {part: page.split(mark)[1].strip() for part, mark in MARKS.items()}


def main() -> None:
    """Write table and diagram into the page."""
    page = PAGE.read_text(encoding="utf-8")
    for part, text in (("table", table()), ("diagram", diagram())):
        before, _, after = page.split(MARKS[part])
        page = f"{before}{MARKS[part]}\n{text}\n{MARKS[part]}{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
