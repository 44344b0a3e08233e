"""How a command fails: a line on stderr, and an exit status for each kind of error."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import click

from taskbridge.cli.console import complain
from taskbridge.cli.interrupts import Interrupted
from taskbridge.common.libraries import explained_imports
from taskbridge.common.texts import spoken
from taskbridge.errors import TaskBridgeError

__all__ = ["Group"]

FAULT = 70
"""Exit status of an unexpected error (EX_SOFTWARE in sysexits.h)."""
PIPE_CLOSED = 141
"""Exit status if the reader of our stdout went away: what a shell reports for SIGPIPE."""


class Group(click.Group):
    """A group whose commands fail with a message and a status, and with a traceback only on request."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command.

        Raises:
            click.exceptions.Exit: the command failed; the message has been written to stderr.
        """
        try:
            with explained_imports():
                result = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, Interrupted) as error:
            error = _translated(error)
            status = _report(error, with_traceback=bool(ctx.params.get("traceback")))
            raise click.exceptions.Exit(status) from error
        return result


def _translated(error: Exception | Interrupted) -> Exception | Interrupted:
    if isinstance(error, (TaskBridgeError, OSError, Interrupted)):
        return error
    from taskbridge.common.server_errors import translated_errors

    try:
        with translated_errors():
            raise error
    except Exception as translated:
        return translated


def _report(error: Exception | Interrupted, *, with_traceback: bool) -> int:
    """Report the error on stderr and return the exit status."""
    if isinstance(error, BrokenPipeError):
        # Python flushes stdout again at exit, which must not fail.
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
