"""`taskbridge prune`: delete old records that are done with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted, uninterrupted
from taskbridge.cli.options import data_dir_option, duration, examples, json_option
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipelines
    from taskbridge.store import Prune, Step

__all__ = ["prune"]


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
    criterion matched and nobody discarded. Rows of quarantine go with their record, or when it has changed since.

    A pruned record that is written again is new: it is delivered again, with another idempotency key. So is a message
    whose id comes again. Choose an age at which nobody sends it again.

    It works in small transactions and can be stopped at any time; what was deleted until then stays deleted.

    Exit status: 0; 1 a server went away; 2 wrong use.
    """
    from taskbridge import store

    counts: Counter[str] = Counter(dict.fromkeys((*store.PRUNED, "kept"), 0))
    complete = False
    with environment.session(data_dir, environment.runtime) as (runtime, _):
        what = _what(runtime.pipelines, older_than, pipeline, deliveries=deliveries, dry_run=dry_run)
        try:
            _prune(store.prune(runtime.engine, what), counts)
            complete = True
        except (TaskBridgeError, Interrupted):
            console.tell("Pruning was cut short; what is counted is done. Run it again for the rest.")
            raise
        finally:
            _show(what, counts, as_json=as_json, complete=complete)


def _what(pipelines: Pipelines, older_than: timedelta, pipeline: str | None, **options: bool) -> Prune:
    """Raise UnknownPipeline where no loaded module declares `pipeline`."""
    from taskbridge.store import Prune

    if pipeline is not None:
        pipeline = pipelines[pipeline].name
    return Prune(older_than, {name: pipelines[name].source for name in pipelines.names()}, pipeline, **options)


def _prune(steps: Iterator[Step], counts: Counter[str]) -> None:
    """Take step after step, with a progress bar. A signal ends it after a step."""
    from taskbridge.process.translation import translated_errors

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
            if step.table not in tasks:
                tasks[step.table] = progress.add_task(step.table, total=None)
            progress.update(tasks[step.table], advance=step.deleted + step.quarantine + step.kept)


def _show(what: Prune, counts: Counter[str], *, as_json: bool, complete: bool) -> None:
    from taskbridge.store import PRUNED

    if as_json:
        console.emit_json({"dry_run": what.dry_run, "complete": complete, **counts})
        return
    terminal = console.stdout()
    table = console.Table(terminal, "", "would be deleted" if what.dry_run else "deleted")
    for name in PRUNED:
        table.add_row(name, f"{counts[name]:,}")
    terminal.print(table)
    if counts["kept"]:
        records = console.counted(counts["kept"], "old record stays", "old records stay")
        terminal.print(f"{records}: pending, in quarantine, or about to be tried again")
