"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from taskbridge.store.cursor import Aside, CursorLost, Cursors, Evidence, Outranked, Page, Transaction
from taskbridge.store.engine import OLDEST_POSTGRES, check_version, connect
from taskbridge.store.matching import Records, UnmatchedRecord, Waiting, WaitingRecords
from taskbridge.store.pauses import Pause, Paused, Pauses
from taskbridge.store.quarantine import Quarantine, QuarantinedRecord
from taskbridge.store.queries import INVOICE_ROWS, RECORD_ROWS, Source
from taskbridge.store.records import json_text, record_invoice
from taskbridge.store.schema import check_schema, migrate

__all__ = [
    "INVOICE_ROWS",
    "OLDEST_POSTGRES",
    "RECORD_ROWS",
    "Aside",
    "CursorLost",
    "Cursors",
    "Evidence",
    "Outranked",
    "Page",
    "Pause",
    "Paused",
    "Pauses",
    "Quarantine",
    "QuarantinedRecord",
    "Records",
    "Source",
    "Transaction",
    "UnmatchedRecord",
    "Waiting",
    "WaitingRecords",
    "check_schema",
    "check_version",
    "connect",
    "json_text",
    "migrate",
    "record_invoice",
]
