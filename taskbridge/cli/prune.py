"""`taskbridge prune`: delete old records that are done with."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted, uninterrupted
from taskbridge.cli.options import data_dir_option, duration, examples, json_option
from taskbridge.common.texts import counted
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipelines
    from taskbridge.store import Holder, Prune, Step

__all__ = ["prune"]

SHOWN_HOLDERS: Final = 5
MOST_HOLDERS: Final = 10_000
"""Of so many holders those with the most records are kept; twice as many may be counted at a time."""


@dataclass(slots=True)
class _Held:
    """How many old records each holder holds back, and all `pipelines` that do.

    `is_cut`: there were too many holders, so those with the fewest records were left out. The number of a holder that
    was left out once, and holds more back after that, is too small.
    """

    records: Counter[Holder] = field(default_factory=Counter)
    pipelines: set[str] = field(default_factory=set)
    is_cut: bool = False

    def add(self, held: Mapping[Holder, int]) -> None:
        self.records.update(held)
        self.pipelines.update(one.pipeline for one in held if one.pipeline is not None)
        if len(self.records) > 2 * MOST_HOLDERS:
            self.records = Counter(dict(self.records.most_common(MOST_HOLDERS)))
            self.is_cut = True

    def most(self) -> list[tuple[Holder, int]]:
        """Return the few that hold the most back."""
        order = sorted(self.records.items(), key=lambda one: (-one[1], one[0].pipeline or "", one[0]))
        return order[:SHOWN_HOLDERS]


@click.command(
    epilog=examples("taskbridge prune --older-than 30d --dry-run", "taskbridge prune --older-than 12h --deliveries"),
)
@click.option(
    "--older-than",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Only what was written longer ago than this: a number with s, m, h, d or w.",
)
@click.option("--pipeline", metavar="NAME", help="Only what this pipeline reads.  [default: all]")
@click.option("--deliveries", is_flag=True, help="Delete old rows of the journal as well.")
@click.option("--dry-run", is_flag=True, help="Count and delete nothing.")
@data_dir_option
@json_option
def prune(
    older_than: timedelta, pipeline: str | None, deliveries: bool, dry_run: bool, data_dir: Path, as_json: bool
) -> None:
    """Delete records that were written long ago and are done with.

    A record goes when every pipeline that reads its source has handled or discarded it: name the modules of all
    pipelines in TASKBRIDGE_PIPELINES. What is pending, in quarantine or about to be tried again stays, as does what no
    criterion matched and nobody discarded. Rows of quarantine go with their record, or when it has changed since. Where
    old records stay, it names the tenants that hold the most of them back, and why.

    A pruned record that is written again is new: it is delivered again, with another idempotency key. So is a message
    whose id comes again, and a row of an adopted table that is backfilled for the first time, or with --again. Choose
    an age at which nobody sends it again, and backfill before you prune.

    It works in small transactions and can be stopped at any time; what was deleted until then stays deleted.

    Exit status: 0; 1 a server went away; 2 wrong use.
    """
    from taskbridge import store

    counts: Counter[str] = Counter(dict.fromkeys((*store.PRUNED, "kept"), 0))
    held = _Held()
    complete = False
    runtime = environment.session(data_dir, environment.runtime)
    what = _what(runtime.pipelines, older_than, pipeline, deliveries=deliveries, dry_run=dry_run)
    try:
        _prune(store.prune(runtime.engine, what), counts, held)
        complete = True
    except (TaskBridgeError, Interrupted):
        console.tell("Pruning was cut short; what is counted is done. Run it again for the rest.")
        raise
    finally:
        _show(what, counts, held, as_json=as_json, complete=complete)


def _what(pipelines: Pipelines, older_than: timedelta, pipeline: str | None, **options: bool) -> Prune:
    """Raise UnknownPipeline where no loaded module declares `pipeline`."""
    from taskbridge.store import Prune

    if pipeline is not None:
        pipeline = pipelines[pipeline].name
    return Prune(older_than, {name: pipelines[name].source for name in pipelines.names()}, pipeline, **options)


def _prune(steps: Iterator[Step], counts: Counter[str], held: _Held) -> None:
    """Take step after step, with a progress bar. A signal ends it after a step."""
    from taskbridge.common.server_errors import translated_errors

    with console.progress(time_left=True) as progress:
        tasks: dict[str, Any] = {}
        while True:
            with uninterrupted(), translated_errors():
                step = next(steps, None)
            if step is None:
                return
            counts[step.table] += step.deleted
            counts["quarantine"] += step.quarantine
            counts["kept"] += step.kept
            held.add(step.held)
            if step.table not in tasks:
                tasks[step.table] = progress.add_task(step.table, total=None)
            progress.update(tasks[step.table], advance=step.deleted + step.quarantine + step.kept)


def _show(what: Prune, counts: Counter[str], held: _Held, *, as_json: bool, complete: bool) -> None:
    from taskbridge.store import PRUNED

    named = held.most()
    if as_json:
        held_by = [{**holder._asdict(), "records": records} for holder, records in named]
        figures = {"dry_run": what.dry_run, "complete": complete, **counts}
        holders = {"holders": len(held.records), "holders_cut": held.is_cut}
        console.emit_json({**figures, **holders, "held_by": held_by})
        return
    terminal = console.stdout()
    table = console.Table(terminal, "", "would be deleted" if what.dry_run else "deleted")
    for name in PRUNED:
        table.add_row(name, f"{counts[name]:,}")
    terminal.print(table)
    if counts["kept"]:
        records = counted(counts["kept"], "old record stays", "old records stay")
        terminal.print(f"{records}: pending, in quarantine, about to be tried again, or read by no pipeline")
    for holder, number in named:
        terminal.print(console.plain(_sentence(holder, counted(number, "record"))))
    if len(held.records) > len(named):
        terminal.print(f"and {len(held.records) - len(named):,}{' or' if held.is_cut else ''} more")
    if held.is_cut:
        terminal.print("so many hold records back that those with the fewest were left out: a number may be too small")
    for stranger in sorted(held.pipelines - {*what.sources}):
        forget = shlex.join(("taskbridge", "forget", stranger))
        terminal.print(console.plain(f"{stranger} is not declared here: if it is no more, `{forget}`"))


def _sentence(holder: Holder, records: str) -> str:
    """Say how many records a tenant holds back, and why."""
    if holder.pipeline is None:
        return f"{holder.source}: {records} of {holder.tenant}: no pipeline reads this source"
    why = {"pending": "pending", "quarantined": "in quarantine", "retrying": "about to be tried again"}[holder.state]
    return f"{holder.pipeline}: {records} of {holder.tenant}: {why}"
