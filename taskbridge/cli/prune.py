"""`taskbridge prune`: delete old records that every pipeline has handled or discarded."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.options import data_dir_option, duration, examples, json_option
from taskbridge.common.texts import counted

__all__ = ["prune"]


@click.command(epilog=examples("taskbridge prune --older-than 30d --dry-run"))
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
def prune(older_than: timedelta, pipeline: str | None, deliveries: bool, dry_run: bool, as_json: bool) -> None:
    """Delete old records. They are kept until every pipeline of their source has handled or discarded them.

    If a deleted record is sent again, it is delivered again. Choose an age after which nobody sends it again.
    """
    from taskbridge import store

    runtime = environment.checked_runtime()
    if pipeline is not None:
        pipeline = runtime.pipelines[pipeline].name
    sources = {name: runtime.pipelines[name].source for name in runtime.pipelines.names()}
    what = store.Prune(older_than, sources, pipeline, deliveries=deliveries, dry_run=dry_run)
    counts = Counter[str](dict.fromkeys((*store.PRUNED, "kept"), 0))
    complete = False
    try:
        with console.terminal(stderr=True).status("pruning"):
            for step in interrupts.steps(store.prune(runtime.engine, what)):
                counts.update({step.table: step.deleted, "quarantine": step.quarantine, "kept": step.kept})
        complete = True
    finally:
        if not complete:
            console.tell("Pruning was interrupted; what is counted has been deleted. Run it again for the rest.")
        if as_json:
            console.emit_json({"dry_run": dry_run, "complete": complete, **counts})
        else:
            _show(counts, dry_run=dry_run)


def _show(counts: Counter[str], *, dry_run: bool) -> None:
    console.show("would be deleted:" if dry_run else "deleted:")
    kept = counts.pop("kept")
    console.show(*(f"{name}: {count:,}" for name, count in counts.items()))
    if kept:
        console.show(
            f"{counted(kept, 'old record is', 'old records are')} kept: pending or in quarantine (`taskbridge status` "
            "counts these), or of a source that no declared pipeline reads (`taskbridge doctor` names it)"
        )
