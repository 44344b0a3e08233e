"""What people and programs see: stdout for the answer, stderr for everything else.

Text from outside (tenants, errors, file names) is shown as it is where it is printable. What is not, such as terminal
control sequences and characters that turn the direction of writing, is shown as its number; markup is never read.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.common.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table
    from rich.text import Text

__all__ = ["NARROW", "cell", "complain", "emit_json", "plain", "progress", "stderr", "stdout", "table", "tell"]

NARROW: Final = 74
"""Columns that the widest table needs at the least."""

# Where no terminal gives a width, nothing is cut.
_WIDTH_OF_A_PIPE = 100_000


def stdout() -> Console:
    """Return a console on stdout. A terminal that is narrower than a table breaks lines rather than lose columns."""
    return _console(stderr=False, narrowest=NARROW)


def stderr() -> Console:
    """Return a console on stderr."""
    return _console(stderr=True, narrowest=0)


def _console(*, stderr: bool, narrowest: int) -> Console:
    from rich.console import Console

    class OurConsole(Console):
        """A console that does not end the process when the reader of a pipe goes away."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    terminal = OurConsole(stderr=stderr, markup=False, highlight=False, emoji=False)
    width = max(terminal.width, narrowest) if terminal.is_terminal else _WIDTH_OF_A_PIPE
    if width != terminal.width:
        terminal.width = width
    return terminal


def plain(text: str) -> str:
    """Return `text` as it may be printed: on one line, without terminal sequences."""
    return printable(text)


def cell(text: str, style: str = "") -> Text:
    """Return text from outside as a cell of a table."""
    from rich.text import Text

    return Text(plain(text), style)


def table(terminal: Console, *columns: str, title: str | None = None, texts: Container[str] = ()) -> Table:
    """Return an empty table: text, which may take several lines, in the first column and in `texts`, else numbers."""
    from rich import box
    from rich.table import Table

    if terminal.is_terminal:
        gap = 1 if terminal.width > NARROW + 10 else 0
        made = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0))
    else:
        made = Table(box=None, padding=(0, 2, 0, 0))
    made.title, made.title_justify, made.pad_edge = title, "left", False
    for number, column in enumerate(columns):
        if number == 0 or column in texts:
            made.add_column(column, overflow="fold", min_width=8)
        else:
            made.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    return made


def progress(*, of: bool = False, time_left: bool = False) -> Progress:
    """Return a progress bar on stderr, which shows itself on a terminal only: with `of` and `time_left` as well."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    terminal = stderr()
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if of else []
    columns += [TimeRemainingColumn()] if time_left else []
    return Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)


def tell(text: str) -> None:
    """Write a line about the progress of a command to stderr; further lines of `text` are indented."""
    click.echo("\n    ".join(map(plain, text.split("\n"))), err=True)


def complain(text: str) -> None:
    """Write what is wrong to stderr."""
    tell(f"taskbridge: {text}")


def emit_json(value: dict[str, Any]) -> None:
    """Write one JSON object, on one line, to stdout."""
    click.echo(json.dumps(value))
