"""The program `taskbridge`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from taskbridge.cli import console, interrupts
from taskbridge.cli.adopt import adopt, unadopt
from taskbridge.cli.doctor import doctor
from taskbridge.cli.env import env
from taskbridge.cli.errors import Group
from taskbridge.cli.inspect import inspect
from taskbridge.cli.metrics import metrics
from taskbridge.cli.migrate import migrate
from taskbridge.cli.notify import notify
from taskbridge.cli.options import examples
from taskbridge.cli.pause import drain, pause, resume
from taskbridge.cli.pipeline import pipeline
from taskbridge.cli.prune import prune
from taskbridge.cli.quarantine import quarantine
from taskbridge.cli.record import record
from taskbridge.cli.serve import dashboard, serve
from taskbridge.cli.status import status
from taskbridge.cli.up import up
from taskbridge.settings import unknown_variables

__all__ = ["cli", "main"]


@click.group(
    cls=Group,
    epilog=examples("taskbridge up", "taskbridge status"),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="celery-taskbridge", prog_name="taskbridge", message="%(prog)s %(version)s")
@click.option("--traceback", is_flag=True, envvar="TASKBRIDGE_TRACEBACK", help="Show tracebacks of errors.")
def cli(traceback: bool) -> None:  # noqa: ARG001 - read where a command fails
    """Latency-neutral batching on Celery, Redis and Postgres.

    Commands use the servers in TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL. If neither variable is set, they use
    the embedded servers that `taskbridge up` has started in the data directory.
    """
    from taskbridge.common.libraries import check_libraries

    check_libraries()
    for name, text in unknown_variables(os.environ):
        console.complain(f"the variable {name} is unknown and ignored: {text}")


for command in (adopt, dashboard, doctor, drain, env, inspect, metrics, migrate, notify, pause, pipeline, prune):
    cli.add_command(command)
for command in (quarantine, record, resume, serve, status, unadopt, up):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None, program: str = "taskbridge") -> None:
    """Run the program and exit with its status: 0 success, 1 failure, 2 wrong usage, 70 internal error.

    `arguments`: by default those of the process. `program`: the name shown in messages.
    """
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the stream's encoding lacks.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    interrupts.install()
    cli.main(None if arguments is None else list(arguments), prog_name=program)
