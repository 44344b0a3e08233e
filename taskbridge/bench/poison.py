"""One bad record among many of one tenant: what finding it costs, counted in calls of the handler."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from taskbridge.bench.stage import stage, wait_until, worker
from taskbridge.pipeline import INVOICES
from taskbridge.runtime import Runtime

__all__ = ["measure"]


def measure(records: int = 10_000, bad: int = 5_000) -> dict[str, Any]:
    """Let the record at place `bad` of `records` fail always; return what became of all, and the calls that it took.

    The baseline is a tenant with as many records of which none is bad, handled before it.
    """
    with stage() as (here, directory):
        calls = directory / "calls"
        calls.touch(mode=0o666)
        environment = {"TASKBRIDGE_BENCH_CALLS": str(calls)}
        with worker(here, directory / "worker.log", "taskbridge.bench.handlers", "--concurrency", "1", **environment):
            _drain(here, "warm", 1, 0)
            seconds = {"clean": _drain(here, "clean", records, 0), "poisoned": _drain(here, "poisoned", records, bad)}
        made = Counter(calls.read_text().split())
        found = {row["tenant"]: row for row in here.cursors.counts(INVOICES)}
    return {
        "records": records,
        "bad": bad,
        **{state: found["poisoned"][state] for state in ("handled", "quarantined", "pending")},
        "calls": {tenant: made[tenant] for tenant in seconds} | {"ratio": made["poisoned"] / made["clean"]},
        "seconds": seconds,
    }


def _drain(here: Runtime, tenant: str, records: int, bad: int) -> float:
    """Let a tenant with `records`, of which the one at place `bad` fails, be handled; return the seconds it took."""
    with here.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO invoices (tenant, number, document) "
            "SELECT %(tenant)s, n::text, CASE WHEN n = %(bad)s THEN '{\"bad\": true}' ELSE '{}' END::jsonb "
            "FROM generate_series(1, %(records)s) n",
            {"tenant": tenant, "records": records, "bad": bad},
        )
    started = time.monotonic()
    here.gate.notify(INVOICES, tenant, here.pipelines[INVOICES].policy.spacing)
    wait_until(lambda: not here.cursors.pending_tenants(INVOICES), f"all records of {tenant}", 300)
    return time.monotonic() - started
