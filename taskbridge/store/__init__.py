"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from taskbridge.store.adopted import Adopted, Definition, described, known
from taskbridge.store.adopting import Left, adopt, adopting, adoption, check_adoptions, examined, unadopt, unadopting
from taskbridge.store.backfill import Backfilled, backfill
from taskbridge.store.cluster import (
    FOREIGN_CLUSTER,
    FOREIGN_CLUSTER_STATE,
    Rebased,
    check_cluster,
    in_its_cluster,
    rebase,
)
from taskbridge.store.cursor import Cursors, Evidence, StaleToken, Unread, Waiting, WaitingRecords
from taskbridge.store.engine import OLDEST_POSTGRES, NoAnswer, check_version, connect
from taskbridge.store.figures import Ages, Backlog, Counters, read_ages, read_backlogs, read_counters
from taskbridge.store.page import Page
from taskbridge.store.pauses import Pause, Paused, Pauses
from taskbridge.store.pipelines import EVERYTHING, NOW, know, undeclared_pipelines, undeclared_readers
from taskbridge.store.prune import PRUNED, Prune, Step, prune
from taskbridge.store.quarantine import Quarantine, QuarantinedRecord
from taskbridge.store.records import (
    Records,
    Row,
    UnmatchedRecord,
    json_text,
    matching_alone,
    record,
    record_invoice,
    record_many,
    unmatched_sources,
    with_reason,
)
from taskbridge.store.schema import check_schema, migrate
from taskbridge.store.tail import Found, Kind, Tails
from taskbridge.store.transaction import CursorLost, Quarantined, Transaction

__all__ = [
    "EVERYTHING",
    "FOREIGN_CLUSTER",
    "FOREIGN_CLUSTER_STATE",
    "NOW",
    "OLDEST_POSTGRES",
    "PRUNED",
    "Adopted",
    "Ages",
    "Backfilled",
    "Backlog",
    "Counters",
    "CursorLost",
    "Cursors",
    "Definition",
    "Evidence",
    "Found",
    "Kind",
    "Left",
    "NoAnswer",
    "Page",
    "Pause",
    "Paused",
    "Pauses",
    "Prune",
    "Quarantine",
    "Quarantined",
    "QuarantinedRecord",
    "Rebased",
    "Records",
    "Row",
    "StaleToken",
    "Step",
    "Tails",
    "Transaction",
    "UnmatchedRecord",
    "Unread",
    "Waiting",
    "WaitingRecords",
    "adopt",
    "adopting",
    "adoption",
    "backfill",
    "check_adoptions",
    "check_cluster",
    "check_schema",
    "check_version",
    "connect",
    "described",
    "examined",
    "in_its_cluster",
    "json_text",
    "know",
    "known",
    "matching_alone",
    "migrate",
    "prune",
    "read_ages",
    "read_backlogs",
    "read_counters",
    "rebase",
    "record",
    "record_invoice",
    "record_many",
    "unadopt",
    "unadopting",
    "undeclared_pipelines",
    "undeclared_readers",
    "unmatched_sources",
    "with_reason",
]
