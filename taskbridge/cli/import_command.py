"""`taskbridge import`: invoices from a file, as a burst of webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import data_dir_option, examples, file_type, json_option, tenant_column_option
from taskbridge.errors import TaskBridgeError, Unavailable

if TYPE_CHECKING:
    from taskbridge.cli.sending import Sending

__all__ = ["import_command"]


@click.command(
    "import",
    epilog=examples("taskbridge import invoices.csv.gz --tenant-column Country"),
)
@click.argument("file", type=file_type)
@tenant_column_option
@data_dir_option
@json_option
def import_command(file: Path, tenant_column: str, data_dir: Path, as_json: bool) -> None:
    """Import the invoices of FILE, a CSV file (gzip too).

    The whole file is checked first. Then each invoice is committed and its tenant notified, if the invoice is new or
    changed. A line that cannot be taken is listed by its number and holds back its invoice; the others go on.

    Exit status: 0 all was taken; 1 some lines were not, or a server went away; 2 the file cannot be read.
    """
    from taskbridge.cli import sending

    content = sending.read(file, tenant_column)
    sending.list_problems(file, content)
    progress = sending.Sending(content)
    environment.session(data_dir, environment.runtime)
    sending.check_pipeline()
    try:
        sending.send(progress)
    except (TaskBridgeError, Interrupted) as error:
        _show(progress, as_json=as_json)
        if isinstance(error, Interrupted):
            console.tell(progress.how_far())
            raise
        raise Unavailable(f"{error}. {progress.how_far()}") from error
    _show(progress, as_json=as_json)
    if content.problems:
        raise click.exceptions.Exit(1)


def _show(progress: Sending, *, as_json: bool) -> None:
    counts = progress.as_json()
    if as_json:
        console.emit_json(counts)
        return
    console.show_counts(counts, ("invoices", "written", "unchanged", "credit_notes", "tenants", "problems"))
