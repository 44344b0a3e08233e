"""`taskbridge top`: the tenants that cause the most work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.options import Number, data_dir_option, examples, json_option

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.observing.answers import Answers
    from taskbridge.observing.shapes import By, NoisyTenants

__all__ = ["top"]

BY: Final = ("events", "runs", "records", "failures", "run time")
EVERY_SECONDS: Final = 2.0
LOOKS_SHARE: Final = 0.05
"""A look is taken this much of the time at the most."""


@click.command(
    short_help="Show the tenants that cause the most work.",
    epilog=examples("taskbridge top --sort records", "taskbridge top --pipeline orders --hours 1 --once --json"),
)
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--sort",
    "--by",
    "by",
    type=click.Choice([name.replace(" ", "-") for name in BY]),
    default="events",
    show_default=True,
    help="Tenants with the most of it first, all in the last hours; of equal ones those with more in the other "
    "columns, from the left.",
)
@click.option("--hours", type=Number(0.01, 24 * 31), default=24.0, show_default=True, help="So far back.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="At most so many tenants.")
@click.option("--once", is_flag=True, help="Print it once, also on a terminal.")
@data_dir_option
@json_option
def top(pipeline: str | None, by: str, hours: float, limit: int, once: bool, data_dir: Path, as_json: bool) -> None:
    """Show the tenants that had the most events, runs, records, failures or run time in the last hours.

    A run that failed is a failure here. `taskbridge status --sort` goes by failures in a row and by runs since the
    tenant's first. With --sort failures only runs that failed count, in all columns.

    On a terminal it is shown anew every 2 s, until Ctrl-C; elsewhere once. The figures come from the run history; where
    that has more than 10,000 runs, they are estimated from as many, drawn by chance, and the line below says so.
    """
    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    if pipeline is not None:
        pipeline = runtime.pipelines[pipeline].name
    from taskbridge.cli import undeclared
    from taskbridge.cli.asking import answers_of

    chosen = cast("By", by.replace("-", " "))
    answers, terminal = answers_of(runtime), console.stdout()
    if as_json or once or isinstance(terminal, console.Pipe) or not terminal.is_terminal:
        found = answers.noisy(pipeline, by=chosen, hours=hours, limit=limit)
        # The history has the runs of all pipelines.
        left_out = pipeline is None and not answers.has_history
        if as_json:
            names = ("pipeline", "tenant", "events", "runs", "records", "failures", "run_ms")
            rows = [{name: getattr(one, name) for name in names} for one in found.tenants]
            more = undeclared.as_json(runtime) if left_out else {}
            console.emit_json({"by": chosen, "hours": hours, "basis": found.basis, "tenants": rows, **more})
        else:
            terminal.print(_table(terminal, found))
            terminal.print(found.basis)
            if left_out:
                undeclared.tell(runtime)
        return
    _live(terminal, answers, pipeline, chosen, hours, limit)


def _live(terminal: Console, answers: Answers, pipeline: str | None, by: By, hours: float, limit: int) -> None:
    from rich.console import Group
    from rich.live import Live

    room = max(1, min(limit, terminal.size.height - 6))
    with Live(console=terminal, auto_refresh=False) as live:
        while True:
            before = time.monotonic()
            found = answers.noisy(pipeline, by=by, hours=hours, limit=room)
            live.update(Group(_table(terminal, found), console.cell(found.basis, "dim")), refresh=True)
            took = time.monotonic() - before
            ends = time.monotonic() + max(EVERY_SECONDS, took / LOOKS_SHARE)
            while time.monotonic() < ends:
                interrupts.check()
                time.sleep(0.1)


def _table(terminal: Console | console.Pipe, found: NoisyTenants) -> console.Table:
    from taskbridge.cli.asking import seconds

    made = console.Table(terminal, "tenant", "pipeline", *BY, left=("pipeline",))
    for one in found.tenants:
        counts = [f"{value:,}" for value in (one.events, one.runs, one.records, one.failures)]
        made.add_row(console.plain(one.tenant), one.pipeline, *counts, seconds(one.run_ms))
    return made
