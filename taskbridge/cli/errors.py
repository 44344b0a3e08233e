"""How a command fails: a line on stderr, and an exit status for each kind of error."""

from __future__ import annotations

import traceback
from typing import Any, Final

import click

from taskbridge.cli.console import complain
from taskbridge.cli.interrupts import Interrupted
from taskbridge.common.libraries import explained_imports
from taskbridge.common.texts import spoken
from taskbridge.errors import InvalidInput, TaskBridgeError

__all__ = ["Group"]

FAULT: Final = 70
"""Exit status of an unexpected error (EX_SOFTWARE in sysexits.h)."""


class Group(click.Group):
    """A group whose commands fail with a message and a status, and with a traceback only on request."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command.

        Raises:
            click.exceptions.Exit: the command failed; the message has been written to stderr.
        """
        try:
            with explained_imports():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (Exception, Interrupted) as error:
            translated = _translated(error) if isinstance(error, Exception) else error
            if ctx.params.get("traceback"):
                traceback.print_exception(translated)
            raise click.exceptions.Exit(_report(translated)) from error


def _translated(error: Exception) -> Exception:
    from taskbridge.common.server_errors import translated_errors

    if isinstance(error, UnicodeEncodeError):
        # Without the text, which may be a URL with a password.
        return InvalidInput("an argument or a setting is not UTF-8", "check how your terminal encodes text")
    try:
        with translated_errors():
            raise error
    except Exception as translated:
        return translated


def _report(error: Exception | Interrupted) -> int:
    """Report the error on stderr and return the exit status."""
    if isinstance(error, Interrupted):
        complain("interrupted")
        return error.exit_status
    if isinstance(error, TaskBridgeError):
        complain(f"{error.what}: {spoken(error.remedy)}" if error.remedy else str(error))
        return error.exit_status
    complain(f"unexpected {type(error).__name__}: {error} (TASKBRIDGE_TRACEBACK=1 shows where)")
    return FAULT
