"""What people and programs see: answers on stdout, everything else on stderr.

Text from outside (tenants, errors, file names) is shown as it is, except for characters that are not printable, such as
terminal control sequences and those that change the direction of writing: they are shown as numbers. Markup in it has
no effect.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.common.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "SHOWN_PROBLEMS",
    "TYPED",
    "cell",
    "clock",
    "complain",
    "emit_json",
    "plain",
    "progress",
    "show",
    "show_counts",
    "spoken",
    "state",
    "stderr",
    "stdout",
    "table",
    "tell",
]

SHOWN_PROBLEMS: Final = 20
"""How many of a file's rejected lines are listed."""

TYPED: Final[dict[str, str]] = {}
"""Parts of our own texts, and what is written for them here, such as commands that `manage.py` runs."""
_COLOURS: Final = {
    "running": "green",
    "handled": "green",
    "queued": "cyan",
    "paused": "magenta",
    "failed": "red",
    "quarantined": "red",
    "rejected": "red",
    "no heartbeat": "red",
    "back-off": "yellow",
    "rate limit": "yellow",
    "asked to wait": "yellow",
    "wait queue": "yellow",
    "turn": "yellow",
    "pending": "yellow",
    "waiting": "blue",
    "idle": "dim",
}
_WIDTH_OF_A_PIPE: Final = 100_000
"""Nothing is wrapped or cut where no terminal gives a width."""


def stdout() -> Console:
    """Return a console on stdout."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return a console on stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class OurConsole(Console):
        """A console that does not end the process when the reader of a pipe goes away."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = OurConsole(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH_OF_A_PIPE
    return made


def plain(text: str) -> str:
    """Return `text` as it may be printed: on one line, without terminal sequences, its commands as they are typed."""
    # Our own messages have their commands in backticks. Other text may be the user's, and stays as it is.
    return printable(spoken(text, "`"))


def spoken(text: str, before: str = "") -> str:
    """Return our own text as it is written here; only what follows `before` is changed."""
    for part, replacement in TYPED.items():
        text = text.replace(before + part, before + replacement)
    return text


def show(*lines: str) -> None:
    """Write lines of an answer to stdout."""
    for line in lines:
        click.echo(plain(line))


def cell(text: str, style: str = "") -> Text:
    """Return text from outside as a cell of a table."""
    from rich.text import Text

    return Text(plain(text), style)


def state(text: str) -> Text:
    """Return a state as a cell of a table, in its colour."""
    return cell(text, _COLOURS.get(text, ""))


def table(*columns: str, numbers: Container[str] = (), title: str | None = None) -> Table:
    """Return an empty table; columns in `numbers` are aligned to the right and never wrapped."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left")
    for column in columns:
        if column in numbers:
            made.add_column(column, justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made


def progress() -> Progress:
    """Return a progress bar on stderr, which shows nothing unless that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = stderr()
    terminal.quiet = not terminal.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=terminal, transient=True, disable=terminal.quiet)


def show_counts(counts: Mapping[str, int]) -> None:
    """Write counts to stdout, each with its name."""
    made = table("", "count", numbers=("count",))
    for name, count in counts.items():
        made.add_row(name.replace("_", " "), f"{count:,}")
    stdout().print(made)


def clock(at: datetime | None) -> str:
    """Return a time in UTC with its milliseconds."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def tell(text: str) -> None:
    """Write a line about the progress of a command to stderr; further lines of `text` are indented."""
    click.echo("\n    ".join(map(plain, text.split("\n"))), err=True)


def complain(text: str) -> None:
    """Write what is wrong to stderr."""
    tell(f"taskbridge: {text}")


def emit_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object, on one line, to stdout."""
    click.echo(json.dumps(value, default=_as_json))


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")
