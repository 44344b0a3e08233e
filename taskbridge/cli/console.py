"""Output: answers go to stdout, everything else to stderr.

External text (tenants, errors, file names) is shown unchanged, except that unprintable characters, such as terminal
control sequences and bidirectional controls, are escaped. Markup in it has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.common.texts import printable, spoken
from taskbridge.common.times import ago

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

__all__ = [
    "SHOWN_PROBLEMS",
    "answer",
    "cell",
    "clock",
    "complain",
    "emit_json",
    "plain",
    "progress",
    "show",
    "show_counts",
    "show_rows",
    "stderr",
    "stdout",
    "tell",
]

SHOWN_PROBLEMS: Final = 20
"""How many of a file's rejected lines are listed."""

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
"""Without a terminal, nothing is wrapped or truncated."""


def stdout() -> Console:
    """Return a console on stdout."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return a console on stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class OurConsole(Console):
        """A console that raises an error if the reader of a pipe goes away, instead of exiting."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = OurConsole(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH_OF_A_PIPE
    return made


def plain(text: str) -> str:
    """Return `text` safe to print: on one line, without control sequences, and with commands as they are typed here."""
    # Only commands in backticks are our own; anything else may be external text.
    return printable(spoken(text, "`"))


def show(*lines: str) -> None:
    """Write lines of an answer to stdout."""
    for line in lines:
        click.echo(plain(line))


def cell(text: str, style: str = "") -> Text:
    """Return external text as a table cell."""
    from rich.text import Text

    return Text(plain(text), style)


def show_rows(rows: Iterable[Any], columns: Mapping[str, str | Callable[[Any], Any]]) -> None:
    """Write a table to stdout, or nothing if there are no rows.

    `columns`: for each heading, the attribute to show or a function of the row. Times are shown as how long ago they
    were, and floats as seconds; numbers and times are right-aligned.
    """
    from rich.table import Table

    values = [
        [getattr(row, shown) if isinstance(shown, str) else shown(row) for shown in columns.values()] for row in rows
    ]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, column in zip(columns, zip(*values, strict=True), strict=False):
        is_number = any(isinstance(one, (int, float, datetime)) for one in column)
        made.add_column(
            heading,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="ellipsis" if is_number else "fold",
        )
    for row in values:
        made.add_row(*map(_cell, row))
    if values:
        stdout().print(made)


def _cell(value: Any) -> Text:
    if value is None:
        return cell("-")
    if isinstance(value, float):
        return cell(f"{value:,.1f} s" if value else "-")
    if isinstance(value, datetime):
        return cell(ago(value))
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return cell(text, _COLOURS.get(text, ""))


def progress() -> Progress:
    """Return a progress bar on stderr, which is hidden unless that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = stderr()
    terminal.quiet = not terminal.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=terminal, transient=True, disable=terminal.quiet)


def show_counts(counts: Mapping[str, int]) -> None:
    """Write named counts to stdout."""
    show_rows(counts.items(), {"": lambda one: one[0].replace("_", " "), "count": lambda one: one[1]})


def clock(at: datetime | None) -> str:
    """Return a time in UTC with milliseconds."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def tell(text: str) -> None:
    """Write a message to stderr; further lines of `text` are indented."""
    click.echo("\n    ".join(map(plain, text.split("\n"))), err=True)


def complain(text: str) -> None:
    """Write a problem to stderr."""
    tell(f"taskbridge: {text}")


def answer(value: Mapping[str, Any], *lines: str, as_json: bool) -> None:
    """Write an answer to stdout: a JSON object on one line, or lines for people."""
    if as_json:
        emit_json(value)
    else:
        show(*lines)


def emit_json(value: Mapping[str, Any]) -> None:
    """Write a JSON object to stdout, on one line."""
    click.echo(json.dumps(value, default=_as_json))


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")
