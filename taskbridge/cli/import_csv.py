"""Import invoices from a CSV file: record each one and notify its tenant, as a webhook receiver would.

This is the example behind `taskbridge up --import FILE`. Rows with the same key are lines of one invoice. The whole
file is checked before anything is recorded.
"""

from __future__ import annotations

import csv
from pathlib import Path

from taskbridge.common.names import check_key, check_tenant
from taskbridge.errors import InvalidInput, InvalidName
from taskbridge.integration.app import notify_event, record_invoice

__all__ = ["Invoices", "read_invoices", "send_invoices"]

Invoices = dict[str, tuple[str, list[dict[str, str]]]]
"""The tenant of each invoice and its rows in the file, by its key."""


def read_invoices(path: Path, tenant_column: str, key_column: str) -> Invoices:
    """Return the invoices of a CSV file with a header line.

    Raises:
        InvalidInput: the file cannot be read or a line is malformed; the message has the line number.
    """
    invoices: Invoices = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            try:
                _read(reader, tenant_column, key_column, invoices)
            except (csv.Error, InvalidInput, InvalidName) as error:
                # The wrapped reader also counts lines that cannot be parsed.
                raise InvalidInput(f"{path}:{reader.reader.line_num}: {error}. Nothing was imported") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: use, for example, iconv -f WINDOWS-1252 -t UTF-8") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path} ({error.strerror}): give a CSV file that this user can read") from error
    if not invoices:
        raise InvalidInput(f"{path} has no invoices: give a CSV file with a header line and at least one row")
    return invoices


def _read(reader: csv.DictReader[str], tenant_column: str, key_column: str, invoices: Invoices) -> None:
    if missing := {tenant_column, key_column} - {*(reader.fieldnames or ())}:
        raise InvalidInput(f"there is no column {', '.join(sorted(missing))}: use --tenant-column and --key-column")
    for row in reader:
        if None in row or None in row.values():
            raise InvalidInput("the line has more or fewer fields than the header")
        tenant, key = row[tenant_column], row[key_column]
        check_tenant(tenant)
        check_key(tenant, key)
        owner, rows = invoices.setdefault(key, (tenant, []))
        if owner != tenant:
            raise InvalidInput(f"the invoice {key!r} belongs to {tenant!r} here, but to {owner!r} above")
        rows.append(row)


def send_invoices(invoices: Invoices) -> int:
    """Record each invoice, notify its tenant if it is new or has changed, and return the number of those."""
    changed = 0
    for key, (tenant, rows) in invoices.items():
        if record_invoice(tenant, key, {"rows": rows}):
            notify_event.delay(tenant)
            changed += 1
    return changed
