"""The built-in handler of the pipeline invoices: the journal, which writes down each delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskbridge.declaring.pipeline import INVOICES, Pipeline
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Batch

__all__ = ["JOURNAL", "journal"]


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


JOURNAL: Final = Pipeline(INVOICES, journal, LatencyNeutral(), batch_size=500)
