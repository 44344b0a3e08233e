"""`taskbridge saved`: what bursts saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.histogram import BOUNDS_MS, within
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted
from taskbridge.common.times import iso

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.observing.answers import Answers
    from taskbridge.observing.shapes import BurstRow, DayRow

__all__ = ["saved"]

BY_DAY: Final = ("events", "bursts", "runs", "records", "runs saved", "failed", "run time", "first event p50", "p99")
BY_BURST: Final = ("events", "runs", "records", "runs saved", "failed", "first event", "with a window of 500 ms")


@click.command(
    short_help="Show what bursts saved: events against runs.",
    epilog=examples("taskbridge saved", "taskbridge saved France --limit 5", "taskbridge saved --days 1 --json"),
)
@click.argument("tenant", required=False)
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--days", type=click.IntRange(1, 31), default=7, show_default=True, help="So many days (UTC), with today."
)
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="At most so many bursts.")
@data_dir_option
@json_option
def saved(tenant: str | None, pipeline: str | None, days: int, limit: int, data_dir: Path, as_json: bool) -> None:
    """Show how many runs the events of the last days became, or the last bursts of TENANT one by one.

    `runs saved`: how many runs fewer there were than events. `first event` is the time from the first event of a burst
    to the first record's delivery: half of the bursts of a day took at most p50, 99 of 100 at most p99. These are
    known to the next step, and beyond 10 s as `> 10,000 ms` only: in --json the field `_ms` is null then, and
    `_over_ms` has the 10,000. Beside each burst stands its exact time, and what it would have been had its events been
    collected for 500 ms first. The figures come from the run history; days are summed up once a minute.

    Exit status: 0, also where nothing is known.
    """
    from taskbridge.cli import undeclared
    from taskbridge.cli.asking import answers_of
    from taskbridge.observing.history import NO_HISTORY

    if tenant is not None:
        check_tenant(tenant)
    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    names = runtime.pipelines.names() if pipeline is None else [runtime.pipelines[pipeline].name]
    answers, terminal = answers_of(runtime), console.stdout()
    if as_json:
        found = {name: _as_json(answers, name, tenant, days, limit) for name in names}
        console.emit_json({"pipelines": found} | (undeclared.as_json(runtime) if pipeline is None else {}))
        return
    for name in names:
        if tenant is None:
            _show_days(terminal, name, answers.saved(name, days=days), days)
        else:
            _show_bursts(terminal, name, tenant, answers.bursts(name, tenant, limit))
    if not answers.has_history:
        terminal.print(NO_HISTORY)
    if pipeline is None:
        undeclared.tell(runtime)


def _as_json(answers: Answers, pipeline: str, tenant: str | None, days: int, limit: int) -> dict[str, Any]:
    if tenant is None:
        names = ("events", "bursts", "runs", "records", "rejected", "failed", "run_ms")
        return {
            "days": [
                {"day": iso(one.day), "runs_saved": one.runs_saved}
                | {name: getattr(one, name) for name in names}
                | _delay("first_event_p50", one.first_event_p50_ms)
                | _delay("first_event_p99", one.first_event_p99_ms)
                for one in answers.saved(pipeline, days=days)
            ]
        }
    of_burst = ("events", "runs", "records", "failed", "first_event_ms", "windowed_ms")
    return {
        "bursts": [
            {"began_at": iso(one.began_at), "ended_at": iso(one.ended_at), "runs_saved": one.runs_saved}
            | {name: getattr(one, name) for name in of_burst}
            for one in answers.bursts(pipeline, tenant, limit)
        ]
    }


def _delay(name: str, value: float | None) -> dict[str, float | None]:
    over = value is not None and math.isinf(value)
    return {f"{name}_ms": None if over else value, f"{name}_over_ms": BOUNDS_MS[-1] if over else None}


def _show_days(terminal: Console | console.Pipe, pipeline: str, rows: list[DayRow], days: int) -> None:
    from taskbridge.cli.asking import seconds

    last = f"in the last {counted(days, 'day')}"
    if not rows:
        terminal.print(f"{pipeline}: no run {last}, or none is summed up yet: a worker does that each minute")
        return
    events, runs = sum(one.events for one in rows), sum(one.runs for one in rows)
    runs_saved = sum(one.runs_saved for one in rows)
    terminal.print(
        f"{pipeline}: {last} {counted(events, 'event')} became {counted(runs, 'run')}: "
        f"{_share(runs_saved, events)} of the runs saved"
    )
    if 0 < runs < (records := sum(one.records for one in rows)):
        terminal.print(
            f"  they had {records:,} records: a run for each would have been {records / runs:.1f} times as many"
        )
    made = console.Table(terminal, "day (UTC)", *BY_DAY, optional=("bursts", "run time"))
    for one in rows:
        counts = (f"{value:,}" for value in (one.events, one.bursts, one.runs, one.records))
        delays = (_within(one.first_event_p50_ms), _within(one.first_event_p99_ms))
        share = _share(one.runs_saved, one.events)
        made.add_row(f"{one.day:%Y-%m-%d}", *counts, share, f"{one.failed:,}", seconds(one.run_ms), *delays)
    terminal.print(made)


def _show_bursts(terminal: Console | console.Pipe, pipeline: str, tenant: str, rows: list[BurstRow]) -> None:
    from taskbridge.cli.asking import clock

    if not rows:
        terminal.print(console.plain(f"{pipeline}, {tenant}: no burst is known"))
        return
    made = console.Table(terminal, "burst began (UTC)", *BY_BURST, title=f"{pipeline}, {tenant}")
    for one in rows:
        counts = (f"{value:,}" for value in (one.events, one.runs, one.records))
        share = _share(one.runs_saved, one.events)
        made.add_row(
            clock(one.began_at), *counts, share, f"{one.failed:,}", _ms(one.first_event_ms), _ms(one.windowed_ms)
        )
    terminal.print(made)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _ms(value: int | None) -> str:
    return "-" if value is None else f"{value:,} ms"


def _within(value: float | None) -> str:
    return "-" if value is None else within(value)
