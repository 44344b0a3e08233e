"""`taskbridge forget`: what is kept of a pipeline that is no more."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.errors import InvalidInput

__all__ = ["forget"]

RESTS: Final = 60.0
"""Seconds after which nobody looks after a pipeline any more; a tail is stored every 5 s."""


@click.command(short_help="Forget a pipeline that is no more.", epilog=examples("taskbridge forget old-export --yes"))
@click.argument("pipeline")
@click.option("--yes", is_flag=True, help="No worker declares it any more: do it.")
@data_dir_option
@json_option
def forget(pipeline: str, yes: bool, data_dir: Path, as_json: bool) -> None:
    """Delete the cursors, quarantine and pauses of PIPELINE, which no module declares any more.

    Its records stay; `taskbridge prune` then goes by the other pipelines that read them. A pipeline of this name that
    is declared later is a new one, and begins where its `start` says.

    Exit status: 0; 1 a worker looks after it; 2 it is declared here, is not known, or --yes is missing.
    """
    from taskbridge.store import forget_pipeline, read_ages

    runtime = environment.session(data_dir, environment.runtime)
    if pipeline in runtime.pipelines.names():
        raise InvalidInput(f"the pipeline {pipeline!r} is declared here: take its declaration away before")
    if not yes:
        raise click.UsageError("its cursors are not to be had again: add --yes once no worker declares it")
    if read_ages(runtime.engine, [pipeline])[pipeline].tail < RESTS:
        console.complain(f"a worker looks after {pipeline!r}: stop it, and try again after {RESTS:g} s")
        raise click.exceptions.Exit(1)
    found = forget_pipeline(runtime.engine, pipeline)
    if found is None:
        raise InvalidInput(f"no pipeline is known as {pipeline!r}: `taskbridge doctor` names those that are")
    if as_json:
        console.emit_json({"pipeline": pipeline, **found})
    else:
        numbers = f"{found['cursors']:,} cursors, {found['quarantined']:,} rows of quarantine"
        click.echo(console.plain(f"{pipeline} is forgotten: {numbers}"))
