"""`taskbridge pipeline remove`: delete what the database stores about a pipeline that no longer exists."""

from __future__ import annotations

from typing import Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.errors import InvalidInput, TaskBridgeError

__all__ = ["pipeline"]

QUIET_HOURS: Final = 24
"""A worker stores every few seconds that it polls for a pipeline's records, but all workers may be down for a night."""


@click.group(epilog=examples("taskbridge pipeline remove old-export --yes"))
def pipeline() -> None:
    """Manage the pipelines that are stored in the database."""


@pipeline.command(epilog=examples("taskbridge pipeline remove old-export --yes"))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Confirm that no worker declares the pipeline.")
@data_dir_option
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Delete the cursors, quarantine and pauses of the pipeline NAME. You cannot undo this.

    No worker may have polled for its records for 24 hours. The records are kept. `taskbridge prune` deletes them only
    if another pipeline reads their source.
    """
    from taskbridge.store import forget_pipeline, read_ages

    runtime = environment.checked_runtime()
    if name in runtime.pipelines.names():
        raise InvalidInput(f"the pipeline {name!r} is declared here: remove its declaration first")
    if not yes:
        raise click.UsageError("this cannot be undone: add --yes once no worker declares the pipeline")
    if read_ages(runtime.engine, [name])[name].poller < QUIET_HOURS * 3_600:
        raise TaskBridgeError(
            f"a worker has polled for the records of {name!r} within {QUIET_HOURS} hours",
            "if the pipeline no longer exists, deploy workers that do not declare it, and try again a day later",
        )
    found = forget_pipeline(runtime.engine, name)
    if found is None:
        raise InvalidInput(f"there is no pipeline {name!r}: `taskbridge doctor` lists those in the database")
    text = f"{name} removed: {found['cursors']:,} cursors, {found['quarantined']:,} rows in quarantine"
    console.answer({"pipeline": name, **found}, text, as_json=as_json)
