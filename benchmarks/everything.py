"""`python -m benchmarks all DIRECTORY` measures all benchmarks and writes their page; `make bench` runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from benchmarks import figures, page
from benchmarks.adopt import ADOPT
from benchmarks.bulk import BULK
from benchmarks.drain import DRAIN
from benchmarks.figures import FILE, Figures
from benchmarks.first_event import FIRST_EVENT
from benchmarks.looks import LOOKS
from benchmarks.neighbours import NEIGHBOURS
from benchmarks.no_event import NO_EVENT
from benchmarks.notify import NOTIFY
from benchmarks.receive import RECEIVE
from benchmarks.record import RECORD
from benchmarks.recovery import RECOVERY
from benchmarks.report import Benchmark
from benchmarks.storm import STORM
from benchmarks.sweep import SWEEP
from benchmarks.tenants import TENANTS
from taskbridge.errors import TaskBridgeError

__all__ = ["BENCHMARKS", "all_of_them", "measure", "render"]

BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    FIRST_EVENT,
    NO_EVENT,
    RECOVERY,
    NOTIFY,
    RECORD,
    ADOPT,
    BULK,
    STORM,
    DRAIN,
    SWEEP,
    TENANTS,
    NEIGHBOURS,
    RECEIVE,
    LOOKS,
)
"""All benchmarks, in the order of the page."""

NAMES: Final = [benchmark.name for benchmark in BENCHMARKS]
PAGE: Final = "benchmarks.md"


@click.command(name="all", short_help="Measure all benchmarks and write their page.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure this one and keep the rest; repeatable.")
@click.option("--small", is_flag=True, help="Measure in seconds, to try the command: the figures mean nothing.")
@click.option("--render", "render_only", is_flag=True, help="Measure nothing: write the pages from the JSON.")
@click.option(
    "--pages",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="A Markdown file, or a folder of them, in which blocks of figures are refreshed; repeatable.",
)
def all_of_them(directory: Path, only: Sequence[str], small: bool, render_only: bool, pages: Sequence[Path]) -> None:
    """Measure the benchmarks one after the other; write DIRECTORY/benchmarks.json and benchmarks.md.

    Each report is stored as soon as it is complete. If a benchmark fails, its earlier figures stay, the others are
    measured, and the exit status is 1.
    """
    chosen = [benchmark for benchmark in BENCHMARKS if not only or benchmark.name in only]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        failed = [] if render_only else measure(directory, chosen, small=small)
        render(directory, pages)
    except TaskBridgeError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}: choose a writable DIRECTORY") from None
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}; their earlier figures stay")


def measure(directory: Path, chosen: Sequence[Benchmark], *, small: bool = False) -> list[str]:
    """Measure `chosen` and store each report; return the names of those that failed."""
    file = directory / FILE
    stored = figures.read(file)
    commit, machine, versions = figures.commit(), figures.machine(), figures.versions()
    failed = []
    for number, benchmark in enumerate(chosen, 1):
        name = benchmark.name
        click.echo(f"{name} ({number} of {len(chosen)})", err=True)
        started = time.monotonic()
        try:
            report = benchmark.measure(**benchmark.parameters(small=small))
        except Exception as error:
            # The others are measured all the same.
            click.echo(f"{name} failed: {type(error).__name__}: {error}", err=True)
            failed.append(name)
            continue
        click.echo(f"{name}: {time.monotonic() - started:.0f} s", err=True)
        stored[name] = Figures(datetime.now(UTC).date().isoformat(), commit, machine, versions, report)
        figures.write(file, stored, NAMES)
    return failed


def render(directory: Path, pages: Sequence[Path] = ()) -> None:
    """Write the page of figures, and refresh the blocks of figures in `pages`, from the JSON.

    Raises:
        InvalidInput: the JSON cannot be read, or a page asks for figures that are not in it.
    """
    stored = figures.read(directory / FILE)
    (directory / PAGE).write_text(page.rendered(BENCHMARKS, stored), encoding="utf-8")
    page.refresh(pages, stored)
