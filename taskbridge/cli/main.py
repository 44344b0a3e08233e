"""The program `taskbridge`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from taskbridge.cli import console, interrupts
from taskbridge.cli.errors import Commands
from taskbridge.cli.options import examples
from taskbridge.settings import unknown_variables

__all__ = ["cli", "main"]


COMMANDS: Final = {
    "adopt": ("adopt", "Make a table of yours a source."),
    "doctor": ("doctor", "Check a deployment, with remedies."),
    "drain": ("pause", "Wait until all is handled, then pause."),
    "env": ("env", "Print the URLs in use, for other shells."),
    "import": ("import_command", "Import invoices from a CSV file."),
    "metrics": ("metrics", "Print figures for Prometheus."),
    "migrate": ("migrate", "Bring the schema up to date."),
    "notify": ("notify", "Send one event."),
    "pause": ("pause", "Hold a tenant, or a pipeline."),
    "prune": ("prune", "Delete old records that are done with."),
    "quarantine": ("quarantine", "Show the records that cannot be handled, try them again, or give them up."),
    "rebase": ("rebase", "Go on after a restore into another cluster."),
    "record": ("record", "Record messages from JSON lines."),
    "resume": ("pause", "Let a tenant, or a pipeline, go on."),
    "status": ("status", "Show how every tenant stands."),
    "unadopt": ("adopt", "Take the triggers off an adopted table."),
    "unmatched": ("unmatched", "Show the records that no criterion matched, or match them again."),
    "up": ("up", "Run everything on this machine."),
}
"""Each command's module and short help. A module is imported when its command is used: most need Celery."""


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("celery-taskbridge")
    except PackageNotFoundError:
        found = "of a checkout"
    click.echo(f"taskbridge {found}")
    context.exit()


@click.group(
    cls=Commands,
    commands_in=COMMANDS,
    epilog=examples("taskbridge up --import invoices.csv"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.option("--traceback", is_flag=True, envvar="TASKBRIDGE_TRACEBACK", help="Show where in the code an error arose.")
def cli(traceback: bool) -> None:  # noqa: ARG001 - read where a command fails
    """Latency-neutral batching on Celery, Redis and Postgres.

    The servers are those of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL. Where neither is set, they are the ones
    that `taskbridge up` serves in the data directory.
    """
    for name, text in unknown_variables(os.environ):
        console.complain(f"the variable {name} is not known and does nothing: {text}")


def main(arguments: Sequence[str] | None = None, program: str = "taskbridge") -> None:
    """Run the program and end the process with its status: 0 done, 1 not done, 2 wrong use, 70 a fault of its own.

    `arguments`: those of the process, unless others are given. `program`: how it is called.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its number instead of an error.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    interrupts.install()
    cli.main(None if arguments is None else list(arguments), prog_name=program)
