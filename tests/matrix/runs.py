"""Prints into docs/reference/versions.md what the last runs of the matrix have shown; `make versions` runs it.

A run of `make test-lowest` or `make test-matrix` leaves one file of results in `.matrix/` for each environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from verification.printing.printed import REFERENCE, Printed

RESULTS: Final = Path(__file__).resolve().parents[2] / ".matrix"
PART: Final = Printed(REFERENCE / "versions.md", "runs")


def row(results: Path) -> str:
    """Return one run as a row of Markdown; its suite is named `environment; Python 3.11.7; tests`."""
    (suite,) = ET.parse(results).getroot()  # noqa: S314 - pytest wrote it
    environment, python, tests = suite.attrib["name"].split("; ")
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    versions = "lowest" if environment == "lowest" else "newest"
    cells = (
        versions,
        python.removeprefix("Python "),
        f"`{tests}`",
        f"{count['tests'] - failed - count['skipped']:,}",
        f"{count['skipped']:,}",
        f"{failed:,}",
        suite.attrib["timestamp"][:10],
    )
    return f"| {' | '.join(cells)} |"


def table(found: Iterable[Path]) -> str:
    """Return the runs of these files as Markdown."""
    head = (
        "| versions | Python | tests | passed | skipped | failed | on |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    )
    return "\n".join((*head, *(row(one) for one in sorted(found))))


if __name__ == "__main__":
    PART.write(table(RESULTS.glob("*.xml")))
