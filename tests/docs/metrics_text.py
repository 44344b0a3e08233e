"""Prints the table of metrics into docs/reference/metrics.md, from the list in code; `make docs` runs it."""

from __future__ import annotations

from typing import Final

from taskbridge.observe.metrics import METRICS
from tests.docs.printed import REFERENCE, Printed

PART: Final = Printed(REFERENCE / "metrics.md", "metrics")


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| metric | type | label | over | from | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{one.name}` | {one.kind} | {one.label} | {one.group.scope} | {one.group.source} | {one.help} |"
        for one in METRICS
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PART.write(table())
