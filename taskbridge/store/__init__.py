"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from taskbridge.store.cursor import CursorLost, Cursors, Outranked, Page, Transaction
from taskbridge.store.engine import connect
from taskbridge.store.records import record_invoice
from taskbridge.store.schema import check_schema, migrate

__all__ = [
    "CursorLost",
    "Cursors",
    "Outranked",
    "Page",
    "Transaction",
    "check_schema",
    "connect",
    "migrate",
    "record_invoice",
]
