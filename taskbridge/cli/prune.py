"""`taskbridge prune`: delete old records that are done with."""

from __future__ import annotations

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
    from taskbridge.store import Holder, Step

__all__ = ["prune"]

SHOWN_HOLDERS: Final = 5
MOST_HOLDERS: Final = 10_000
"""Only the holders with the most records are kept beyond this, so that memory is bounded."""
_STATES: Final = {"pending": "pending", "quarantined": "in quarantine", "retrying": "about to be tried again"}


@dataclass(slots=True)
class _Holders:
    """How many old records each tenant holds back. `is_cut`: those with the fewest were left out to save memory."""

    records: Counter[Holder] = field(default_factory=Counter)
    pipelines: set[str] = field(default_factory=set)
    is_cut: bool = False

    def add(self, held: Mapping[Holder, int]) -> None:
        self.records.update(held)
        self.pipelines.update(one.pipeline for one in held if one.pipeline is not None)
        if len(self.records) > 2 * MOST_HOLDERS:
            self.records = Counter(dict(self.records.most_common(MOST_HOLDERS)))
            self.is_cut = True

    def first(self) -> list[tuple[Holder, int]]:
        """Return the few that hold back the most."""
        order = sorted(self.records.items(), key=lambda one: (-one[1], one[0].pipeline or "", one[0]))
        return order[:SHOWN_HOLDERS]


@click.command(epilog=examples("taskbridge prune --older-than 30d --dry-run"))
@click.option(
    "--older-than",
    type=duration,
    required=True,
    metavar="DURATION",
    help="Only what was written longer ago: a number with s, m, h, d or w.",
)
@click.option("--pipeline", metavar="NAME", help="Only what this pipeline reads.  [default: all]")
@click.option("--deliveries", is_flag=True, help="Delete old rows of the journal as well.")
@click.option("--dry-run", is_flag=True, help="Count and delete nothing.")
@data_dir_option
@json_option
def prune(
    older_than: timedelta, pipeline: str | None, deliveries: bool, dry_run: bool, data_dir: Path, as_json: bool
) -> None:
    """Delete records that every pipeline reading them has handled or discarded, and say who holds back the rest.

    A pruned record that is written again is delivered again: choose an age after which nobody sends it once more.
    """
    from taskbridge import store

    runtime = environment.session(data_dir, environment.runtime)
    if pipeline is not None:
        pipeline = runtime.pipelines[pipeline].name
    sources = {name: runtime.pipelines[name].source for name in runtime.pipelines.names()}
    what = store.Prune(older_than, sources, pipeline, deliveries=deliveries, dry_run=dry_run)
    counts = Counter[str](dict.fromkeys((*store.PRUNED, "kept"), 0))
    holders = _Holders()
    complete = False
    try:
        _prune(store.prune(runtime.engine, what), counts, holders)
        complete = True
    except (TaskBridgeError, Interrupted):
        console.tell("Pruning was cut short; what is counted is done. Run it again for the rest.")
        raise
    finally:
        if as_json:
            held_by = [{**holder._asdict(), "records": records} for holder, records in holders.first()]
            more = {"holders": len(holders.records), "holders_cut": holders.is_cut, "held_by": held_by}
            console.emit_json({"dry_run": dry_run, "complete": complete, **counts, **more})
        else:
            _show(counts, holders, {*sources}, dry_run=dry_run)


def _prune(steps: Iterator[Step], counts: Counter[str], holders: _Holders) -> None:
    """Take step after step, with a progress bar. A signal ends it after a step."""
    from taskbridge.common.server_errors import translated_errors

    with console.progress() as progress:
        tasks: dict[str, Any] = {}
        while True:
            with uninterrupted(), translated_errors():
                step = next(steps, None)
            if step is None:
                return
            counts.update({step.table: step.deleted, "quarantine": step.quarantine, "kept": step.kept})
            holders.add(step.held)
            if step.table not in tasks:
                tasks[step.table] = progress.add_task(step.table, total=None)
            progress.update(tasks[step.table], advance=step.deleted + step.quarantine + step.kept)


def _show(counts: Counter[str], holders: _Holders, declared: set[str], *, dry_run: bool) -> None:
    kept = counts.pop("kept")
    console.show("would be deleted:" if dry_run else "deleted:")
    console.show_counts(counts)
    if kept:
        records = counted(kept, "old record stays", "old records stay")
        console.show(f"{records}: pending, in quarantine, about to be tried again, or read by no pipeline")
    for holder, number in holders.first():
        whose = f"{counted(number, 'record')} of {holder.tenant}"
        if holder.pipeline is None:
            console.show(f"{holder.source}: {whose}: no pipeline reads this source")
        else:
            console.show(f"{holder.pipeline}: {whose}: {_STATES[holder.state]}")
    if len(holders.records) > SHOWN_HOLDERS:
        cut = " or" if holders.is_cut else ""
        console.show(f"and {len(holders.records) - SHOWN_HOLDERS:,}{cut} more tenants")
    for name in sorted(holders.pipelines - declared):
        console.show(f"{name} is not declared here: if it no longer exists, `taskbridge pipeline remove` forgets it")
