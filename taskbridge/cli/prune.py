"""`taskbridge prune`: delete old records that every pipeline has handled or discarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import data_dir_option, duration, examples, json_option
from taskbridge.common.texts import counted
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.store import Step

__all__ = ["prune"]


@click.command(short_help="Delete old records.", epilog=examples("taskbridge prune --older-than 30d --dry-run"))
@click.option(
    "--older-than",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Delete records that were written longer ago: a number with s, m, h, d or w.",
)
@click.option("--pipeline", metavar="NAME", help="Only records that this pipeline reads.  [default: all]")
@click.option("--deliveries", is_flag=True, help="Also delete old rows of the journal.")
@click.option("--dry-run", is_flag=True, help="Count the records, but do not delete them.")
@data_dir_option
@json_option
def prune(
    older_than: timedelta, pipeline: str | None, deliveries: bool, dry_run: bool, data_dir: Path, as_json: bool
) -> None:
    """Delete old records that every pipeline of their source has handled or discarded. Show what is kept.

    If a deleted record is sent again, it is delivered again. Choose an age after which nobody sends it again.
    """
    from taskbridge import store

    runtime = environment.checked_runtime(data_dir)
    if pipeline is not None:
        pipeline = runtime.pipelines[pipeline].name
    sources = {name: runtime.pipelines[name].source for name in runtime.pipelines.names()}
    what = store.Prune(older_than, sources, pipeline, deliveries=deliveries, dry_run=dry_run)
    counts = Counter[str](dict.fromkeys((*store.PRUNED, "kept"), 0))
    complete = False
    try:
        _prune(store.prune(runtime.engine, what), counts)
        complete = True
    except (TaskBridgeError, Interrupted):
        console.tell("Pruning was interrupted; what is counted has been deleted. Run it again for the rest.")
        raise
    finally:
        if as_json:
            console.emit_json({"dry_run": dry_run, "complete": complete, **counts})
        else:
            _show(counts, dry_run=dry_run)


def _prune(steps: Iterator[Step], counts: Counter[str]) -> None:
    """Prune step by step, with a progress bar. A signal stops it between two steps."""
    with console.progress() as progress:
        tasks: dict[str, Any] = {}
        for step in interrupts.steps(steps):
            counts.update({step.table: step.deleted, "quarantine": step.quarantine, "kept": step.kept})
            if step.table not in tasks:
                tasks[step.table] = progress.add_task(step.table, total=None)
            progress.update(tasks[step.table], advance=step.deleted + step.quarantine + step.kept)


def _show(counts: Counter[str], *, dry_run: bool) -> None:
    kept = counts.pop("kept")
    console.show("would be deleted:" if dry_run else "deleted:")
    console.show_counts(counts)
    if kept:
        console.show(
            f"{counted(kept, 'old record is', 'old records are')} kept: pending or in quarantine (`taskbridge status` "
            "counts these), or of a source that no declared pipeline reads (`taskbridge doctor` names it)"
        )
