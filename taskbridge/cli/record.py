"""`taskbridge record`: messages from a file or a pipe, for a pipeline with criteria."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import data_dir_option, examples, file_type, json_option
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.cli.messages import Recording

__all__ = ["record"]


@click.command(
    epilog=examples(
        "taskbridge record log-alerts alerts.jsonl --id-field id",
        "tail -f service.log | taskbridge record log-alerts -",
    ),
)
@click.argument("pipeline")
@click.argument("file", type=file_type)
@click.option(
    "--id-field",
    metavar="NAME",
    help="The field whose string is a message's id; a second message with it changes nothing. Without it every line "
    "is a new message.",
)
@data_dir_option
@json_option
def record(pipeline: str, file: Path, id_field: str | None, data_dir: Path, as_json: bool) -> None:
    """Record the messages of FILE, one JSON value in each line, and notify the tenants that they match.

    FILE may be `-`: then the lines of standard input are recorded as they come. A line that cannot be taken is listed
    by its number; the others go on. Matched and unmatched are counted among the new messages.

    Exit status: 0 all was taken, matched or not; 1 some lines were not, or a server went away; 2 the file cannot be
    read or holds nothing, or PIPELINE has no criteria.
    """
    from taskbridge.cli import json_lines
    from taskbridge.cli.messages import Recording, record_all
    from taskbridge.producing.recording import criteria_of

    progress = Recording(pipeline, file, id_field)
    with json_lines.messages(file) as lines:
        runtime = environment.session(data_dir, environment.runtime)
        criteria_of(runtime, pipeline)
        try:
            record_all(progress, lines)
        except (TaskBridgeError, Interrupted):
            _show(progress, as_json=as_json)
            console.tell(progress.how_far())
            raise
    _show(progress, as_json=as_json)
    if progress.problems:
        raise click.exceptions.Exit(1)


def _show(progress: Recording, *, as_json: bool) -> None:
    if progress.problems > console.SHOWN_PROBLEMS:
        console.tell(f"... and {progress.problems - console.SHOWN_PROBLEMS:,} more (--json lists them)")
    counts = progress.as_json()
    if as_json:
        console.emit_json(counts)
        return
    console.show_counts(counts, ("lines", "new", "known_before", "matched", "unmatched", "tenants", "problems"))
    if progress.unmatched:
        console.tell(f"`taskbridge unmatched list {progress.pipeline}` shows why no criterion matched.")
