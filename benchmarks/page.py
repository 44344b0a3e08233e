"""Figures as Markdown: the page of all benchmarks, and the blocks of figures in other pages.

A block stands between `<!-- figures: WHAT -->` and `<!-- end -->`. WHAT is

- `overview`: the headlines of all benchmarks;
- NAME: the targets of a benchmark;
- NAME N: its table with that number, counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Figures
from benchmarks.plots import draw
from benchmarks.report import Cell, Report, Table, shown
from taskbridge.errors import InvalidInput

__all__ = ["PLOTS", "draw_plots", "pages_under", "refresh", "refreshed", "rendered"]

PLOTS: Final = "benchmarks"
"""The folder of the plots, beside the page."""

_BLOCK: Final = re.compile(r"(<!-- figures: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_YET: Final = "Not measured yet.\n"
_MOST_TARGETS: Final = 2

_INTRODUCTION: Final = """# Benchmarks

`make bench` measured what stands here and wrote this page; nothing on it is written by hand. Each benchmark measures
its baselines in the same run, on the same servers, in turn with what they are compared with.
"""


def rendered(found: Mapping[str, Figures]) -> str:
    """Return the page of all benchmarks."""
    places = _places(found)
    parts = [_INTRODUCTION, overview(found)]
    for number, (machine, versions) in enumerate(places, 1):
        title = "Measured on" if len(places) == 1 else f"Machine {number}"
        parts.append(f"## {title}\n\n{_listed({**machine, **versions})}")
    for name, one in found.items():
        where = "" if len(places) == 1 else f", on machine {places.index((one.machine, one.versions)) + 1}"
        parts.append(_section(name, one, where))
    return "\n".join(parts)


def overview(found: Mapping[str, Figures]) -> str:
    """Return the table of the headlines; of a benchmark without any, its first targets."""
    rows = [(f"`{name}`", *row) for name, one in found.items() for row in _headlines(one.report)]
    return _rows(("benchmark", "measured", "figure", "against", "ratio"), rows)


def refreshed(page: Path, found: Mapping[str, Figures]) -> str:
    """Return the text of `page` with every block of figures as `found` has them.

    Raises:
        InvalidInput: a block has no end, or asks for what its benchmark does not have.
    """
    text = page.read_text(encoding="utf-8")
    if len(_BLOCK.findall(text)) != text.count("<!-- figures:"):
        raise InvalidInput(f"{page}: a block of figures has no end: write <!-- end --> below it, on a line of its own")
    try:
        return _BLOCK.sub(lambda block: f"{block[1]}{_block(block[2], found)}{block[3]}", text)
    except LookupError as error:
        raise InvalidInput(f"{page}: {error.args[0]}") from None


def refresh(places: Iterable[Path], found: Mapping[str, Figures]) -> None:
    """Refresh the blocks of figures of the pages in `places`.

    Raises: as `refreshed`.
    """
    for one in pages_under(places):
        after = refreshed(one, found)
        if after != one.read_text(encoding="utf-8"):
            one.write_text(after, encoding="utf-8")


def pages_under(places: Iterable[Path]) -> list[Path]:
    """Return the Markdown files among `places` and in those that are folders."""
    return sorted(page for place in places for page in ([place] if place.is_file() else place.rglob("*.md")))


def draw_plots(found: Mapping[str, Figures], directory: Path) -> None:
    """Draw the plots of each benchmark that has any into `directory`.

    Raises: as `draw`.
    """
    for name, one in found.items():
        if one.report.plots:
            directory.mkdir(parents=True, exist_ok=True)
            draw(one.report.plots, directory / f"{name}.svg")


def _places(found: Mapping[str, Figures]) -> list[tuple[Mapping[str, str], Mapping[str, str]]]:
    places: list[tuple[Mapping[str, str], Mapping[str, str]]] = []
    for one in found.values():
        if (one.machine, one.versions) not in places:
            places.append((one.machine, one.versions))
    return places


def _section(name: str, one: Figures, where: str) -> str:
    parts = [f"## {name}\n\n{one.text}\n\nMeasured on {one.date}{where}: `{_command(name, one.report)}`\n"]
    parts += [f"**{table.title}**\n\n{_table(table)}" for table in one.report.tables]
    if one.report.targets:
        parts.append(_targets(one.report))
    if one.report.plots:
        titles = ", ".join(plot.title for plot in one.report.plots)
        parts.append(f"![{titles}]({PLOTS}/{name}.svg)\n")
    return "\n".join(parts)


def _block(what: str, found: Mapping[str, Figures]) -> str:
    """Raises LookupError for what there is not."""
    name, _, number = what.partition(" ")
    if what == "overview":
        return overview(found)
    if name not in found:
        return _NOT_YET
    tables = found[name].report.tables
    if not number:
        return _targets(found[name].report)
    if not number.isdecimal() or not 1 <= int(number) <= len(tables):
        raise LookupError(f"the benchmark {name} has no table {number!r}: give a number from 1 to {len(tables)}")
    return _table(tables[int(number) - 1])


def _headlines(report: Report) -> list[tuple[Cell, ...]]:
    if report.headlines:
        return [(one.what, one.value, f"{one.against}: {shown(one.baseline)}", one.times) for one in report.headlines]
    targets = report.targets[:_MOST_TARGETS]
    return [(one.what, one.value, one.text.partition("(")[2].partition(")")[0], None) for one in targets]


def _targets(report: Report) -> str:
    return "".join(f"- {target.what}: {target.text}\n" for target in report.targets)


def _command(name: str, report: Report) -> str:
    given = (f"--{option.replace('_', '-')} {_number(value)}" for option, value in report.parameters.items())
    return " ".join(("python -m benchmarks", name, *given))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _table(table: Table) -> str:
    note = f"\n{table.note}\n" if table.note else ""
    return f"{_rows(table.columns, table.rows)}{note}"


def _listed(values: Mapping[str, str]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in values.items())


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table; what holds a number in any row stands to the right."""
    numbers = [any(not isinstance(row[at], str | None) for row in rows) for at in range(len(columns))]
    lines = [list(columns), ["---:" if number else "---" for number in numbers]]
    lines += [[shown(value) for value in row] for row in rows]
    return "".join(f"| {' | '.join(_cell(value) for value in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
