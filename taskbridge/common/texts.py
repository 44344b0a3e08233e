"""Texts from outside (errors, reasons), sanitized for Postgres, logs and messages."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Callable, Mapping
from traceback import TracebackException
from typing import Final

__all__ = [
    "JSON_TYPES",
    "LONGEST_TEXT",
    "TYPED",
    "as_json",
    "counted",
    "error_line",
    "error_text",
    "errors_of_group",
    "log_error",
    "one_line",
    "printable",
    "short_traceback",
    "shown",
    "spoken",
    "storable",
]

LONGEST_TEXT: Final = 2_000
LONGEST_TRACEBACK: Final = 20_000
LONGEST_JSON: Final = 40
MOST_BITS: Final = 128
JSON_TYPES: Final[dict[type, str]] = {
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "an array",
    str: "a string",
    type(None): "null",
}
TYPED: Final[list[Callable[[], Mapping[str, str]]]] = []
"""Functions that return replacements in our own texts: in a Django project, for example, `manage.py` runs commands."""
MOST_OF_A_GROUP: Final = 3
"""How many errors of an exception group are shown."""
MOST_LEVELS: Final = 3
"""How many levels of groups within groups are shown; a client may nest thousands."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun: `one` in the singular, `several` (by default `one` with an s) in the plural."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def storable(value: object, longest: int = LONGEST_TEXT) -> str:
    r"""Return `str(value)`, cut to `longest` characters, without characters that UTF-8 or Postgres cannot store.

    A NUL becomes `\x00`, and a lone surrogate an escape such as `\ud83d`. If `str` fails, the type is named instead.
    """
    try:
        # Not `[:longest]`: a subclass of str may slice in its own way.
        text = str.__getitem__(str(value), slice(longest))
    except BaseException as error:
        text = f"({type(value).__name__}, whose str() failed: {type(error).__name__})"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")[:longest]


def printable(text: str) -> str:
    r"""Return `text` on one line: newlines and other non-printable characters become escapes such as `\n`."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def one_line(text: str) -> str:
    """Return `text` on one line, with each run of whitespace replaced by one space."""
    return " ".join(text.split())


def spoken(text: str, before: str = "") -> str:
    """Return our own text with the replacements of `TYPED`, but only directly after `before`."""
    for replacements in TYPED:
        for part, replacement in replacements().items():
            text = text.replace(before + part, before + replacement)
    return text


def shown(value: object, longest: int = LONGEST_TEXT) -> str:
    """Return a value that should be a string for a message: its first `longest` characters, or else a summary."""
    # `repr` raises for a list that is nested too deeply; reprlib does not.
    return repr(value[:longest]) if isinstance(value, str) else reprlib.repr(value)


def as_json(value: object) -> str:
    """Return a value as JSON for a message: texts are shortened, and an array or an object is only named."""
    if isinstance(value, str):
        text = printable(json.dumps(value[:LONGEST_JSON], ensure_ascii=False))
        return text if len(value) <= LONGEST_JSON else f"{text}... ({len(value)} characters)"
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, int | float):
        return json.dumps(value)
    return JSON_TYPES.get(type(value), f"of type {type(value).__name__}")


def error_line(error: Exception) -> str:
    """Return an error's type and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def error_text(error: BaseException, levels: int = MOST_LEVELS) -> str:
    """Return an error's type and text, and for a group those of its first errors, for `status` and logs."""
    text = f"{type(error).__name__}: {storable(error)}"
    if levels and isinstance(error, BaseExceptionGroup):
        errors = errors_of_group(error)
        inside = [error_text(each, levels - 1) for each in errors[:MOST_OF_A_GROUP]]
        more = len(errors) - len(inside)
        text = f"{text}: {'; '.join(inside)}{f'; {more:,} more' if more else ''}"
    return storable(text)


def errors_of_group(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    """Return the errors of a group, even if its class overrides `exceptions` with a property that may raise."""
    errors: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(group)
    return errors


def short_traceback(error: BaseException) -> tuple[str, bool]:
    """Return an error's traceback with causes, notes and groups as Python prints it, and whether it is complete.

    It has at most `LONGEST_TRACEBACK` characters.
    """
    pieces: list[str] = []
    room = LONGEST_TRACEBACK
    try:
        for piece in TracebackException.from_exception(error).format():
            kept = storable(piece, min(room, LONGEST_TEXT))
            pieces.append(kept)
            room -= len(kept)
            if len(kept) < len(piece):
                return "".join(pieces), False
    except Exception:
        # Any method of the error's class may raise.
        return error_text(error), False
    return "".join(pieces), True


def log_error(log: logging.Logger, error: BaseException, text: str, *arguments: object) -> None:
    """Log an error with its traceback, which is shortened if it is too long for a log."""
    traceback, is_complete = short_traceback(error)
    if is_complete:
        log.error(text, *arguments, exc_info=error)
    else:
        log.error(f"{text}: %s\n%s", *arguments, error_text(error), traceback)
