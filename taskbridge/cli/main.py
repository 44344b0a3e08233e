"""The program `taskbridge`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from taskbridge.cli import console, interrupts
from taskbridge.cli.errors import Group
from taskbridge.cli.options import examples
from taskbridge.settings import unknown_variables

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: Final = {
    "adopt": ("adopt", "Use your own table as a source."),
    "dashboard": ("dashboard", "Serve the dashboard."),
    "doctor": ("doctor", "Find problems and suggest remedies."),
    "drain": ("pause", "Wait until all records are handled or in quarantine, then pause."),
    "env": ("env", "Print the settings in use as shell commands."),
    "inspect": ("inspect", "Show why a tenant does not run, or what happened to a record."),
    "metrics": ("metrics", "Print Prometheus metrics."),
    "migrate": ("migrate", "Migrate the database schema."),
    "notify": ("notify", "Send an event."),
    "pause": ("pause", "Pause a tenant or a pipeline."),
    "pipeline": ("pipeline", "Remove a pipeline that is no longer declared."),
    "prune": ("prune", "Delete old records."),
    "quarantine": ("quarantine", "List, retry or discard records that cannot be handled."),
    "record": ("record", "Record messages from a file."),
    "resume": ("pause", "Resume a tenant or a pipeline."),
    "serve": ("serve", "Serve a webhook receiver."),
    "status": ("status", "Show health, pipelines and tenants."),
    "unadopt": ("adopt", "Stop recording changes of an adopted table."),
    "up": ("up", "Run everything on this machine."),
}
"""The module of each command, and its summary. Modules are imported when their command is used."""


class Commands(Group):
    """The program's commands. Showing help does not import their modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, and import its module."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"taskbridge.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def all_commands(self) -> dict[str, click.Command]:
        """Return all commands by name, and import their modules."""
        context = click.Context(self)
        found = {name: self.get_command(context, name) for name in COMMANDS}
        return {name: command for name, command in found.items() if command is not None}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("celery-taskbridge")
    except PackageNotFoundError:
        found = "(not installed)"
    click.echo(f"taskbridge {found}")
    context.exit()


@click.group(
    cls=Commands,
    epilog=examples("taskbridge up", "taskbridge status"),
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


def main(arguments: Sequence[str] | None = None, program: str = "taskbridge") -> None:
    """Run the program and exit with its status: 0 success, 1 failure, 2 wrong usage, 70 internal error.

    `arguments`: by default those of the process. `program`: the name shown in messages.
    """
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the stream's encoding lacks.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    interrupts.install()
    cli.main(None if arguments is None else list(arguments), prog_name=program)
