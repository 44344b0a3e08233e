"""The program `taskbridge`."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

import click

from taskbridge.cli import interrupts
from taskbridge.cli.bench import bench
from taskbridge.cli.doctor import doctor
from taskbridge.cli.env import env
from taskbridge.cli.failures import Commands
from taskbridge.cli.import_command import import_command
from taskbridge.cli.metrics import metrics
from taskbridge.cli.migrate import migrate
from taskbridge.cli.notify import notify
from taskbridge.cli.options import examples
from taskbridge.cli.pause import drain, pause, resume
from taskbridge.cli.prune import prune
from taskbridge.cli.quarantine import quarantine
from taskbridge.cli.rebase import rebase
from taskbridge.cli.record import record
from taskbridge.cli.status import status
from taskbridge.cli.unmatched import unmatched
from taskbridge.cli.up import up

__all__ = ["cli", "main"]


def _version() -> str:
    try:
        return version("taskbridge")
    except PackageNotFoundError:
        return "of a checkout"


@click.group(
    cls=Commands,
    epilog=examples("taskbridge up --import invoices.csv"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(_version(), prog_name="taskbridge", message="%(prog)s %(version)s")
@click.option("--traceback", is_flag=True, envvar="TASKBRIDGE_TRACEBACK", help="Show where in the code an error arose.")
def cli(traceback: bool) -> None:
    """Latency-neutral batching on Celery, Redis and Postgres.

    The servers are those of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL. Where neither is set, they are the ones
    that `taskbridge up` serves in the data directory.
    """


for command in (
    up,
    import_command,
    record,
    env,
    notify,
    status,
    metrics,
    quarantine,
    pause,
    resume,
    drain,
    unmatched,
    prune,
    migrate,
    rebase,
    doctor,
    bench,
):
    cli.add_command(command)


def main() -> None:
    """Run the program and end the process with its status: 0 done, 1 not done, 2 wrong use, 70 a fault of its own."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its number instead of an error.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    interrupts.install()
    cli(prog_name="taskbridge")
