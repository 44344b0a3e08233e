"""Records of the pipelines whose handlers take a given time: how they are declared, written and notified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.process.runtime import Runtime

__all__ = ["POLICY", "add"]

POLICY: Final = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 0.001),))
"""A pipeline with criteria has records of its own, so that many pipelines can be measured side by side."""


def add(runtime: Runtime, pipeline: str, tenants: Sequence[str], records: int = 1) -> None:
    """Commit so many new records of each tenant, in one transaction, and notify the tenants."""
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, tenant, delay_ms, criterion, document) "
            "SELECT %s, gen_random_uuid(), tenant, 1, 'bench', '{}' "
            "FROM unnest(%s::text[]) tenant, generate_series(1, %s) n",
            (pipeline, list(tenants), records),
        )
    runtime.gate.notify_many([(pipeline, tenant, POLICY.spacing) for tenant in tenants])
