"""Where the time goes: samples of py-spy, summed up as tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from benchmarks.report import Table

__all__ = ["PROFILES", "Profile", "by_function", "by_package", "read_raw"]

PROFILES: Final = "profiles.json"
"""The file of figures that `make flames` writes."""

PYTHON: Final = "Python itself"
_FRAME: Final = re.compile(r"(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)$")
_PACKAGES: Final = ("taskbridge", "celery", "kombu", "billiard", "redis", "sqlalchemy", "psycopg")


class Frame(NamedTuple):
    """A function and the file that it stands in, relative to where its package lies."""

    function: str
    file: str

    @property
    def package(self) -> str:
        """The package that it belongs to."""
        first = self.file.partition("/")[0]
        return first if first in _PACKAGES else PYTHON

    @property
    def text(self) -> str:
        """As a row's name."""
        return f"{self.function} ({self.file})"


class Profile(NamedTuple):
    """How many samples had each stack, outermost frame first."""

    stacks: Sequence[tuple[tuple[Frame, ...], int]]

    @property
    def samples(self) -> int:
        """All samples."""
        return sum(count for _, count in self.stacks)


def read_raw(lines: Iterable[str]) -> Profile:
    """Read what `py-spy record --format raw` wrote: a stack and its samples in each line.

    A frame that py-spy could not read, because the process went on meanwhile, has no name and is left out.
    """
    stacks = []
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = tuple(_frame(one) for one in stack.split(";") if one.strip(" ()"))
        if frames:
            stacks.append((frames, int(count)))
    return Profile(stacks)


def by_function(title: str, profile: Profile, most: int, note: str = "") -> Table:
    """Return the functions with the most samples of their own, and the share of what they call."""
    own: Counter[Frame] = Counter()
    within: Counter[Frame] = Counter()
    for stack, count in profile.stacks:
        own[stack[-1]] += count
        within.update(dict.fromkeys(stack, count))
    percent = 100 / max(1, profile.samples)
    rows = [(frame.text, count * percent, within[frame] * percent) for frame, count in own.most_common(most)]
    return Table(title, ("", "itself, %", "with what it calls, %"), rows, note)


def by_package(title: str, profile: Profile, note: str = "") -> Table:
    """Return the packages by the samples that were in their own code, and the share of what they call."""
    own: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for stack, count in profile.stacks:
        own[stack[-1].package] += count
        within.update(dict.fromkeys((frame.package for frame in stack), count))
    percent = 100 / max(1, profile.samples)
    names = sorted(within, key=lambda name: (own[name], within[name]), reverse=True)
    rows = [(name, own[name] * percent, within[name] * percent) for name in names]
    return Table(title, ("", "itself, %", "with what it calls, %"), rows, note)


def _frame(text: str) -> Frame:
    found = _FRAME.match(text)
    return Frame(text, "") if found is None else Frame(found["function"], found["file"])
