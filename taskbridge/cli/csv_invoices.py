"""Invoices from a CSV file: everything is read and checked before the caller writes anything.

These are money documents. An invoice that lacks a line has a wrong total and nothing in it shows that, so an invoice
goes on whole or not at all:

- A line that is bad but tells its invoice number holds back that invoice.
- A line whose number cannot be trusted may belong to any invoice, so it holds back all of the file.
- A file whose quoting is broken is refused: nobody can tell which lines a stray quote swallowed.
- No reader can see a change that makes another valid value: a digit for a digit, or a line that is gone without trace.

How a line is told from the next is `taskbridge.cli.csv_records`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from pathlib import Path
from typing import TypeAlias

from taskbridge.cli.csv_records import CONVERT, NOT_UTF8, SPACE, Record, is_date, read_records
from taskbridge.common.names import check_tenant
from taskbridge.errors import InvalidInput, InvalidName

__all__ = ["JSON", "Invoice", "InvoiceFile", "Problem", "read_invoices"]

JSON: TypeAlias = "bool | int | str | list[JSON] | dict[str, JSON] | None"

MAX_NUMBER_LENGTH = 200
MOST_PROBLEMS = 10_000

_COLUMNS = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID")
_QUANTITY = re.compile(r"[+-]?[0-9]{1,18}")
_PRICE = re.compile(r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?0?[0-9])?")
# What the two patterns let through multiplies to at most 76 digits; the rest is room for the sum of all lines.
_EXACT = Context(prec=100, traps=[Inexact])
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Invoice:
    """One whole invoice. `document` is what is stored; in it decimals are strings and exact, in the file's currency.

    Its keys: number, kind ("invoice", or "credit_note" where the number starts with C), date (ISO 8601, as given),
    customer (None where missing), lines (each with stock_code, description, quantity, unit_price, total) and total.
    """

    tenant: str
    number: str
    document: dict[str, JSON]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a line cannot be taken: from `line` to `last_line` of the file, where 1 is its first line.

    `invoice` is None where the line's invoice number cannot be trusted; all invoices are then held back.
    """

    line: int
    last_line: int
    invoice: str | None
    text: str


@dataclass(frozen=True, slots=True)
class InvoiceFile:
    """What a file holds: whole invoices, the problems by line, and the numbers that the problems held back.

    `invoices` and `held_back` are in the order in which the numbers first appear, and no number is in both. `lines`
    counts the lines after the header that are not blank; a line whose quoted field spans several counts once.
    """

    invoices: list[Invoice]
    problems: list[Problem]
    held_back: list[str]
    lines: int


def read_invoices(
    path: Path, tenant_column: str = "Country", progress: Callable[[int], None] | None = None
) -> InvoiceFile:
    """Read and check the whole of a CSV file, plain or gzip (told by its first bytes, not by its name).

    The header names the columns InvoiceNo, StockCode, Description, Quantity, InvoiceDate, UnitPrice, CustomerID and
    `tenant_column`, in any order; others are ignored. Spaces and tabs around a field are dropped, except in
    Description. Memory grows with the file, because the lines of an invoice may stand anywhere in it: until the last
    line is read no invoice is known to be whole. A line of more than 1 MiB, more than 1 GiB of text, or more than
    10,000 bad lines is refused.

    `progress` is told how many bytes of the file (compressed, if it is) have been read, about every 64 KiB of text; the
    last value is the file's size. It is not called for a pipe. What it raises passes through.

    Raises InvalidInput, with the path and what to do, where the file as a whole cannot be read or holds no invoices.
    What is wrong with single lines is in `problems` of the answer.
    """
    records = read_records(path, progress)
    header = next((record for record in records if not record.blank), None)
    if header is None:
        raise InvalidInput(f"{path} is empty: pass a CSV file with a header line and invoices")
    reading = _Reading(path, _column_names(path, header, tenant_column), tenant_column)
    for record in records:
        if not record.blank:
            reading.add(record)
    if not reading.lines:
        raise InvalidInput(f"{path} holds no invoices, only a header line: export it again with its data")
    return reading.close()


def _column_names(path: Path, header: Record, tenant_column: str) -> list[str]:
    if "\0" in header.text or NOT_UTF8.search(header.text):
        raise InvalidInput(f"{path} is not UTF-8 text in its header line: if it is a CSV file, {CONVERT}")
    if header.fault:
        raise InvalidInput(f"{path}: the header (line {header.first}) cannot be read: {header.fault}. Correct it")
    names = [name.strip(SPACE) for name in header.fields]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise InvalidInput(f"{path} has more than one column {_listed(twice)}: rename or remove all but one")
    missing = [name for name in dict.fromkeys((*_COLUMNS, tenant_column)) if name not in names]
    if missing:
        hint = "; choose the tenant's column with --tenant-column" if tenant_column in missing else ""
        raise InvalidInput(
            f"{path} lacks the columns {_listed(missing)}: its header line must name them, separated by commas, and it "
            f"has {_listed(names)}{hint}"
        )
    return names


@dataclass(slots=True)
class _Draft:
    """An invoice while its lines come in. Its first good line, number `line`, gives the `head` that all must share."""

    head: dict[str, str] = field(default_factory=dict)
    line: int = 0
    lines: list[JSON] = field(default_factory=list)
    total: Decimal = _ZERO
    held: bool = False

    def disagreements(self, head: dict[str, str]) -> list[str]:
        return [
            f"{column} {_short(head[column])} differs from {_short(first)} in line {self.line} of the same invoice"
            for column, first in self.head.items()
            if head[column] != first
        ]

    def add(self, line: int, head: dict[str, str], row: dict[str, str]) -> None:
        if not self.lines:
            self.head, self.line = head, line
        quantity, price = int(row["Quantity"]), Decimal(row["UnitPrice"])
        # Adding zero turns the -0 of "minus one at 0.0" into 0.
        total = _EXACT.fma(Decimal(quantity), price, _ZERO)
        self.total = _EXACT.add(self.total, total)
        self.lines.append(
            {
                "stock_code": row["StockCode"],
                "description": row["Description"] or None,
                "quantity": quantity,
                "unit_price": f"{price:f}",
                "total": f"{total:f}",
            }
        )

    def invoice(self, number: str, tenant_column: str) -> Invoice:
        document: dict[str, JSON] = {
            "number": number,
            "kind": "credit_note" if number.startswith("C") else "invoice",
            "date": self.head["InvoiceDate"],
            "customer": self.head["CustomerID"] or None,
            "lines": self.lines,
            "total": f"{self.total:f}",
        }
        return Invoice(self.head[tenant_column], number, document)


class _Reading:
    """What has been read so far: `add` takes the lines in order, `close` says which invoices are whole."""

    def __init__(self, path: Path, names: list[str], tenant_column: str) -> None:
        self._path = path
        self.lines = 0
        self._names = names
        self._tenant_column = tenant_column
        self._drafts: dict[str, _Draft] = {}
        self._problems: list[Problem] = []
        self._hold_all = False

    def add(self, record: Record) -> None:
        self.lines += 1
        values = zip(self._names, record.fields, strict=False)
        row = {name: value if name == "Description" else value.strip(SPACE) for name, value in values}
        number = row.get("InvoiceNo", "")
        if record.fault:
            raise InvalidInput(
                f"{self._path}: line {record.first} cannot be read: {record.fault}. Nothing of the file was taken: "
                "correct its quotes, or export it again"
            )
        number_fault = _number_fault(number, len(record.fields), len(self._names))
        faults = [number_fault] if number_fault else _value_faults(record.text, row, self._tenant_column)
        # What is wrong with a line that spans others may come from them, and they were other invoices'.
        if number_fault or (faults and record.first != record.last):
            self._hold_all = True
            text = f"{'; '.join(faults)}; its invoice number cannot be trusted, so all invoices are held back"
            self._note(Problem(record.first, record.last, None, text))
            return
        draft = self._drafts.setdefault(number, _Draft())
        head = {column: row[column] for column in (self._tenant_column, "InvoiceDate", "CustomerID")}
        faults = faults or draft.disagreements(head)
        if faults:
            draft.held = True
            self._note(Problem(record.first, record.last, number, "; ".join(faults)))
        else:
            draft.add(record.first, head, row)

    def _note(self, problem: Problem) -> None:
        if len(self._problems) == MOST_PROBLEMS:
            raise InvalidInput(
                f"{self._path}: {MOST_PROBLEMS:,} lines up to line {problem.line} are bad, the first because: "
                f"{self._problems[0].text} (line {self._problems[0].line}). Correct or export the file again"
            )
        self._problems.append(problem)

    def close(self) -> InvoiceFile:
        invoices, held_back = [], []
        for number, draft in self._drafts.items():
            if draft.held or self._hold_all:
                held_back.append(number)
            else:
                invoices.append(draft.invoice(number, self._tenant_column))
        return InvoiceFile(invoices, self._problems, held_back, self.lines)


def _number_fault(number: str, fields: int, columns: int) -> str:
    """Say why a line's invoice number cannot be trusted; "" where it can."""
    if fields != columns:
        return f"the line has {fields} fields where the header has {columns}"
    if not number:
        return "InvoiceNo is empty"
    if len(number) > MAX_NUMBER_LENGTH:
        return f"InvoiceNo {_short(number)} has {len(number)} characters, at most {MAX_NUMBER_LENGTH} are allowed"
    if NOT_UTF8.search(number):
        return f"InvoiceNo {_short(number)} holds bytes that are not UTF-8 ({CONVERT})"
    # The store takes no others; and two numbers that only look the same would each get a part of one invoice.
    if not number.isprintable():
        return f"InvoiceNo {_short(number)} holds control or invisible characters"
    return ""


def _value_faults(text: str, row: dict[str, str], tenant_column: str) -> list[str]:
    if "\0" in text:
        return ["the line holds a NUL byte, so the file is damaged here: export it again"]
    if NOT_UTF8.search(text):
        return [f"the line holds bytes that are not UTF-8: {CONVERT}"]
    faults = []
    if not row["StockCode"]:
        faults.append("StockCode is empty")
    if not _QUANTITY.fullmatch(row["Quantity"]):
        faults.append(f"Quantity {_short(row['Quantity'])} is not a whole number of at most 18 digits")
    if not _PRICE.fullmatch(row["UnitPrice"]):
        faults.append(f"UnitPrice {_short(row['UnitPrice'])} is not a decimal number such as 4.95")
    if not is_date(row["InvoiceDate"]):
        faults.append(f"InvoiceDate {_short(row['InvoiceDate'])} is not an ISO 8601 date such as 2011-12-01T08:12:00")
    try:
        check_tenant(row[tenant_column])
    except InvalidName as error:
        faults.append(f"{tenant_column}: {error}")
    return faults


def _short(value: str) -> str:
    return repr(value) if len(value) <= 40 else f"{value[:40]!r}..."


def _listed(values: list[str]) -> str:
    rest = len(values) - 10
    return ", ".join(map(_short, values[:10])) + (f" and {rest} more" if rest > 0 else "")
