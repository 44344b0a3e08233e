"""What people and programs see: stdout for the answer, stderr for everything else.

Text from outside (tenants, errors, file names) is shown as it is, except characters that are not printable, such as
terminal control sequences and those that change the direction of writing: these are shown as numbers. Markup in it has
no effect.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from taskbridge.common.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table as RichTable
    from rich.text import Text

__all__ = [
    "NARROW",
    "SHOWN_PROBLEMS",
    "SPOKEN",
    "Pipe",
    "Table",
    "cell",
    "complain",
    "emit_json",
    "plain",
    "progress",
    "show_counts",
    "spoken",
    "state",
    "stderr",
    "stdout",
    "tell",
]

NARROW: Final = 74
"""Columns that the widest table needs at the least."""

SHOWN_PROBLEMS: Final = 20
"""Of a file's lines that were not taken, so many are listed."""
_LONGEST_COLUMN: Final = 48
"""A column that is piped is no wider; a longer text stands out alone."""
_LEAST_TEXT: Final = 8
"""Columns that a text has at the least."""

SPOKEN: Final[list[Callable[[str], str]]] = []
"""What names commands otherwise, as where `manage.py` runs the program."""
# Our own sentences have their commands in backticks. Other text may be that of users, and stays as it is.
_COMMAND: Final = re.compile(r"`(?:celery -A )?taskbridge [a-z]+\b`?")
# Where no terminal gives a width, nothing is cut.
_WIDTH_OF_A_PIPE: Final = 100_000


class Pipe:
    """stdout where it is no terminal. Nothing is cut, and rich is not loaded."""

    is_terminal: Final = False
    width: Final = _WIDTH_OF_A_PIPE

    def print(self, what: object, *, soft_wrap: bool = True) -> None:  # noqa: ARG002 - no line is wrapped
        """Write a text or a table."""
        click.echo(str(what))


def stdout() -> Console | Pipe:
    """Return a console on stdout. A terminal that is narrower than a table breaks lines rather than lose columns."""
    if sys.stdout.isatty() or "FORCE_COLOR" in os.environ:
        return _console(stderr=False, narrowest=NARROW)
    return Pipe()


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
    """Return `text` as it may be printed: on one line, without terminal sequences, its commands in backticks spoken."""
    return printable(_COMMAND.sub(lambda found: spoken(found[0]), text))


def spoken(text: str) -> str:
    """Return text of our own with all its commands as they are typed where the program is called otherwise."""
    for change in SPOKEN:
        text = change(text)
    return text


def cell(text: str, style: str = "") -> Text:
    """Return text from outside as a cell of a table."""
    from rich.text import Text

    return Text(plain(text), style)


_COLOURS: Final = {
    "running": "green",
    "handled": "green",
    "queued": "cyan",
    "paused": "magenta",
    "failed": "red",
    "quarantined": "red",
    "rejected": "red",
    "back-off": "yellow",
    "rate limit": "yellow",
    "asked to wait": "yellow",
    "wait queue": "yellow",
    "turn": "yellow",
    "no heartbeat": "red",
    "pending": "yellow",
    "waiting": "blue",
    "idle": "dim",
}


def state(terminal: Console | Pipe, text: str) -> str | Text:
    """Return a state as a cell of a table, in its colour where there is a terminal; NO_COLOR takes the colour away."""
    return plain(text) if isinstance(terminal, Pipe) else cell(text, _COLOURS.get(text, ""))


class Table:
    """A table. The first column and `texts` have text, which may take several lines; the other columns numbers.

    `left` are columns with words: they begin at the left, and are never broken. Where a terminal is too narrow for the
    numbers, the columns of `optional` are left out. As a string the table is what a pipe gets, with all columns.
    """

    def __init__(
        self,
        terminal: Console | Pipe,
        *columns: str,
        title: str | None = None,
        texts: Container[str] = (),
        left: Container[str] = (),
        optional: Container[str] = (),
    ) -> None:
        self._terminal = terminal
        self._columns = columns
        self._optional = optional
        self._title = title
        self._are_texts = [number == 0 or column in texts for number, column in enumerate(columns)]
        self._at_left = [is_text or column in left for column, is_text in zip(columns, self._are_texts, strict=True)]
        self.rows: list[tuple[str | Text, ...]] = []
        self.caption: str | None = None

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; text from outside must have been made `plain` or a `cell`."""
        self.rows.append(cells)

    def __str__(self) -> str:
        lines = [self._columns, *(tuple(map(str, row)) for row in self.rows)]
        # One long name does not push the figures of all others out of sight.
        widths = [min(max(map(_width, column)), _LONGEST_COLUMN) for column in zip(*lines, strict=True)]
        shown = []
        for line in lines:
            blanks = [" " * (width - _width(text)) for text, width in zip(line, widths, strict=True)]
            cells = zip(line, blanks, self._at_left, strict=True)
            shown.append("  ".join(text + blank if at_left else blank + text for text, blank, at_left in cells))
        return "\n".join(line.rstrip() for line in ([self._title, *shown] if self._title else shown))

    def __rich__(self) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable

        shown, gap = self._what_fits()
        made = RichTable(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0))
        made.title, made.title_justify, made.pad_edge, made.caption = self._title, "left", False, self.caption
        for at in shown:
            column = self._columns[at]
            if self._are_texts[at]:
                made.add_column(column, overflow="fold", min_width=_LEAST_TEXT)
            else:
                justify: Literal["left", "right"] = "left" if self._at_left[at] else "right"
                made.add_column(column, justify=justify, no_wrap=True, min_width=len(column))
        for row in self.rows:
            made.add_row(*(row[at] for at in shown))
        return made

    def _what_fits(self) -> tuple[list[int], int]:
        """Return which columns are shown, and how many blanks are added between two, so that no number is cut."""
        cells = zip(self._columns, *self.rows, strict=True)
        widths = [
            _LEAST_TEXT if is_text else max(_width(str(cell)) for cell in column)
            for column, is_text in zip(cells, self._are_texts, strict=True)
        ]
        every = range(len(self._columns))
        fewer = [at for at in every if self._columns[at] not in self._optional]
        gaps = (1, 0) if self._terminal.width > NARROW + 10 else (0,)
        for shown in ([*every], fewer):
            for gap in gaps:
                # One column is between two, and one at each edge.
                if sum(widths[at] for at in shown) + (len(shown) - 1) * (1 + gap) + 2 <= self._terminal.width:
                    return shown, gap
        return fewer, 0


def _width(text: str) -> int:
    """Return how many columns a text takes: East Asian characters take two."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(one) in "WF" else 1 for one in text)


def progress(*, of: bool = False, time_left: bool = False) -> Progress:
    """Return a progress bar for stderr, shown on a terminal only.

    `of`: it shows how many of how many. `time_left`: it shows how long the rest will take.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    class OurProgress(Progress):
        """A progress bar that says nothing where it is not shown: rich before 14 ends it with an empty line."""

        def stop(self) -> None:
            if not self.disable:
                super().stop()

    terminal = stderr()
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    columns += [MofNCompleteColumn()] if of else []
    columns += [TimeRemainingColumn()] if time_left else []
    return OurProgress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)


def show_counts(counts: Mapping[str, int], names: Sequence[str]) -> None:
    """Write the counts of these names to stdout, as a table."""
    terminal = stdout()
    table = Table(terminal, "", "count")
    for name in names:
        table.add_row(name.replace("_", " "), f"{counts[name]:,}")
    terminal.print(table)


def tell(text: str) -> None:
    """Write a line about the progress of a command to stderr; further lines of `text` are indented."""
    click.echo("\n    ".join(map(plain, text.split("\n"))), err=True)


def complain(text: str) -> None:
    """Write what is wrong to stderr."""
    tell(f"taskbridge: {text}")


def emit_json(value: dict[str, Any]) -> None:
    """Write one JSON object, on one line, to stdout."""
    click.echo(json.dumps(value))
