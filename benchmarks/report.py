"""What a benchmark found, as data: tables, targets and plots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

__all__ = ["Cell", "Headline", "Plot", "Report", "Table", "Target", "shown"]

Cell = str | float | None
"""A number with its unit in the column's head, a text, or None: not measured."""


def shown(value: Cell) -> str:
    """Return a cell as people read it: numbers with three significant digits, whole ones from 1,000 on."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= 1_000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, the first of each naming what was measured; `note` says what a reader must know of them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and the bound that it should keep: at most `limit`, or with `at_least` no less.

    `why`: what keeps it from its bound, where it does not keep it; a sentence without a full stop.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False
    why: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def text(self) -> str:
        """The figure, its bound and the verdict, as a sentence's end; then why it is not met."""
        bound = "at least" if self.at_least else "at most"
        verdict = f"{shown(self.value)} (target {bound} {shown(self.limit)}: {'met' if self.met else 'not met'})"
        return verdict if self.met or not self.why else f"{verdict}. {self.why}"


@dataclass(frozen=True, slots=True)
class Headline:
    """The most telling figure: what was measured, with its unit, against what, and the ratio of both.

    `ratio` is `value / baseline` unless it is given, such as the median of the rounds' ratios.
    """

    what: str
    value: float
    against: str
    baseline: float
    ratio: float | None = None

    @property
    def times(self) -> float | None:
        """The ratio; None where the baseline is 0."""
        if self.ratio is not None or not self.baseline:
            return self.ratio
        return self.value / self.baseline


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of (x, y) points by name; on logarithmic axes if `logarithmic`."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Sequence[float]]]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All that one benchmark found; `parameters` are what it was measured with.

    `headlines`, one or two, go into the table of all benchmarks; without any its first targets do.
    """

    parameters: Mapping[str, float]
    tables: Sequence[Table]
    targets: Sequence[Target] = ()
    plots: Sequence[Plot] = ()
    headlines: Sequence[Headline] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON; `met` of each target goes with it."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for target, written in zip(self.targets, made["targets"], strict=True):
            written["met"] = target.met
        return made

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `as_json` wrote."""
        targets = [{name: one[name] for name in one if name != "met"} for one in value["targets"]]
        return cls(
            parameters=value["parameters"],
            tables=[Table(**one) for one in value["tables"]],
            targets=[Target(**one) for one in targets],
            plots=[Plot(**one) for one in value["plots"]],
            headlines=[Headline(**one) for one in value["headlines"]],
        )
