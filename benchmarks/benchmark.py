"""A benchmark: its name, what it measures, and the options that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.report import Report

__all__ = ["Benchmark", "Option"]


@dataclass(frozen=True, slots=True)
class Option:
    """A number that `measure` takes by `name`, from `least` to `most`; whole if its default is."""

    name: str
    default: float
    least: float
    most: float
    help: str


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    Args:
        name: its command.
        summary: what it measures, in some words.
        text: what is measured against what, and the target.
        measure: takes the options by name, and measures baselines and ours in turn.
        options: what a user may set.
        small: options with which it is over in seconds; its figures then mean nothing.
        page: options that `make bench` sets for the page of figures, where they are not the defaults.
    """

    name: str
    summary: str
    text: str
    measure: Callable[..., Report]
    options: Sequence[Option]
    small: Mapping[str, float]
    page: Mapping[str, float] = field(default_factory=dict)
