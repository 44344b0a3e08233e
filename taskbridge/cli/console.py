"""Output: answers go to stdout, everything else to stderr.

External text (tenants, errors, file names) is shown unchanged, except that unprintable characters, such as terminal
control sequences and bidirectional controls, are escaped. Markup in it has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from taskbridge.common.texts import printable, spoken
from taskbridge.common.times import ago

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["answer", "cell", "clock", "complain", "emit_json", "show", "show_rows", "tell", "terminal"]

_WIDTH_OF_A_PIPE: Final = 100_000
"""Without a terminal, nothing is wrapped or truncated."""


def terminal(*, stderr: bool = False) -> Console:
    """Return a console on stdout or stderr."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH_OF_A_PIPE
    return made


def _plain(text: str) -> str:
    # Only commands in backticks are our own; anything else may be external text.
    return printable(spoken(text, "`"))


def show(*lines: str) -> None:
    """Write lines of an answer to stdout."""
    for line in lines:
        click.echo(_plain(line))


def cell(text: str, style: str = "") -> Text:
    """Return text, which may be external, for rich to print."""
    from rich.text import Text

    return Text(_plain(text), style)


def show_rows(rows: Iterable[Any], *names: str, **computed: Callable[[Any], Any]) -> None:
    """Write a table to stdout, or nothing if there are no rows.

    `names`: the keys or attributes to show. `computed`: functions of a row for further columns, by their headings.
    Times are shown as how long ago they were, and floats as seconds; numbers and times are right-aligned.
    """
    from rich.table import Table

    values = [[*(_value(row, name) for name in names), *(each(row) for each in computed.values())] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, column in zip((*names, *computed), zip(*values, strict=True), strict=False):
        is_number = any(isinstance(value, (int, float, datetime)) for value in column)
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(heading.replace("_", " "), justify=justify, overflow="fold")
    for row in values:
        table.add_row(*(cell(_text(value)) for value in row))
    if values:
        terminal().print(table)


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f} s" if value else "-"
    if isinstance(value, datetime):
        return ago(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def clock(at: datetime | None) -> str:
    """Return a time in UTC with milliseconds."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def tell(text: str) -> None:
    """Write a message to stderr; further lines of `text` are indented."""
    click.echo("\n    ".join(map(_plain, text.split("\n"))), err=True)


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
