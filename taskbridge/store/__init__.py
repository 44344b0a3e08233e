"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from taskbridge.store.cursor import CursorLost, Cursors, Outranked, Page, Transaction
from taskbridge.store.engine import OLDEST_POSTGRES, check_version, connect
from taskbridge.store.records import record_invoice
from taskbridge.store.schema import check_schema, migrate

__all__ = [
    "OLDEST_POSTGRES",
    "CursorLost",
    "Cursors",
    "Outranked",
    "Page",
    "Transaction",
    "check_schema",
    "check_version",
    "connect",
    "migrate",
    "record_invoice",
]
