"""Prints the limits of names and numbers into docs/reference/settings.md, from those in code; `make docs` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from taskbridge.common.limits import NAMES, OPTIONS, SETTINGS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
MARK: Final = "<!-- limits -->"


def table() -> str:
    """Return the tables as Markdown."""
    lines = ["| name | longest | characters |", "| --- | ---: | --- |"]
    lines += [f"| {name} | {one.longest} | {one.allowed} |" for name, one in NAMES.items()]
    lines += ["", "| number | least | most | unit |", "| --- | ---: | ---: | --- |"]
    numbers = {f"TASKBRIDGE_{name.upper()}": one for name, one in SETTINGS.items()}
    numbers |= {f"`{name}`": one for name, one in OPTIONS.items()}
    lines += [f"| {name} | {one.least:,.15g} | {one.most:,.15g} | {one.unit} |" for name, one in numbers.items()]
    return "\n".join(lines)


def shown(page: str) -> str:
    """Return what stands between the marks of `page`."""
    return page.split(MARK)[1].strip()


def main() -> None:
    """Write the tables into the page."""
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}\n{table()}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
