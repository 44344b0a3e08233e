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
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from pathlib import Path
from typing import Any, TypeAlias

from taskbridge.cli.csv_records import CONVERT, NOT_UTF8, SPACE, Record, is_date, read_records
from taskbridge.common.limits import NAMES
from taskbridge.common.names import check_tenant
from taskbridge.errors import InvalidInput, InvalidName

__all__ = ["JSON", "Invoice", "InvoiceFile", "Problem", "read_invoices"]

JSON: TypeAlias = "bool | int | str | list[JSON] | dict[str, JSON] | None"

MOST_PROBLEMS = 10_000

_COLUMNS = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID")
_PRICE = r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?0?[0-9])?"
_VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "StockCode": (bool, "is empty"),
    "Quantity": (re.compile(r"[+-]?[0-9]{1,18}").fullmatch, "is not a whole number of at most 18 digits"),
    "UnitPrice": (re.compile(_PRICE).fullmatch, "is not a decimal number such as 4.95"),
    "InvoiceDate": (is_date, "is not an ISO 8601 date such as 2011-12-01T08:12:00"),
}
"""What a value must be; what is said of one that is not."""
# What the patterns let through multiplies to at most 76 digits; the rest is room for the sum of all lines.
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
    with closing(read_records(path, progress)) as records:
        return _read(path, records, tenant_column)


def _read(path: Path, records: Iterator[Record], tenant_column: str) -> InvoiceFile:
    names = _column_names(path, next(records, None), tenant_column)
    drafts: dict[str, _Draft] = {}
    problems: list[Problem] = []
    lines = 0
    for record in records:
        lines += 1
        values = zip(names, record.fields, strict=False)
        row = {name: value if name == "Description" else value.strip(SPACE) for name, value in values}
        faults = _number_faults(row.get("InvoiceNo", ""), len(record.fields), len(names))
        is_trusted = not faults
        faults += _line_faults(record.text) or (_value_faults(row, tenant_column) if is_trusted else [])
        # What is wrong with a line that spans others may come from them, and they were other invoices'.
        if is_trusted and not (faults and record.first != record.last):
            number = row["InvoiceNo"]
            head = {column: row[column] for column in (tenant_column, "InvoiceDate", "CustomerID")}
            drafts.setdefault(number, _Draft()).take(record.first, head, row, faults)
        else:
            number = None
            faults.append("its invoice number cannot be trusted, so all invoices are held back")
        if faults:
            problems.append(Problem(record.first, record.last, number, "; ".join(faults)))
        if len(problems) > MOST_PROBLEMS:
            raise InvalidInput(
                f"{path}: {MOST_PROBLEMS:,} lines up to line {record.first} are bad, the first because: "
                f"{problems[0].text} (line {problems[0].line}). Correct or export the file again"
            )
    if not lines:
        raise InvalidInput(f"{path} holds no invoices, only a header line: export it again with its data")
    hold_all = any(problem.invoice is None for problem in problems)
    held_back = [number for number, draft in drafts.items() if draft.held or hold_all]
    kept = () if hold_all else drafts.items()
    whole = [draft.invoice(number, tenant_column) for number, draft in kept if not draft.held]
    return InvoiceFile(whole, problems, held_back, lines)


def _column_names(path: Path, header: Record | None, tenant_column: str) -> list[str]:
    if header is None:
        raise InvalidInput(f"{path} is empty: pass a CSV file with a header line and invoices")
    if _line_faults(header.text):
        raise InvalidInput(f"{path} is not UTF-8 text in its header line: if it is a CSV file, {CONVERT}")
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

    def take(self, line: int, head: dict[str, str], row: dict[str, str], faults: list[str]) -> None:
        """Take a line that has no faults; else hold the invoice back. `faults` gets what differs from other lines."""
        if not faults:
            faults += [
                f"{column} {_short(head[column])} differs from {_short(first)} in line {self.line} of the same invoice"
                for column, first in self.head.items()
                if head[column] != first
            ]
        if faults:
            self.held = True
            return
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


def _number_faults(number: str, fields: int, columns: int) -> list[str]:
    if fields != columns:
        return [f"the line has {fields} fields where the header has {columns}"]
    # The store takes no others; and two numbers that only look the same would each get a part of one invoice.
    if 0 < len(number) <= NAMES["key"].longest and number.isprintable():
        return []
    return [f"InvoiceNo {_short(number)} is not of 1 to {NAMES['key'].longest} visible characters"]


def _line_faults(text: str) -> list[str]:
    if "\0" in text:
        return ["the line holds a NUL byte, so the file is damaged here: export it again"]
    return [f"the line holds bytes that are not UTF-8: {CONVERT}"] if NOT_UTF8.search(text) else []


def _value_faults(row: dict[str, str], tenant_column: str) -> list[str]:
    faults = [f"{name} {_short(row[name])} {says}" for name, (allows, says) in _VALUES.items() if not allows(row[name])]
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
