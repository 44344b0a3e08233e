"""What people and programs see: stdout for the answer, stderr for everything else.

Text from outside (tenants, errors, file names) is shown as it is where it is printable. What is not, such as terminal
control sequences and characters that turn the direction of writing, is shown as its number; markup is never read.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Final

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

__all__ = ["NARROW", "cell", "complain", "emit_json", "plain", "progress", "stderr", "stdout", "table", "tell"]

NARROW: Final = 74
"""Columns that the widest table needs at the least."""

# Where no terminal gives a width, nothing is cut.
_WIDTH_OF_A_PIPE = 100_000


class _OurConsole(Console):
    """A console that does not end the process when the reader of a pipe goes away."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout() -> Console:
    """Return a console on stdout. A terminal that is narrower than a table breaks lines rather than lose columns."""
    return _console(stderr=False, narrowest=NARROW)


def stderr() -> Console:
    """Return a console on stderr."""
    return _console(stderr=True, narrowest=0)


def _console(*, stderr: bool, narrowest: int) -> Console:
    console = _OurConsole(stderr=stderr, markup=False, highlight=False, emoji=False)
    width = max(console.width, narrowest) if console.is_terminal else _WIDTH_OF_A_PIPE
    if width != console.width:
        console.width = width
    return console


def plain(text: str) -> str:
    """Return `text` with every character that is not printable, except a line end, as its number."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def cell(text: str, style: str = "") -> Text:
    """Return text from outside as a cell of a table."""
    return Text(plain(text).replace("\n", " "), style)


def table(console: Console, *columns: str, title: str | None = None, texts: Container[str] = ()) -> Table:
    """Return an empty table: text, which may take several lines, in the first column and in `texts`, else numbers."""
    if console.is_terminal:
        gap = 1 if console.width > NARROW + 10 else 0
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


def progress(*more: ProgressColumn) -> Progress:
    """Return a progress bar on stderr, which shows itself on a terminal only."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), *more)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def tell(text: str) -> None:
    """Write a line about the progress of a command to stderr."""
    click.echo(plain(text), err=True)


def complain(text: str) -> None:
    """Write what is wrong to stderr."""
    tell(f"taskbridge: {text}")


def emit_json(value: dict[str, Any]) -> None:
    """Write one JSON object, on one line, to stdout."""
    click.echo(json.dumps(value))
