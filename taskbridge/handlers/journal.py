"""The built-in handler of the pipeline invoices: the journal, which writes down each delivery."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.declaring.batch import RetryAfter
from taskbridge.declaring.pipeline import INVOICES, Pipeline
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Batch

__all__ = ["JOURNAL", "NOT_FOR_THE_JOURNAL", "journal"]

log = logging.getLogger(__name__)
_throttle: Final = LogThrottle()

WAITS: Final = 5.0
"""Seconds until another worker may take a batch that is not for the journal."""
NOT_FOR_THE_JOURNAL: Final = (
    f"a table is or was adopted as {INVOICES!r}, and without a handler the built-in journal would take its changes",
    "name the modules that declare your pipelines in TASKBRIDGE_PIPELINES, and restart it",
)
"""What is wrong, and what to do."""


def journal(batch: Batch) -> None:
    """Write one row of `deliveries` per record, in the transaction that advances the cursor: exactly once.

    Rejected records are left out, so that a handler of yours can reject some and then call this.
    """
    taken = [record for record in batch if record.external_id not in batch.rejected]
    batch.connection.exec_driver_sql(
        queries(batch.connection)("record_delivery"),
        {
            "pipeline": batch.pipeline,
            "tenant": batch.tenant,
            "token": batch.token,
            "external_ids": [record.external_id for record in taken],
            "revisions": [record.revision for record in taken],
        },
    )


def _journal_alone(batch: Batch) -> None:
    """Write the journal where nobody declared a handler, unless the source is an adopted table, or was.

    Who adopts a table has a handler for it, in another process: its changes are not for the journal. Some may be
    pending when it is given up.

    Raises:
        RetryAfter: it is.
    """
    if INVOICES in batch.connection.exec_driver_sql(queries(batch.connection)("once_adopted")).scalars():
        if count := _throttle.counted(INVOICES):
            said = "%d batches have had to wait since the last report, most recently of tenant %r: %s: %s"
            log.error(said, count, batch.tenant, *NOT_FOR_THE_JOURNAL)
        raise RetryAfter(WAITS)
    journal(batch)


JOURNAL: Final = Pipeline(INVOICES, _journal_alone, LatencyNeutral(), batch_size=500)
