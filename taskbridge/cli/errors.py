"""How a command fails: one line on stderr, and an exit status for each kind of error."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import click

from taskbridge.cli.console import complain, spoken
from taskbridge.cli.interrupts import Interrupted
from taskbridge.common.libraries import explained_imports
from taskbridge.errors import TaskBridgeError

__all__ = ["Group"]

FAULT = 70
"""Exit status of an error that nobody foresaw (EX_SOFTWARE of sysexits.h)."""
PIPE_CLOSED = 141
"""Exit status where the reader of our stdout went away: what a shell reports for SIGPIPE."""


class Group(click.Group):
    """A group whose commands end with a message and a status, and with a traceback only if one is asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command.

        Raises:
            click.exceptions.Exit: it failed; the message is on stderr.
        """
        try:
            with explained_imports():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, Interrupted) as error:
            error = _spoken_plainly(error)
            status = _report(error, with_traceback=bool(ctx.params.get("traceback")))
            raise click.exceptions.Exit(status) from error
        return result


def _spoken_plainly(error: Exception | Interrupted) -> Exception | Interrupted:
    if isinstance(error, (TaskBridgeError, OSError, Interrupted)):
        return error
    from taskbridge.common.server_errors import translated_errors

    try:
        with translated_errors():
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
        complain(f"{error.what}: {spoken(error.remedy)}" if error.remedy else str(error))
        return error.exit_status
    complain(f"unexpected {type(error).__name__}: {error} (TASKBRIDGE_TRACEBACK=1 shows where)")
    return FAULT
