"""Texts from outside (errors, reasons), made so that Postgres, logs and messages take them, whatever they hold."""

from __future__ import annotations

from typing import Final

__all__ = ["LONGEST_TEXT", "error_text", "storable"]

LONGEST_TEXT: Final = 2_000
MOST_OF_A_GROUP: Final = 3
MOST_LEVELS: Final = 3
"""Groups within groups that are looked into: a client may nest thousands."""


def storable(value: object, longest: int = LONGEST_TEXT) -> str:
    r"""Return `str(value)`, shortened to `longest` characters, without what UTF-8 or Postgres cannot hold.

    A NUL and a lone surrogate become `\x00` and `\ud83d`. A value whose text cannot be made is named by its type.
    """
    try:
        text = str.__getitem__(str(value), slice(longest))
    except BaseException as error:
        text = f"({type(value).__name__}, whose text cannot be made: {type(error).__name__})"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")[:longest]


def error_text(error: BaseException, levels: int = MOST_LEVELS) -> str:
    """Return an error's type and text, as `status`, quarantine and the logs show it; of a group the first errors.

    Groups within groups are looked into for so many `levels`.
    """
    text = f"{type(error).__name__}: {storable(error)}"
    if levels and isinstance(error, BaseExceptionGroup):
        inside = [error_text(one, levels - 1) for one in error.exceptions[:MOST_OF_A_GROUP]]
        more = len(error.exceptions) - len(inside)
        text = f"{text}: {'; '.join(inside)}{f'; {more:,} more' if more else ''}"
    return storable(text)
