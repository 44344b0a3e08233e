"""Two pipelines that write nothing but the journal: invoices, and one with criteria. A bad invoice fails."""

from __future__ import annotations

import tests.pipelines_with_criteria  # noqa: F401 - declares one
from taskbridge import Batch, pipeline
from taskbridge.handlers.journal import journal


@pipeline("invoices")
def handle(batch: Batch) -> None:
    """Write the journal."""
    for record in batch:
        if record.document.get("bad"):
            raise ValueError("the price is missing")
    journal(batch)
