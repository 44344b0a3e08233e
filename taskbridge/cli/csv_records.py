"""Lines of a CSV file as RFC 4180 means them, each with its place in the file and whether its fields can be trusted.

Narrower than the csv module: a quote inside an unquoted field is refused, and so is a line that spans others which have
a date of their own. Both are what a stray quote looks like when it happens to parse.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from taskbridge.errors import InvalidInput

__all__ = ["CONVERT", "NOT_UTF8", "SPACE", "Record", "is_date", "read_records"]

_GZIP_MAGIC: Final = b"\x1f\x8b"
_CHUNK: Final = 65536
LONGEST_LINE: Final = 1_048_576
"""Bytes of one line, and characters of one that a quoted field makes of several."""
MOST_TEXT: Final = 1_073_741_824
"""Bytes of a file, unpacked."""
SPACE: Final = " \t"
"""What is dropped around a field."""
NOT_UTF8: Final = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8 are read as lone surrogates, which no valid UTF-8 gives."""
CONVERT: Final = "convert the file to UTF-8, for example with iconv -f WINDOWS-1252 -t UTF-8"
_FIELD = r'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n]*)'
_RFC4180 = re.compile(rf"{_FIELD}(?:,{_FIELD})*[\r\n]*")


@dataclass(frozen=True, slots=True)
class Record:
    """One line as CSV means it, from physical line `first` to `last`. `fault` says why its fields cannot be trusted."""

    first: int
    last: int
    text: str
    fields: list[str]
    fault: str

    @property
    def blank(self) -> bool:
        """No field holds anything, as in the lines of commas that spreadsheets append: no amount can be missing."""
        return not self.fault and not any(value.strip(SPACE) for value in self.fields)


def read_records(path: Path, progress: Callable[[int], None] | None) -> Iterator[Record]:
    """Yield the lines of a CSV file, plain or gzip.

    `progress` is told how many bytes of the file have been read; see `taskbridge.cli.csv_invoices.read_invoices`.

    Raises:
        InvalidInput: the file cannot be opened or read to its end.
    """
    return _records(_text_lines(path, progress))


def _text_lines(path: Path, progress: Callable[[int], None] | None) -> Iterator[str]:
    """Yield the physical lines, each with its line end. Only LF ends one: a lone CR is left for the CSV reader."""
    with _translated_errors(path):
        file = path.open("rb")
    with file:
        with _translated_errors(path):
            packed = file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        stream: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if packed else file
        byte_order_mark = codecs.BOM_UTF8
        number, taken, told = 0, 0, 0
        while True:
            number += 1
            with _translated_errors(path):
                line = stream.readline(LONGEST_LINE + 1)
            taken += len(line)
            if len(line) > LONGEST_LINE:
                raise InvalidInput(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes: is it a CSV file?")
            if taken > MOST_TEXT:
                raise InvalidInput(f"{path} holds more than {MOST_TEXT:,} bytes of text: split it into several files")
            if progress and file.seekable() and (not line or taken - told >= _CHUNK):
                told = taken
                progress(file.tell())
            if not line:
                return
            yield line.removeprefix(byte_order_mark).decode("utf-8", "surrogateescape")
            byte_order_mark = b""


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(f"{path} is a truncated or corrupt gzip file ({error}): copy or export it again") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"{path} cannot be read ({reason}): pass the path of a CSV file that this user may read"
        ) from error


def _records(lines: Iterator[str]) -> Iterator[Record]:
    taken: list[str] = []
    at_end = False

    def feed() -> Iterator[str]:
        nonlocal at_end
        size = 0
        for line in lines:
            size = size + len(line) if taken else len(line)
            if size > LONGEST_LINE:
                raise csv.Error(f"it spans more than {LONGEST_LINE:,} characters")
            taken.append(line)
            yield line
        at_end = True

    reader = csv.reader(feed(), strict=True)
    while True:
        taken.clear()
        first = reader.line_num + 1
        fields: list[str] = []
        fault = ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The reader goes on with a fresh state at the line after the one where it failed.
            hint = ", a closing quote may be missing" if len(taken) > 1 else ""
            fault = "a quote that is opened here is never closed" if at_end else f"not valid CSV ({error}){hint}"
        text = "".join(taken)
        yield Record(first, reader.line_num, text, fields, fault or _quoting_fault(text, len(taken)))


def _quoting_fault(text: str, physical_lines: int) -> str:
    """Find what the csv module accepts although it is more likely a stray quote than data."""
    if '"' not in text:
        return ""
    if not _RFC4180.fullmatch(text):
        return "a field that is not quoted holds a quote (quote the field and double the quotes in it)"
    if physical_lines > 1 and sum(map(is_date, re.split("[,\r\n]", text.replace('"', "")))) > 1:
        return "a quoted field spans lines that have dates of their own, so a quote is missing or one too many"
    return ""


def is_date(text: str) -> bool:
    """Whether `text` is an ISO 8601 date."""
    # fromisoformat takes any character between date and time, a line end as well.
    text = text.strip(SPACE)
    try:
        return text.isascii() and text.isprintable() and bool(datetime.fromisoformat(text))
    except ValueError:
        return False
