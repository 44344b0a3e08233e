"""How a command fails: one line on stderr and a status, for each kind of error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from taskbridge.cli.console import complain
from taskbridge.cli.interrupts import Interrupted
from taskbridge.errors import TaskBridgeError

__all__ = ["Commands", "Group"]

FAULT = 70
"""An error that nobody foresaw (EX_SOFTWARE of sysexits.h)."""
PIPE_CLOSED = 141
"""Whoever read our stdout went away; what a shell reports for SIGPIPE."""


class Group(click.Group):
    """A group whose commands end with a message and a status, and with a traceback only where one is asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command.

        Raises:
            click.exceptions.Exit: it failed; what was wrong stands on stderr.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, Interrupted) as error:
            error = _spoken_plainly(error)
            status = _report(error, with_traceback=bool(ctx.params.get("traceback")))
            raise click.exceptions.Exit(status) from error
        return result


class Commands(Group):
    """The program's commands.

    `commands_in` has each command's module in this package and its short help, so that help imports none of them.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Return the names of all commands."""
        return sorted(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; its module is imported by this."""
        if cmd_name not in self._commands_in:
            return None
        module = import_module(f"taskbridge.cli.{self._commands_in[cmd_name][0]}")
        name = "import_command" if cmd_name == "import" else cmd_name
        found: click.Command = getattr(module, name)
        return found

    def all_commands(self) -> dict[str, click.Command]:
        """Return every command by its name; all modules are imported by this."""
        context = click.Context(self)
        found = {name: self.get_command(context, name) for name in self.list_commands(context)}
        return {name: command for name, command in found.items() if command is not None}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._commands_in[name][1]) for name in sorted(self._commands_in)])


def _spoken_plainly(error: Exception | Interrupted) -> Exception | Interrupted:
    if isinstance(error, (TaskBridgeError, OSError, Interrupted)):
        return error
    from taskbridge.process.translation import speaking_plainly

    try:
        with speaking_plainly():
            raise error
    except Exception as meaning:
        return meaning


def _report(error: Exception | Interrupted, *, with_traceback: bool) -> int:
    """Say on stderr what was wrong and return the exit status."""
    if isinstance(error, BrokenPipeError):
        # Python flushes stdout once more when it ends; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if with_traceback:
        traceback.print_exception(error)
    if isinstance(error, Interrupted):
        complain("interrupted")
        return error.exit_status
    if isinstance(error, TaskBridgeError):
        complain(str(error))
        return error.exit_status
    complain(f"unexpected {type(error).__name__}: {error} (TASKBRIDGE_TRACEBACK=1 shows where)")
    return FAULT
