"""The hot queries are served by their indexes on a seeded table, however many rows lie behind the cursor."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.store import Cursors
from taskbridge.store.queries import query
from tests.store import plans
from tests.store.adopting import rows, run
from tests.store.plans import analyze, fill, nodes, pages
from tests.store.sweeping import claim

ROWS = 60_000
KEY = {"pipeline": "invoices", "source": "invoices", "tenant": "tenant-7", "token": "t", "small": 2_000}


@pytest.fixture(scope="module")
def seeded(shared: Engine) -> Engine:
    """60,000 handled invoices of 600 tenants, of which 20 are pending for one."""
    fill(shared, "invoices", ROWS, 600)
    add(shared, "tenant-7", "new", 20)
    analyze(shared, "records", "sync_cursors")
    return shared


def add(engine: Engine, tenant: str, name: str, number: int) -> None:
    """Record so many in one transaction."""
    run(
        engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document) "  # noqa: S608 - ours
        f"SELECT 'invoices', '{tenant}', '{name} ' || n, '{{}}' FROM generate_series(1, {number}) n",
    )


def plan(engine: Engine, name: str, settings: str | None = "plan_by_index", /, **values: Any) -> dict[str, Any]:
    """Run a query as a run does, or under other settings, and return its plan."""
    with engine.connect() as connection:
        if settings is not None:
            connection.exec_driver_sql(query(settings))
        return plans.plan(connection, name, {**KEY, **values})


def scans(top: dict[str, Any]) -> list[dict[str, Any]]:
    return plans.scans(top, "records")


def test_a_sweep_does_not_read_what_was_handled(seeded: Engine) -> None:
    top = plan(seeded, "read_batch", limit=500, bisecting=True)
    (scan,) = scans(top)
    assert scan["Node Type"] == "Index Scan"
    assert scan["Index Name"] == "ix_records_source_tenant_xid_id"
    assert "xid" in scan["Index Cond"]
    assert scan["Actual Rows"] == 20
    assert pages(top) < 25
    assert not any(node["Node Type"] == "Sort" and node["Actual Rows"] for node in nodes(top)), "the index gives it"


def test_a_sweep_reads_by_its_index_where_nothing_is_known_of_the_table(engine: Engine) -> None:
    """As in a storm of first events, with the plan that a session keeps and before Postgres has looked at the table."""
    run(
        engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document) "
        "SELECT 'invoices', 'tenant-' || n, '1', '{}' FROM generate_series(1, 20000) n",
    )
    cursors = Cursors(engine)
    for number in range(1, 21):
        assert len(claim(cursors, tenant=f"tenant-{number}").records) == 1
    run(engine, "SELECT pg_stat_force_next_flush()")
    statistics = "SELECT indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'records'"
    used = rows(engine, statistics)
    # What wrote them has looked for the ids of its transaction once.
    expected = {"ix_records_source_tenant_xid_id": 20, "ix_records_source_xid_id": 1}
    assert {name: scans for name, scans, _ in used if scans} == expected
    assert sum(read for *_, read in used) == 20


NOW = "SELECT pg_current_snapshot()::text"


def test_an_open_transaction_lets_no_sweep_read_what_was_handled_since(seeded: Engine) -> None:
    """A range from the oldest transaction that was on would read all that the tenant got since it began."""
    one = "tenant-9"
    with seeded.connect() as opened:
        opened.exec_driver_sql("SELECT pg_current_xact_id()")
        add(seeded, one, "since", 20_000)
        run(seeded, "UPDATE taskbridge.sync_cursors SET snapshot = pg_current_snapshot() WHERE tenant = 'tenant-9'")
        add(seeded, one, "newest", 20)
        for top in (
            plan(seeded, "read_batch", tenant=one, limit=500, bisecting=True),
            plan(seeded, "waiting_records", tenant=one, smallest=0, size=None),
            plan(seeded, "waiting_delays", tenants=[one], smallest=0, size=None),
            plan(seeded, "backlog", tenants=[one], size=1000),
            plan(seeded, "pending_before", tenants=[one], snapshot=rows(seeded, NOW)[0][0], size=None),
            plan(seeded, "tenant_counts", tenants=[one], size=1),
        ):
            assert max(scan["Actual Rows"] for scan in scans(top)) <= 20
            assert pages(top) < 60
    # and the last page of a sweep reads nothing of what came after its target
    add(seeded, one, "after", 1_000)
    run(
        seeded,
        "UPDATE taskbridge.sync_cursors SET snapshot = '1:1:', at_id = r.id, at_xid = r.xid, "
        "target = format('%s:%s:', r.xid, (r.xid::text::bigint + 1)::text)::pg_snapshot "
        "FROM (SELECT xid, max(id) AS id FROM taskbridge.records WHERE key LIKE 'newest %' GROUP BY xid) r "
        "WHERE tenant = 'tenant-9'",
    )
    top = plan(seeded, "read_batch", tenant=one, limit=500, bisecting=True)
    assert max(scan["Actual Rows"] for scan in scans(top)) == 0
    assert pages(top) < 25


def test_the_last_runs_are_read_without_those_before_them(engine: Engine) -> None:
    run(
        engine,
        "INSERT INTO taskbridge.runs (pipeline, tenant, token, began_at, ended_at, reason, worker, events, "  # noqa: S608
        "burst_run, records, rejected, outcome, snapshot) "
        "SELECT 'invoices', 'tenant-' || n, lpad(n::text, 16, '0') || '-aaaaaaaaaaaa', at, at, 'event', "
        f"'celery@here', 1, 1, 1, 0, 'handled', pg_current_snapshot() FROM generate_series(1, {ROWS}) n, "
        "LATERAL (SELECT timestamptz '2026-01-01 00:00Z' + n * interval '1 second' AS at) t",
    )
    analyze(engine, "runs")
    ((whole,),) = rows(engine, "SELECT pg_relation_size('taskbridge.runs_other') / 8192")
    times = {"since": "2026-01-01 00:00Z", "before": "2026-01-01 01:01Z", "token": ""}
    top = plan(engine, "past_of_all", None, **times, failed=False, pipelines=["invoices"], limit=60)
    assert top["Actual Rows"] == 60
    assert pages(top) < whole / 20
    top = plan(engine, "past_of_all", None, **times, failed=True, pipelines=["invoices"], limit=60)
    assert top["Actual Rows"] == 0
    assert pages(top) < 10


def test_claim_and_advance_touch_one_row(seeded: Engine) -> None:
    claimed: dict[str, Any] = {"burst": "", "burst_runs": 1, "burst_events": 1, "session": "taskbridge"}
    ends = {"target": "1:1:", "finished": True, "sweeps": 0, "at_xid": None, "at_id": None, "batch_limit": None}
    counted = dict.fromkeys(("records", "first_event_ms", "first_event_bucket"), 1)
    failed = dict.fromkeys(("suspects", "attempts", "deaths", "outages"), 0) | {"suspect_revision": None}
    columns = {**KEY, **ends, **counted, **failed}
    advanced: dict[str, Any] = {name: [value] for name, value in columns.items()} | {"idle_timeout": "5s"}
    for top in (plan(seeded, "claim", **claimed), plan(seeded, "advance", **advanced)):
        assert not any(node["Node Type"] == "Seq Scan" for node in nodes(top))
