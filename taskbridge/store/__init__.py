"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from taskbridge.store.cluster import (
    FOREIGN_CLUSTER,
    FOREIGN_CLUSTER_STATE,
    Rebased,
    check_cluster,
    in_its_cluster,
    rebase,
)
from taskbridge.store.cursor import (
    Aside,
    CursorLost,
    Cursors,
    Evidence,
    Outranked,
    Page,
    Transaction,
    Unread,
)
from taskbridge.store.engine import OLDEST_POSTGRES, check_version, connect
from taskbridge.store.figures import Backlog, Counters, read_figures
from taskbridge.store.matching import Records, UnmatchedRecord, Waiting, WaitingRecords
from taskbridge.store.pauses import Pause, Paused, Pauses
from taskbridge.store.prune import PRUNED, Prune, Step, prune
from taskbridge.store.quarantine import Quarantine, QuarantinedRecord
from taskbridge.store.queries import INVOICE_ROWS, RECORD_ROWS, Source
from taskbridge.store.records import json_text, record_invoice
from taskbridge.store.schema import check_schema, migrate

__all__ = [
    "FOREIGN_CLUSTER",
    "FOREIGN_CLUSTER_STATE",
    "INVOICE_ROWS",
    "OLDEST_POSTGRES",
    "PRUNED",
    "RECORD_ROWS",
    "Aside",
    "Backlog",
    "Counters",
    "CursorLost",
    "Cursors",
    "Evidence",
    "Outranked",
    "Page",
    "Pause",
    "Paused",
    "Pauses",
    "Prune",
    "Quarantine",
    "QuarantinedRecord",
    "Rebased",
    "Records",
    "Source",
    "Step",
    "Transaction",
    "UnmatchedRecord",
    "Unread",
    "Waiting",
    "WaitingRecords",
    "check_cluster",
    "check_schema",
    "check_version",
    "connect",
    "in_its_cluster",
    "json_text",
    "migrate",
    "prune",
    "read_figures",
    "rebase",
    "record_invoice",
]
