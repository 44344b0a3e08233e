"""Prints the limits and the metrics into docs/reference, from those in code; `make docs` runs it."""

from __future__ import annotations

from taskbridge.common.limits import NAMES, OPTIONS, SETTINGS
from taskbridge.observe.metrics import METRICS
from verification.printing.printed import REFERENCE, Printed


def limits() -> str:
    """Return the tables of names and numbers as Markdown."""
    lines = ["| name | longest | characters |", "| --- | ---: | --- |"]
    lines += [f"| {name} | {one.longest} | {one.allowed} |" for name, one in NAMES.items()]
    lines += ["", "| number | least | most | unit |", "| --- | ---: | ---: | --- |"]
    numbers = {f"TASKBRIDGE_{name.upper()}": one for name, one in SETTINGS.items()}
    numbers |= {f"`{name}`": one for name, one in OPTIONS.items()}
    lines += [f"| {name} | {one.least:,.15g} | {one.most:,.15g} | {one.unit} |" for name, one in numbers.items()]
    return "\n".join(lines)


def metrics() -> str:
    """Return the table of metrics as Markdown."""
    lines = ["| metric | type | label | covers | read from | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{one.name}` | {one.kind} | {one.label} | {one.group.scope} | {one.group.source} | {one.help} |"
        for one in METRICS
    ]
    return "\n".join(lines)


PARTS = {Printed(REFERENCE / "settings.md", "limits"): limits, Printed(REFERENCE / "metrics.md", "metrics"): metrics}


if __name__ == "__main__":
    for part, text_of in PARTS.items():
        part.write(text_of())
