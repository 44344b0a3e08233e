"""`python -m benchmarks all DIRECTORY`: measures all benchmarks and writes their page; `make bench` runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from benchmarks import figures, page
from benchmarks.benchmark import Benchmark
from benchmarks.catalogue import BENCHMARKS
from benchmarks.environment import machine, versions
from benchmarks.figures import FILE, Figures
from benchmarks.plots import check_matplotlib
from benchmarks.profiles import PROFILES
from taskbridge.errors import TaskBridgeError

__all__ = ["all_of_them", "measure", "render", "run"]

NAMES: Final = [benchmark.name for benchmark in BENCHMARKS]
PAGE: Final = "benchmarks.md"


@click.command(name="all", short_help="Measure all, and write their page.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Measure this one and keep the rest; repeatable.")
@click.option("--small", is_flag=True, help="Measure in seconds, to try the command: the figures mean nothing.")
@click.option("--render", "render_only", is_flag=True, help="Measure nothing: write the pages from the JSON.")
@click.option(
    "--pages",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="A Markdown file, or a folder of them, whose blocks of figures are refreshed; repeatable.",
)
def all_of_them(directory: Path, only: Sequence[str], small: bool, render_only: bool, pages: Sequence[Path]) -> None:
    """Measure the benchmarks one after the other; write DIRECTORY/benchmarks.json, benchmarks.md and their plots.

    Each report is stored as soon as it is there. A benchmark that fails leaves the others, and its former figures, as
    they are; the exit status is then 1.
    """
    try:
        chosen = [one for one in BENCHMARKS if not only or one.name in only]
        run(directory, [] if render_only else chosen, pages, small=small)
    except TaskBridgeError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(
            f"{error.filename}: {error.strerror}: choose a DIRECTORY that can be written"
        ) from None


def run(directory: Path, chosen: Sequence[Benchmark], pages: Sequence[Path] = (), *, small: bool = False) -> None:
    """Measure `chosen`, if there are any, then write the pages.

    Raises:
        click.ClickException: some failed; the message names them. The others are stored, and the pages written.
    """
    check_matplotlib()
    directory.mkdir(parents=True, exist_ok=True)
    failed = measure(directory, chosen, small=small) if chosen else []
    render(directory, pages)
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}; what was measured before stays")


def measure(directory: Path, chosen: Sequence[Benchmark], *, small: bool = False) -> list[str]:
    """Measure `chosen` and store each report; return the names of those that failed."""
    file = directory / FILE
    found = figures.read(file)
    environment = {"machine": machine(), "versions": versions()}
    failed = []
    for number, one in enumerate(chosen, 1):
        click.echo(f"{one.name} ({number} of {len(chosen)})", err=True)
        started = time.monotonic()
        try:
            report = one.measure(**_parameters(one, small=small))
        except Exception as error:
            # Whatever it is, the others are measured.
            click.echo(f"{one.name} failed: {type(error).__name__}: {error}", err=True)
            failed.append(one.name)
            continue
        click.echo(f"{one.name}: {time.monotonic() - started:.0f} s", err=True)
        date = datetime.now(UTC).date().isoformat()
        found[one.name] = Figures(one.summary, one.text, date, report=report, **environment)
        figures.write(file, found, NAMES)
    return failed


def render(directory: Path, pages: Sequence[Path] = ()) -> None:
    """Write the page of figures and its plots, and refresh the blocks of `pages`, from the JSON alone.

    Raises:
        InvalidInput: the JSON cannot be read, or a page asks for figures that are not in it.
    """
    found = figures.read(directory / FILE)
    (directory / PAGE).write_text(page.rendered(found), encoding="utf-8")
    page.draw_plots(found, directory / page.PLOTS)
    page.refresh(pages, {**found, **figures.read(directory / PROFILES)})


def _parameters(one: Benchmark, *, small: bool) -> dict[str, float]:
    defaults = {option.name: option.default for option in one.options}
    return {**defaults, **(one.small if small else one.page)}
