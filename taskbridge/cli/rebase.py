"""`taskbridge rebase`: after a dump was restored into another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from taskbridge.store import Rebased

__all__ = ["rebase"]


@click.command(
    epilog=examples("taskbridge rebase --yes"),
)
@click.option("--yes", is_flag=True, help="Workers and producers have stopped: do it.")
@data_dir_option
@json_option
def rebase(yes: bool, data_dir: Path, as_json: bool) -> None:
    """Go on after the database was dumped and restored into another cluster, or upgraded with pg_upgrade.

    What was handled stays handled, what was pending stays pending, in every pipeline: pending records go through
    quarantine with another try asked for, and every transaction id becomes one of this cluster. It is one transaction,
    in which nobody else writes records. Stop workers and producers first.

    In the cluster whose ids the database holds it changes nothing.

    Exit status: 0 done, or nothing to do; 1 a process of TaskBridge is connected, or the database cannot be used; 2
    --yes is missing.
    """
    from taskbridge import store

    with environment.kept(data_dir):
        engine = environment.runtime().engine
        store.check_version(engine)
        store.check_schema(engine)
        done = None
        if not store.in_its_cluster(engine):
            if not yes:
                raise click.UsageError(
                    "rebase rewrites cursors and transaction ids: add --yes once workers and producers have stopped"
                )
            done = _rebase(engine)
            # Its owner is the database of the former cluster.
            environment.runtime().release_gate()
    if as_json:
        console.emit_json(_as_json(done))
    else:
        _show(done)


def _rebase(engine: Engine) -> Rebased | None:
    """Do it, with a progress bar."""
    from taskbridge.store.rebasing import STEPS, rebase

    with console.progress(of=True) as progress:
        task = progress.add_task("rebasing", total=len(STEPS))

        def begins(step: str) -> None:
            progress.update(task, description=step, completed=STEPS.index(step))

        return rebase(engine, begins=begins)


def _as_json(done: Rebased | None) -> dict[str, object]:
    if done is None:
        return {"rebased": False}
    return {"rebased": True, "pending": dict(done.quarantined), "rows": done.rows, "cursors": done.cursors}


def _show(done: Rebased | None) -> None:
    terminal = console.stdout()
    if done is None:
        terminal.print("the database is in its own cluster: nothing to do")
        return
    terminal.print(f"rebased {done.cursors:,} cursors and {done.rows:,} rows")
    for pipeline, count in done.quarantined.items():
        terminal.print(console.cell(f"{pipeline}: {count:,} pending records are tried first by the next sweeps"))
    console.tell("Workers and producers may start again.")
