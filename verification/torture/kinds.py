"""The two pipelines of an arena, and which of them a tenant belongs to.

`invoices` writes in the transaction that advances the cursor. `parcels` stands for a downstream such as an HTTP API
with idempotency keys: its handler uses no connection of the batch, and what it did is in the ledger alone.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from taskbridge.declaring.pipeline import INVOICES

__all__ = ["INVOICES", "PARCELS", "PIPELINES", "by_pipeline", "kind_of", "pipeline_of", "tenant_named", "uses_session"]

PARCELS: Final = "parcels"
PIPELINES: Final = (INVOICES, PARCELS)
"""Each reads the source of its own name."""

_MARK: Final = "-parcel"


def kind_of(number: int) -> str:
    """Return the one pipeline for even numbers, and the other for odd ones."""
    return PIPELINES[number % 2]


def tenant_named(base: str, number: int, pipeline: str) -> str:
    """Return a tenant's name of this pipeline; none of these is the beginning of another."""
    return f"{base}{number:05}{_MARK if pipeline == PARCELS else ''}"


def pipeline_of(tenant: str) -> str:
    """Return the pipeline, and source, of a tenant of this name."""
    return PARCELS if tenant.endswith(_MARK) else INVOICES


def by_pipeline(tenants: list[str]) -> dict[str, list[str]]:
    """Return the tenants of each pipeline."""
    return {one: [tenant for tenant in tenants if pipeline_of(tenant) == one] for one in PIPELINES}


def uses_session(tenant: str) -> bool:
    """Whether calls for this tenant of parcels look at the session that their batch is lent."""
    return crc32(tenant.encode()) % 4 == 0
