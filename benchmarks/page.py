"""Figures as Markdown: the page of benchmarks, and the blocks of figures in other pages.

A block is between `<!-- figures: WHAT -->` and `<!-- end -->`. WHAT is

- `front`: six lines for the README;
- NAME: the targets of a benchmark;
- NAME N: its table number N, counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import Figures
from benchmarks.report import Benchmark, Cell, Report, Table, shown
from taskbridge.errors import InvalidInput

__all__ = ["front", "pages_under", "refresh", "refreshed", "rendered"]

_BLOCK: Final = re.compile(r"(<!-- figures: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_NOT_YET: Final = "Not measured yet.\n"

_INTRODUCTION: Final = """# Benchmarks

`make bench` runs all benchmarks and writes this page. Do not edit the page by hand. `python -m benchmarks NAME` runs
one benchmark. `python -m benchmarks.compare COMMIT NAME` compares another commit with your working tree.

Each benchmark measures TaskBridge and a baseline in turns, on the same machine and the same servers. Machines differ in
speed, so a ratio says more than a time. If a benchmark has rounds, each round gives a ratio, and the page shows the
median of these ratios. This median can differ from the ratio of the two values in a table.

## Promises

Each benchmark checks one promise. This table shows its most important result.
"""
_UNMET: Final = """## Targets that are not met

"""


class _Line(NamedTuple):
    """A line of the README: a benchmark's first table, the rows of TaskBridge and of the baseline, and the column."""

    what: str
    benchmark: str
    ours: str
    baseline: str
    column: str
    baseline_called: str = ""
    """What the README calls the baseline, if the row's name says too little."""


_FRONT: Final = (
    _Line(
        "A lone event to the handler's first line, median ms",
        "first-event",
        "TaskBridge",
        "a plain Celery task that reads",
        "median ms",
    ),
    _Line(
        "A lone event while the only slot works through another tenant's backlog of a million records, p99 ms",
        "neighbours",
        "1 slot, 1 tenant, 2 ms per record",
        "plain Celery: 1 slot, 1 tenant, 2 ms per record",
        "p99 ms",
        "plain Celery, with a queue for small tenants and a backlog of 10,000",
    ),
    _Line(
        "An event that joins a burst, µs for the producer",
        "notify",
        "notify_event.delay, absorbed",
        "`.delay()` of a plain Celery task",
        "median µs",
    ),
    _Line(
        "First events of very many tenants at once, runs/s",
        "storm",
        "TaskBridge",
        "plain Celery tasks that do nothing",
        "runs/s",
    ),
    _Line("Records of one tenant, records/s", "sweep", "TaskBridge", "bare select", "records/s"),
    _Line(
        "An interrupted record after SIGKILL of its worker, median s",
        "recovery",
        "TaskBridge",
        "Celery, acks_late",
        "interrupted record, median s",
    ),
)


def rendered(benchmarks: Sequence[Benchmark], stored: Mapping[str, Figures]) -> str:
    """Return the page of all benchmarks."""
    measured = [(one, stored[one.name]) for one in benchmarks if one.name in stored]
    places = list(dict.fromkeys(_place(figures) for _, figures in measured))
    parts = [_INTRODUCTION, _promises(measured)]
    if unmet := "".join(_unmet(one, figures.report) for one, figures in measured):
        parts.append(_UNMET + unmet)
    parts += [_section(one, figures, places.index(_place(figures)) + 1) for one, figures in measured]
    return "\n".join([*parts, *_machines(places)])


def front(stored: Mapping[str, Figures]) -> str:
    """Return the lines of the README.

    Raises:
        LookupError: a figure is not there.
    """
    rows = []
    for line in _FRONT:
        if line.benchmark not in stored:
            raise LookupError(f"there are no figures of {line.benchmark}: measure it first")
        table = stored[line.benchmark].report.tables[0]
        ours, baseline = table.cell(line.ours, line.column), table.cell(line.baseline, line.column)
        rows.append((line.what, shown(ours), f"{line.baseline_called or line.baseline}: {shown(baseline)}"))
    return _rows(("measured", "TaskBridge", "baseline"), rows)


def refreshed(page: Path, stored: Mapping[str, Figures]) -> str:
    """Return the text of `page` with the figures of `stored` in each block.

    Raises:
        InvalidInput: a block has no end, or asks for figures that its benchmark does not have.
    """
    text = page.read_text(encoding="utf-8")
    if len(_BLOCK.findall(text)) != text.count("<!-- figures:"):
        raise InvalidInput(f"{page}: a block of figures has no end: write <!-- end --> below it, on a line of its own")
    try:
        return _BLOCK.sub(lambda block: f"{block[1]}{_block(block[2], stored)}{block[3]}", text)
    except LookupError as error:
        raise InvalidInput(f"{page}: {error.args[0]}") from None


def refresh(places: Iterable[Path], stored: Mapping[str, Figures]) -> None:
    """Refresh the blocks of figures of the pages in `places`.

    Raises: as `refreshed`.
    """
    for page in pages_under(places):
        after = refreshed(page, stored)
        if after != page.read_text(encoding="utf-8"):
            page.write_text(after, encoding="utf-8")


def pages_under(places: Iterable[Path]) -> list[Path]:
    """Return the Markdown files among `places` and in those that are folders."""
    return sorted(page for place in places for page in ([place] if place.is_file() else place.rglob("*.md")))


def _place(figures: Figures) -> tuple[tuple[str, str], ...]:
    """Return the machine and the versions that something was measured with."""
    return (*figures.machine.items(), *figures.versions.items())


def _promises(measured: Sequence[tuple[Benchmark, Figures]]) -> str:
    rows = []
    for benchmark, figures in measured:
        target = figures.report.targets[0]
        promise = f"{benchmark.promise} ([{benchmark.name}](#{benchmark.name}))"
        rows.append((promise, target.value, target.bound, benchmark.meaning))
    return _rows(("promise", "result", "target", "what the result is"), rows)


def _unmet(benchmark: Benchmark, report: Report) -> str:
    missed = [f"{target.what}: {target.text}" for target in report.targets if not target.met]
    return f"- **{benchmark.name}**: {'; '.join(missed)}. {benchmark.unmet}".rstrip() + "\n" if missed else ""


def _section(benchmark: Benchmark, figures: Figures, machine: int) -> str:
    report = figures.report
    where = f"Measured on {figures.date} at commit `{figures.commit}` on [machine {machine}](#machine-{machine}), with"
    parts = [f"## {benchmark.name}\n\n{benchmark.text}\n\n{where} {_options(report)}.\n"]
    parts += [f"**{table.title}**\n\n{_table(table)}" for table in report.tables]
    parts.append(_targets(report))
    return "\n".join(parts)


def _block(what: str, stored: Mapping[str, Figures]) -> str:
    """Return the content of a block.

    Raises:
        LookupError: there are no such figures.
    """
    name, _, number = what.partition(" ")
    if what == "front":
        return front(stored)
    if name not in stored:
        return _NOT_YET
    tables = stored[name].report.tables
    if not number:
        return _targets(stored[name].report)
    if not number.isdecimal() or not 1 <= int(number) <= len(tables):
        raise LookupError(f"the benchmark {name} has no table {number!r}: give a number from 1 to {len(tables)}")
    return _table(tables[int(number) - 1])


def _targets(report: Report) -> str:
    return "".join(f"- {target.what}: {target.text}\n" for target in report.targets)


def _machines(places: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Return what all machines have in common, and then what each has of its own."""
    shared = [fact for fact in (places[0] if places else ()) if all(fact in place for place in places)]
    own = [[fact for fact in place if fact not in shared] for place in places]
    parts = [f"### Machine {number}\n\n{_listed(facts)}" for number, facts in enumerate(own, 1)]
    return [f"## Machines\n\nAll machines have:\n\n{_listed(shared)}", *parts]


def _options(report: Report) -> str:
    return ", ".join(f"`{name}={value:.15g}`" for name, value in report.parameters.items())


def _table(table: Table) -> str:
    note = f"\n{table.note}\n" if table.note else ""
    return f"{_rows(table.columns, table.rows)}{note}"


def _listed(facts: Iterable[tuple[str, str]]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in facts)


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table; a column with a number in any row is aligned to the right."""
    numbers = [any(not isinstance(row[at], str | None) for row in rows) for at in range(len(columns))]
    lines = [list(columns), ["---:" if number else "---" for number in numbers]]
    lines += [[shown(value) for value in row] for row in rows]
    return "".join(f"| {' | '.join(_cell(value) for value in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
