"""One bad record among many of one tenant: what finding it costs, counted in calls of the handler."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from benchmarks.benchmark import Benchmark, Option
from benchmarks.report import Headline, Report, Table, Target
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.process.runtime import Runtime

__all__ = ["POISON"]


def _measure(records: int, bad: int) -> Report:
    """Let the record at place `bad` of `records` fail always, after a tenant with as many of which none is bad."""
    bad = min(bad, records)
    with stage() as (runtime, directory):
        calls = directory / "calls"
        calls.touch(mode=0o666)
        with worker(runtime, directory, "--concurrency", "1", TASKBRIDGE_BENCH_CALLS=str(calls)):
            _drain(runtime, "warm", 1, 0)
            seconds = {
                "clean": _drain(runtime, "clean", records, 0),
                "poisoned": _drain(runtime, "poisoned", records, bad),
            }
        made = Counter(calls.read_text().split())
        found = {row["tenant"]: row for row in runtime.tenants_of(INVOICES).every_count(INVOICES)}
    rows = [
        (what, found[tenant]["handled"], found[tenant]["quarantined"], made[tenant], seconds[tenant])
        for what, tenant in (("no bad record", "clean"), (f"record {bad:,} is bad", "poisoned"))
    ]
    return Report(
        {"records": records, "bad": bad},
        [Table(f"{records:,} records of a tenant", ("", "handled", "in quarantine", "calls", "seconds"), rows)],
        [
            Target("records handled beside the bad one", found["poisoned"]["handled"], records - 1, at_least=True),
            Target("calls of the handler, ratio", made["poisoned"] / made["clean"], 3),
        ],
        headlines=[
            Headline(
                f"calls of the handler for {records:,} records, one of them bad",
                made["poisoned"],
                "none bad",
                made["clean"],
            )
        ],
    )


def _drain(runtime: Runtime, tenant: str, records: int, bad: int) -> float:
    """Let a tenant with `records`, of which the one at place `bad` fails, be handled; return the seconds it took."""
    with runtime.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', %(tenant)s, n::text, CASE WHEN n = %(bad)s THEN '{\"bad\": true}' ELSE '{}' END::jsonb "
            "FROM generate_series(1, %(records)s) n",
            {"tenant": tenant, "records": records, "bad": bad},
        )
    started = time.monotonic()
    runtime.gate.notify(INVOICES, tenant, runtime.pipelines[INVOICES].policy.spacing)
    wait_until(lambda: not [*runtime.pending(INVOICES)], f"all records of {tenant}", 300)
    return time.monotonic() - started


POISON: Final = Benchmark(
    "poison",
    "What finding one bad record costs.",
    "Measure what it costs to find one record that fails always among others of its tenant: calls of the handler, and "
    "time, most of which is back-off. The baseline is a tenant with as many records of which none is bad.",
    _measure,
    (
        Option("records", 10_000, 2, 1_000_000, "Records of each tenant."),
        Option("bad", 5_000, 1, 1_000_000, "Place of the bad record."),
    ),
    {"records": 20, "bad": 7},
)
