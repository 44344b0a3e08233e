"""Import invoices from a CSV file: record each one and notify its tenant, as a webhook receiver would.

This is the example behind `taskbridge up --import FILE`. Rows with the same key are lines of one invoice. The whole
file is checked before anything is recorded.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from taskbridge.common.names import check_key, check_tenant
from taskbridge.errors import InvalidInput, InvalidName
from taskbridge.integration.app import notify_event, record_invoice

__all__ = ["Invoice", "read_invoices", "send_invoices"]


@dataclass(slots=True)
class Invoice:
    """An invoice: its tenant, its key, and its rows in the file."""

    tenant: str
    key: str
    rows: list[dict[str, str]] = field(default_factory=list)


def read_invoices(path: Path, tenant_column: str, key_column: str) -> list[Invoice]:
    """Return the invoices of a CSV file with a header line.

    Raises:
        InvalidInput: the file cannot be read or a line is malformed; the message has the line number.
    """
    invoices: dict[str, Invoice] = {}
    try:
        # Detect invalid UTF-8 row by row, so that the message can name the line.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            try:
                missing = {tenant_column, key_column} - {*(reader.fieldnames or ())}
                if missing:
                    raise InvalidInput(
                        f"there is no column {', '.join(sorted(missing))}: use --tenant-column and --key-column"
                    )
                for row in reader:
                    _take(row, row[tenant_column], row[key_column], invoices)
            except (csv.Error, InvalidInput, InvalidName) as error:
                line = max(1, reader.reader.line_num)
                raise InvalidInput(f"{path}:{line}: {error}. Nothing was imported") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path} ({error.strerror}): give a CSV file that this user can read") from error
    if not invoices:
        raise InvalidInput(f"{path} has no invoices: give a CSV file with a header line and at least one row")
    return [*invoices.values()]


def _take(row: dict[str, str], tenant: str, key: str, invoices: dict[str, Invoice]) -> None:
    if None in row or None in row.values():
        raise InvalidInput("the line has more or fewer fields than the header")
    text = "".join(row.values())
    if "\0" in text or (not text.isascii() and text.encode(errors="replace").decode() != text):
        raise InvalidInput("not UTF-8 text: convert it, for example with iconv -f WINDOWS-1252 -t UTF-8")
    check_tenant(tenant)
    check_key(tenant, key)
    invoice = invoices.setdefault(key, Invoice(tenant, key))
    if invoice.tenant != tenant:
        raise InvalidInput(f"the invoice {key!r} belongs to {tenant!r} here, but to {invoice.tenant!r} above")
    invoice.rows.append(row)


def send_invoices(invoices: list[Invoice], progress: Callable[[int], None]) -> int:
    """Record each invoice, notify its tenant if it is new or has changed, and return the number of those.

    `progress` is called after each invoice, with the number done so far.
    """
    changed = 0
    for done, invoice in enumerate(invoices, 1):
        if record_invoice(invoice.tenant, invoice.key, {"rows": invoice.rows}):
            notify_event.delay(invoice.tenant)
            changed += 1
        progress(done)
    return changed
