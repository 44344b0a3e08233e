"""Texts from outside (errors, reasons), changed so that Postgres, logs and messages take them, whatever they hold."""

from __future__ import annotations

import logging
import reprlib
from traceback import TracebackException
from typing import Final

__all__ = [
    "LONGEST_TEXT",
    "counted",
    "error_line",
    "error_text",
    "errors_of_group",
    "log_error",
    "one_line",
    "printable",
    "short_traceback",
    "shown",
    "storable",
]

LONGEST_TEXT: Final = 2_000
LONGEST_TRACEBACK: Final = 20_000
MOST_OF_A_GROUP: Final = 3
"""How many errors of an exception group are shown."""
MOST_LEVELS: Final = 3
"""How many levels of groups within groups are shown; a client may nest thousands."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number with what is counted: `one` of it, or `several`; None: `one` with an s."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def storable(value: object, longest: int = LONGEST_TEXT) -> str:
    r"""Return `str(value)`, shortened to `longest` characters, without what UTF-8 or Postgres cannot hold.

    A NUL and a lone surrogate become `\x00` and `\ud83d`. A value whose text cannot be made is named by its type.
    """
    try:
        # Not `[:longest]`: a subclass of str may slice in its own way.
        text = str.__getitem__(str(value), slice(longest))
    except BaseException as error:
        text = f"({type(value).__name__}, whose text cannot be made: {type(error).__name__})"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")[:longest]


def printable(text: str) -> str:
    r"""Return `text` on one line: line ends and other characters that are not printable become escapes such as `\n`."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """Return `text` on one line as a person reads it: each run of space and line ends is one space."""
    return " ".join(text.split())


def shown(value: object, longest: int = LONGEST_TEXT) -> str:
    """Return how a message shows a value that should be a string: its first `longest` characters, else a summary."""
    # `repr` of a list that is nested too deeply raises; reprlib stops before that.
    return repr(value[:longest]) if isinstance(value, str) else reprlib.repr(value)


def error_line(error: Exception) -> str:
    """Return an error's type and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def error_text(error: BaseException, levels: int = MOST_LEVELS) -> str:
    """Return an error's type and text, and those of a group's first errors, as `status` and the logs show them."""
    text = f"{type(error).__name__}: {storable(error)}"
    if levels and isinstance(error, BaseExceptionGroup):
        errors = errors_of_group(error)
        inside = [error_text(one, levels - 1) for one in errors[:MOST_OF_A_GROUP]]
        more = len(errors) - len(inside)
        text = f"{text}: {'; '.join(inside)}{f'; {more:,} more' if more else ''}"
    return storable(text)


def errors_of_group(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    """Return the errors of a group, also where its class has a property of that name, which may raise anything."""
    errors: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    return errors


def short_traceback(error: BaseException) -> tuple[str, bool]:
    """Return an error's traceback with its causes, notes and groups as Python prints it, and whether it is complete.

    It has at most `LONGEST_TRACEBACK` characters, whatever the error holds.
    """
    pieces: list[str] = []
    left = LONGEST_TRACEBACK
    try:
        for piece in TracebackException.from_exception(error).format():
            kept = storable(piece, min(left, LONGEST_TEXT))
            pieces.append(kept)
            left -= len(kept)
            if len(kept) < len(piece):
                return "".join(pieces), False
    except Exception:
        # The error's class may raise whatever is asked of it.
        return error_text(error), False
    return "".join(pieces), True


def log_error(log: logging.Logger, error: BaseException, text: str, *arguments: object) -> None:
    """Log an error with its traceback, which is shortened where it is too long for a log."""
    traceback, is_complete = short_traceback(error)
    if is_complete:
        log.error(text, *arguments, exc_info=error)
    else:
        log.error(f"{text}: %s\n%s", *arguments, error_text(error), traceback)
