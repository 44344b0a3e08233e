"""What a benchmark is, and what it finds, as data: tables and targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

__all__ = ["Benchmark", "Cell", "Option", "Report", "Table", "Target", "column", "shown"]

Cell = str | float | None
"""A number whose unit is in the column's head, a text, or None if it was not measured."""


def shown(value: Cell) -> str:
    """Return a cell as it is printed: numbers have three significant digits, and no fraction from 1,000 on."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if abs(value) >= 999.5 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def column(key: Any) -> Callable[[Any], str]:
    """Return the function that shows the value under `key` of a row."""
    return lambda row: shown(row[key])


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first cell of each names what was measured. `note` explains the table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def cell(self, row: str, column: str) -> Cell:
        """Return the cell in `column` of the row that begins with `row`.

        Raises:
            LookupError: there is no such row or column.
        """
        at = self.columns.index(column) if column in self.columns else None
        found = next((cells for cells in self.rows if cells[0] == row), None)
        if at is None or found is None:
            raise LookupError(f"the table {self.title!r} has no cell {row!r}, {column!r}")
        return found[at]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure and its bound: at most `limit`, or at least `limit` if `at_least`."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def bound(self) -> str:
        """The bound and the verdict, such as "at most 2: met"."""
        return f"{'at least' if self.at_least else 'at most'} {shown(self.limit)}: {'met' if self.met else 'not met'}"

    @property
    def text(self) -> str:
        """The figure, its bound and the verdict."""
        return f"{shown(self.value)} (target {self.bound})"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one benchmark found with these `parameters`. The first target is the most telling one."""

    parameters: Mapping[str, float]
    tables: Sequence[Table]
    targets: Sequence[Target]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the verdict of each target."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for target, written in zip(self.targets, made["targets"], strict=True):
            written["met"] = target.met
        return made

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned, here or at another commit."""
        names = ("what", "value", "limit", "at_least")
        return cls(
            parameters=value["parameters"],
            tables=[Table(**table) for table in value["tables"]],
            targets=[Target(**{name: target[name] for name in names}) for target in value["targets"]],
        )


@dataclass(frozen=True, slots=True)
class Option:
    """A number from `least` to `most` that `measure` takes as `name`; an integer if `default` is one."""

    name: str
    default: float
    least: float
    most: float
    help: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Args:
        name: the name of its command.
        promise: what the README or the documentation promises, and this benchmark checks.
        meaning: what the first target's figure means for a user, in one sentence.
        text: what is measured against which baselines.
        measure: takes the options by name; measures TaskBridge and the baselines alternately.
        options: what can be set on the command line.
        small: options with which it takes seconds; the figures then mean nothing.
        page: options that `make bench` uses instead of the defaults.
        unmet: why a target is not met, if one is not.
    """

    name: str
    promise: str
    meaning: str
    text: str
    measure: Callable[..., Report]
    options: Sequence[Option]
    small: Mapping[str, float]
    page: Mapping[str, float] = field(default_factory=dict)
    unmet: str = ""

    def parameters(self, *, small: bool = False) -> dict[str, float]:
        """Return all options for `make bench`, or those with which it takes seconds."""
        defaults = {option.name: option.default for option in self.options}
        return {**defaults, **(self.small if small else self.page)}
