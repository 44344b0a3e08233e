"""What was measured, as a file of JSON: each benchmark's report, its text, its date, the machine and the versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.report import Report
from taskbridge.errors import InvalidInput

__all__ = ["FILE", "Figures", "read", "write"]

FILE: Final = "benchmarks.json"
"""What `make bench` writes, beside the page."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One benchmark's report, and what a reader of it must know: `machine` and `versions` by name of their parts."""

    summary: str
    text: str
    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    report: Report

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        texts = {name: getattr(self, name) for name in ("summary", "text", "date", "machine", "versions")}
        return {**texts, "report": self.report.as_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `as_json` wrote."""
        return cls(**{**value, "report": Report.from_json(value["report"])})


def read(file: Path) -> dict[str, Figures]:
    """Return what `file` holds, by name of the benchmark; nothing where there is no such file.

    Raises:
        InvalidInput: it was not written by `write`.
    """
    if not file.exists():
        return {}
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        return {name: Figures.from_json(value) for name, value in written.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(
            f"{file} holds no figures ({type(error).__name__}: {error}): move it away and measure again"
        ) from None


def write(file: Path, found: Mapping[str, Figures], order: Iterable[str]) -> None:
    """Write those of `found` that `order` names, in its order; whoever reads meanwhile finds the former ones."""
    text = json.dumps({name: found[name].as_json() for name in order if name in found}, indent=1, ensure_ascii=False)
    new = file.with_suffix(".new")
    new.write_text(text + "\n", encoding="utf-8")
    new.replace(file)
