"""JSON lines: one message in each, read as they come."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from taskbridge.cli.csv_records import CONVERT, GZIP_MAGIC
from taskbridge.errors import InvalidInput

__all__ = ["STDIN", "Line", "messages"]

STDIN: Final = Path("-")
LONGEST_LINE: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank, and how many bytes end with it. `fault` says why it has no payload."""

    number: int
    end: int
    payload: Any = None
    fault: str = ""


@contextmanager
def messages(path: Path) -> Iterator[Iterator[Line]]:
    """Open a file, or standard input for `-`, and give its lines. Nothing may come from standard input.

    Raises:
        InvalidInput: it cannot be opened or read to its end, it is packed, or it is a file that holds no line.
    """
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInput("standard input is closed: pass a file, or pipe messages in")
        yield _lines(path, sys.stdin.buffer)
        return
    with _translated_errors(path):
        file = path.open("rb")
    with file:
        with _translated_errors(path):
            packed = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        if packed:
            raise InvalidInput(f"{path} is packed with gzip: unpack it with `gzip -dc`, for `taskbridge record NAME -`")
        lines = _lines(path, file)
        first = next(lines, None)
        if first is None:
            raise InvalidInput(f"{path} is empty: pass a file with a message, as JSON, in each line")
        yield chain((first,), lines)


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        name = "standard input" if path == STDIN else path
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"{name} cannot be read ({reason}): pass a file that this user may read") from error


def _lines(path: Path, stream: BinaryIO) -> Iterator[Line]:
    number = end = 0
    while raw := _read(path, stream):
        number, end = number + 1, end + len(raw)
        whole = len(raw) < LONGEST_LINE or raw.endswith(b"\n")
        if not whole:
            end += _skip(path, stream)
            yield Line(number, end, fault=f"longer than {LONGEST_LINE:,} bytes: split it into several messages")
        elif raw.strip():
            yield _parsed(number, end, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)


def _read(path: Path, stream: BinaryIO) -> bytes:
    with _translated_errors(path):
        return stream.readline(LONGEST_LINE)


def _skip(path: Path, stream: BinaryIO) -> int:
    """Read to the end of a line; return how many bytes that were."""
    skipped = 0
    while part := _read(path, stream):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _parsed(number: int, end: int, raw: bytes) -> Line:
    try:
        return Line(number, end, json.loads(raw.decode(), parse_constant=_refuse))
    except UnicodeDecodeError:
        fault = f"not UTF-8: {CONVERT}"
    except json.JSONDecodeError as error:
        fault = f"no JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        fault = "nested too deeply"
    except ValueError as error:
        fault = str(error).partition(";")[0]
    return Line(number, end, fault=fault)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"no JSON: {name} is no JSON number, write null or a string")
