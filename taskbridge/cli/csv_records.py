"""Lines of a CSV file as RFC 4180 means them, each with its place in the file.

Narrower than the csv module: a quote inside an unquoted field is refused, and so is a line that spans others which have
a date of their own. Both are what a stray quote looks like when it happens to parse.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from taskbridge.errors import InvalidInput

__all__ = ["CONVERT", "GZIP_MAGIC", "NOT_UTF8", "SPACE", "Record", "is_date", "read_records"]

GZIP_MAGIC: Final = b"\x1f\x8b"
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


class Record(NamedTuple):
    """One line as CSV means it, from physical line `first` to `last`."""

    first: int
    last: int
    text: str
    fields: list[str]


def read_records(path: Path, progress: Callable[[int], None] | None) -> Generator[Record, None, None]:
    """Yield the lines of a CSV file, plain or gzip, but for blank ones, in which no field holds anything.

    `progress` is told how many bytes of the file have been read; see `taskbridge.cli.csv_invoices.read_invoices`.

    Raises:
        InvalidInput: the file cannot be opened or read to its end, or its quoting is broken.
    """
    taken: list[str] = []
    # Whoever stops reading, or is stopped by an error, leaves no file open.
    with closing(_text_lines(path, progress)) as lines:
        reader = csv.reader(_kept(lines, taken), strict=True)
        while True:
            taken.clear()
            first = reader.line_num + 1
            try:
                fields = next(reader)
                _check_quoting("".join(taken), len(taken))
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidInput(
                    f"{path}: line {first} cannot be read: {error}. Nothing of the file was taken: correct its quotes, "
                    "or export it again"
                ) from error
            # Spreadsheets append lines of commas; no amount can be missing in them.
            if any(value.strip(SPACE) for value in fields):
                yield Record(first, reader.line_num, "".join(taken), fields)


def _kept(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    """Yield lines, and keep in `taken` those of one record."""
    size = 0
    for line in lines:
        size = size + len(line) if taken else len(line)
        if size > LONGEST_LINE:
            raise csv.Error(f"it spans more than {LONGEST_LINE:,} characters, a closing quote may be missing")
        taken.append(line)
        yield line
    if taken:
        # The reader asked for more in the middle of a record.
        raise csv.Error("a quote that is opened here is never closed")


def _check_quoting(text: str, physical_lines: int) -> None:
    """Refuse what the csv module accepts although it is more likely a stray quote than data."""
    if '"' not in text:
        return
    if not _RFC4180.fullmatch(text):
        raise csv.Error("a field that is not quoted holds a quote (quote the field and double the quotes in it)")
    if physical_lines > 1 and sum(map(is_date, re.split("[,\r\n]", text.replace('"', "")))) > 1:
        raise csv.Error(
            "a quoted field spans lines that have dates of their own, so a quote is missing or one too many"
        )


def is_date(text: str) -> bool:
    """Whether `text` is an ISO 8601 date."""
    # fromisoformat takes any character between date and time, a line end as well.
    text = text.strip(SPACE)
    try:
        return text.isascii() and text.isprintable() and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _text_lines(path: Path, progress: Callable[[int], None] | None) -> Generator[str, None, None]:
    """Yield the physical lines, each with its line end. Only LF ends one: a lone CR is left for the CSV reader."""
    with _translated_errors(path):
        file = path.open("rb")
    with file:
        with _translated_errors(path):
            stream = gzip.GzipFile(fileobj=file) if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC) else file
        number = taken = told = 0
        line = b"\n"
        while line:
            with _translated_errors(path):
                line = stream.readline(LONGEST_LINE + 1)
            number, taken = number + 1, taken + len(line)
            if len(line) > LONGEST_LINE:
                raise InvalidInput(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes: is it a CSV file?")
            if taken > MOST_TEXT:
                raise InvalidInput(f"{path} holds more than {MOST_TEXT:,} bytes of text: split it into several files")
            if progress and file.seekable() and (not line or taken - told >= _CHUNK):
                told = taken
                progress(file.tell())
            if line:
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield text.decode("utf-8", "surrogateescape")


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
