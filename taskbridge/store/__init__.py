"""The store: Postgres, which is the truth. It imports nothing of the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.lazy import on_first_use

if TYPE_CHECKING:
    from taskbridge.store.adopted import Adopted, backfills_due
    from taskbridge.store.adoptions import (
        adopt,
        adoption,
        adoption_statements,
        check_adoptions,
        removal_statements,
        trigger_faults,
        unadopt,
    )
    from taskbridge.store.backfilling import backfill, begin_again
    from taskbridge.store.cursor import CLAIMED_WITHIN, Claim, Cursors, Evidence, StaleToken, Unread, Waiting
    from taskbridge.store.db import NoAnswer, check_version, connect, driver_error, is_without_session
    from taskbridge.store.history import HistoryRow, keep_runs, sum_runs, write_runs
    from taskbridge.store.maintenance import (
        PRUNED,
        Prune,
        Step,
        forget_pipeline,
        prune,
        register_pipeline,
        undeclared_readers,
        unread_sources,
    )
    from taskbridge.store.page import Page
    from taskbridge.store.poller import Changes, ChangesPage, Kind
    from taskbridge.store.quarantine import Pause, Paused, Pauses, Quarantine, QuarantinedRecord, audit
    from taskbridge.store.rebasing import Rebased, rebase
    from taskbridge.store.receiving import AsyncPool, Incoming, forget_received, receive_statement
    from taskbridge.store.records import (
        Records,
        Row,
        Statement,
        documents_statement,
        exact_json_text,
        execute,
        json_text,
        message_statement,
        record,
        record_invoice,
        record_many,
        record_statements,
        refused,
    )
    from taskbridge.store.schema import check_cluster, check_schema, deployment, in_its_cluster, migrate
    from taskbridge.store.stats import LOOK_SECONDS, Backlog, Counters, Tenants, read_ages, read_backlogs, read_counters
    from taskbridge.store.transaction import (
        ComesAgain,
        CursorLost,
        Move,
        Quarantined,
        Transaction,
        advance_together,
    )
    from taskbridge.store.unmatched import (
        UnmatchedRecord,
        count_unmatched,
        is_adopted,
        read_unmatched,
        unmatched_sources,
    )

if not TYPE_CHECKING:
    # A process loads the modules that it uses.
    __getattr__ = on_first_use(
        __name__,
        {
            "adopted": "Adopted backfills_due",
            "adoptions": (
                "adopt adoption adoption_statements check_adoptions removal_statements trigger_faults unadopt"
            ),
            "backfilling": "backfill begin_again",
            "cursor": "CLAIMED_WITHIN Claim Cursors Evidence StaleToken Unread Waiting",
            "db": "NoAnswer check_version connect driver_error is_without_session",
            "history": "HistoryRow keep_runs sum_runs write_runs",
            "maintenance": (
                "PRUNED Prune Step forget_pipeline prune register_pipeline undeclared_readers unread_sources"
            ),
            "page": "Page",
            "quarantine": "Pause Paused Pauses Quarantine QuarantinedRecord audit",
            "rebasing": "Rebased rebase",
            "receiving": "AsyncPool Incoming forget_received receive_statement",
            "records": (
                "Records Row Statement documents_statement exact_json_text execute json_text message_statement record "
                "record_invoice record_many record_statements refused"
            ),
            "schema": "check_cluster check_schema deployment in_its_cluster migrate",
            "stats": "LOOK_SECONDS Backlog Counters Tenants read_ages read_backlogs read_counters",
            "poller": "Changes ChangesPage Kind",
            "transaction": "ComesAgain CursorLost Move Quarantined Transaction advance_together",
            "unmatched": "UnmatchedRecord count_unmatched is_adopted read_unmatched unmatched_sources",
        },
    )
