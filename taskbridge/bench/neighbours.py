"""How long first events wait while another tenant has a million pending records and a slow handler.

The delay of a first event is what the runner notes itself: from the event, by Redis's clock, to just before the handler
is called with its record. The baseline is the same worker while nobody else has work.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import Any, Final

from taskbridge.bench.stage import stage, wait_until, worker
from taskbridge.pipeline import INVOICES
from taskbridge.runtime import Runtime
from taskbridge.store import record_invoice

__all__ = ["measure"]

BETWEEN_EVENTS: Final = 0.1
SLOW: Final = 0.002


def measure(records: int = 1_000_000, tenants: int = 100, concurrency: int = 1) -> dict[str, Any]:
    """Return the delays of `tenants` first events in milliseconds, beside nobody and beside `records` of one tenant.

    `within` is twice the idle p99 and one run budget: what the busy p99 should not exceed.
    """
    with stage() as (here, directory):
        options = ("--concurrency", str(concurrency), "--prefetch-multiplier", "1")
        environment = {"TASKBRIDGE_BENCH_SECONDS_PER_RECORD": str(SLOW)}
        with worker(here, directory / "worker.log", "taskbridge.bench.handlers", *options, **environment):
            _first_events(here, "warm", concurrency * 4)
            idle = _first_events(here, "idle", tenants)
            _import(here, "large", records)
            here.gate.notify(INVOICES, "large", here.pipelines[INVOICES].policy.spacing)
            wait_until(lambda: _handled(here) > 0, "the large tenant is under way", 60)
            before, started = _handled(here), time.monotonic()
            busy = _first_events(here, "busy", tenants)
            rate = (_handled(here) - before) / (time.monotonic() - started)
    budget = here.settings.run_budget * 1000
    figures = {"idle": _summary(idle), "busy": _summary(busy)}
    return {
        "records": records,
        "tenants": tenants,
        "concurrency": concurrency,
        "run_budget_ms": budget,
        "first_event_ms": figures,
        "large_records_per_second": rate,
        "within": 2 * figures["idle"]["p99"] + budget,
    }


def _first_events(here: Runtime, prefix: str, count: int) -> list[int]:
    names = [f"{prefix}-{at}" for at in range(count)]
    spacing = here.pipelines[INVOICES].policy.spacing
    for name in names:
        record_invoice(here.engine, name, "1", {"number": "1"})
        here.gate.notify(INVOICES, name, spacing)
        time.sleep(BETWEEN_EVENTS)
    delays: list[int] = []

    def all_handled() -> bool:
        with here.engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT first_event_ms FROM sync_cursors WHERE starts_with(tenant, %s) AND first_event_ms IS NOT NULL",
                (f"{prefix}-",),
            )
            delays[:] = rows.scalars()
        return len(delays) == count

    wait_until(all_handled, f"{count} first events", 120)
    return delays


def _import(here: Runtime, tenant: str, records: int) -> None:
    with here.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO invoices (tenant, number, document) "
            "SELECT %(tenant)s, n::text, '{}' FROM generate_series(1, %(records)s) n",
            {"tenant": tenant, "records": records},
        )


def _handled(here: Runtime) -> int:
    with here.engine.connect() as connection:
        text = "SELECT coalesce(sum(records), 0) FROM sync_cursors WHERE tenant = 'large'"
        return int(connection.exec_driver_sql(text).scalar_one())


def _summary(delays: list[int]) -> dict[str, float]:
    return {"median": median(delays), "p99": quantiles(delays, n=100)[98], "max": max(delays)}
