"""Prints the limits of names and numbers into docs/reference/settings.md, from those in code; `make docs` runs it."""

from __future__ import annotations

from typing import Final

from taskbridge.common.limits import NAMES, OPTIONS, SETTINGS
from tests.docs.printed import REFERENCE, Printed

PART: Final = Printed(REFERENCE / "settings.md", "limits")


def table() -> str:
    """Return the tables as Markdown."""
    lines = ["| name | longest | characters |", "| --- | ---: | --- |"]
    lines += [f"| {name} | {one.longest} | {one.allowed} |" for name, one in NAMES.items()]
    lines += ["", "| number | least | most | unit |", "| --- | ---: | ---: | --- |"]
    numbers = {f"TASKBRIDGE_{name.upper()}": one for name, one in SETTINGS.items()}
    numbers |= {f"`{name}`": one for name, one in OPTIONS.items()}
    lines += [f"| {name} | {one.least:,.15g} | {one.most:,.15g} | {one.unit} |" for name, one in numbers.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    PART.write(table())
