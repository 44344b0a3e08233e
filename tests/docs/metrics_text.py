"""Prints the table of metrics into docs/reference/metrics.md, from the list in code; `make docs` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taskbridge.observing.metrics import METRICS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
MARK: Final = "<!-- metrics -->"


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| metric | type | label | over | from | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{one.name}` | {one.kind} | {one.label} | {one.look.scope} | {one.look.source} | {one.help} |"
        for one in METRICS
    ]
    return "\n".join(lines)


def shown(page: str) -> str:
    """Return what stands between the marks of `page`."""
    return page.split(MARK)[1].strip()


def main() -> None:
    """Write the table into the page."""
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table()}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
