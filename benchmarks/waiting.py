"""Tenants that wait for the delay of their criterion, for the benchmarks of due runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.gate import Reminder
from taskbridge.process.runtime import Runtime

__all__ = ["PIPELINE", "POLICY", "let_wait", "record_each"]

PIPELINE: Final = "bench-alerts"
POLICY: Final = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 3600),))
CHUNK: Final = 500


def let_wait(runtime: Runtime, due: Mapping[str, int]) -> None:
    """Make tenants of `PIPELINE` wait until they are due, each in milliseconds of Redis's clock."""
    delay, names = POLICY.spacing.delay, list(due)
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        runtime.gate.remind(PIPELINE, [Reminder(name, delay, due[name] - delay) for name in chunk])


def record_each(runtime: Runtime, names: Sequence[str]) -> None:
    """Write a record of each tenant of `PIPELINE`."""
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, tenant, delay_ms, criterion, document) "
            "SELECT %s, name, name, 3600000, 'bench', '{}' FROM unnest(%s::text[]) name",
            (PIPELINE, list(names)),
        )
