"""The hot queries are served by their indexes on a seeded table, however many rows lie behind the cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import Claim, Cursors
from taskbridge.store.queries import query

ROWS, TENANTS = 60_000, 600
KEY = {"pipeline": "invoices", "source": "invoices", "tenant": "tenant-7", "token": "t", "small": 2_000}


@pytest.fixture(scope="module")
def seeded(shared: Engine) -> Engine:
    """60,000 handled invoices of 600 tenants, of which 20 are pending for one."""
    engine = shared
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'tenant-' || n %% %(tenants)s, n::text, '{}' FROM generate_series(1, %(rows)s) n",
            {"rows": ROWS, "tenants": TENANTS},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, owner, snapshot, last_run_at) "
            "SELECT 'invoices', 'tenant-' || n, 't', pg_current_snapshot(), now() "
            "FROM generate_series(0, %(tenants)s - 1) n",
            {"tenants": TENANTS},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'tenant-7', 'new ' || n, '{}' FROM generate_series(1, 20) n"
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE taskbridge.records, taskbridge.sync_cursors")
    return engine


def plan(engine: Engine, name: str, settings: str = "plan_by_index", **values: Any) -> dict[str, Any]:
    """Run a query under EXPLAIN and return its plan."""
    with engine.connect() as connection:
        connection.exec_driver_sql(query(settings))
        text = query(name)
        found = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", {**KEY, **values}
        ).scalar_one()
    top: dict[str, Any] = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    return top


def nodes(top: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a plan that were run; nothing is in quarantine, so what looks for its records never is."""
    if top["Actual Loops"]:
        yield top
        for below in top.get("Plans", ()):
            yield from nodes(below)


def pages(top: dict[str, Any]) -> int:
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


def scans(top: dict[str, Any]) -> list[dict[str, Any]]:
    """The scans of the log that were run."""
    return [node for node in nodes(top) if node.get("Relation Name") == "records"]


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
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'tenant-' || n, '1', '{}' FROM generate_series(1, 20000) n"
        )
    cursors = Cursors(engine)
    for number in range(1, 21):
        page = cursors.claim(Claim(RunKey("invoices", f"tenant-{number}", "t"), 500, 1, 1))
        assert len(page.records) == 1
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        connection.commit()
        used = connection.exec_driver_sql(
            "SELECT indexrelname, idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE relname = 'records'"
        ).all()
    # What wrote them has looked for the ids of its transaction once.
    expected = {"ix_records_source_tenant_xid_id": 20, "ix_records_source_xid_id": 1}
    assert {name: scans for name, scans, _ in used if scans} == expected
    assert sum(read for *_, read in used) == 20


def test_an_open_transaction_lets_no_sweep_read_what_was_handled_since(seeded: Engine) -> None:
    """A range from the oldest transaction that was on would read all that the tenant got since it began."""
    one = "tenant-9"

    def insert(name: str, count: int) -> None:
        with seeded.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.records (source, tenant, key, document) "
                "SELECT 'invoices', %s, %s || ' ' || n, '{}' FROM generate_series(1, %s) n",
                (one, name, count),
            )

    with seeded.connect() as opened:
        opened.exec_driver_sql("SELECT pg_current_xact_id()")
        insert("since", 20_000)
        with seeded.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE taskbridge.sync_cursors SET snapshot = pg_current_snapshot() WHERE tenant = %s", (one,)
            )
        insert("newest", 20)
        for top in (
            plan(seeded, "read_batch", tenant=one, limit=500, bisecting=True),
            plan(seeded, "waiting_records", tenant=one, smallest=0, size=None),
            plan(seeded, "waiting_delays", tenants=[one], smallest=0, size=None),
            plan(seeded, "backlog", tenants=[one], size=1000),
            plan(seeded, "tenant_counts", tenants=[one], size=1),
        ):
            assert max(scan["Actual Rows"] for scan in scans(top)) <= 20
            assert pages(top) < 60
    # and the last page of a sweep reads nothing of what came after its target
    insert("after", 1_000)
    with seeded.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE taskbridge.sync_cursors SET snapshot = '1:1:', at_id = r.id, at_xid = r.xid, "
            "target = format('%%s:%%s:', r.xid, (r.xid::text::bigint + 1)::text)::pg_snapshot "
            "FROM (SELECT xid, max(id) AS id FROM taskbridge.records WHERE key LIKE 'newest %%' GROUP BY xid) r "
            "WHERE tenant = 'tenant-9'"
        )
    top = plan(seeded, "read_batch", tenant=one, limit=500, bisecting=True)
    assert max(scan["Actual Rows"] for scan in scans(top)) == 0
    assert pages(top) < 25


def test_waiting_for_a_drain_does_not_read_what_was_handled(seeded: Engine) -> None:
    with seeded.connect() as connection:
        snapshot = connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one()
    top = plan(seeded, "pending_before", tenants=["tenant-7", "tenant-8"], snapshot=snapshot, size=None)
    assert top["Actual Rows"] == 1
    assert sum(scan["Actual Rows"] * scan["Actual Loops"] for scan in scans(top)) == 20


@pytest.mark.parametrize("until", [None, "tenant-4"])
def test_a_page_of_tenants_reads_no_other(seeded: Engine, until: str | None) -> None:
    assert pages(plan(seeded, "tenants_from", first="tenant-3", but="tenant-3", until=until, limit=10)) < 100
    assert pages(plan(seeded, "tenant_counts", tenants=[f"tenant-{at}" for at in range(10)], size=100)) < 1000


def test_the_last_runs_are_read_without_those_before_them(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.runs (pipeline, tenant, token, began_at, ended_at, reason, worker, events, "
            "burst_run, records, rejected, outcome, snapshot) "
            "SELECT 'invoices', 'tenant-' || n, lpad(n::text, 16, '0') || '-aaaaaaaaaaaa', at, at, 'event', "
            "'celery@here', 1, 1, 1, 0, 'handled', pg_current_snapshot() FROM generate_series(1, %(rows)s) n, "
            "LATERAL (SELECT timestamptz '2026-01-01 00:00Z' + n * interval '1 second' AS at) t",
            {"rows": ROWS},
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE taskbridge.runs")
        ((whole,),) = connection.exec_driver_sql("SELECT pg_relation_size('taskbridge.runs_other') / 8192")
    times = {"since": "2026-01-01 00:00Z", "before": "2026-01-01 01:01Z", "token": ""}
    top = plan(engine, "past_of_all", "nothing", **times, failed=False, pipelines=["invoices"], limit=60)
    assert top["Actual Rows"] == 60
    assert pages(top) < whole / 20
    top = plan(engine, "past_of_all", "nothing", **times, failed=True, pipelines=["invoices"], limit=60)
    assert top["Actual Rows"] == 0
    assert pages(top) < 10


def test_whose_fault_it_is_reads_no_other_cursor(seeded: Engine) -> None:
    with seeded.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.quarantine (pipeline, tenant, external_id, revision, reason) "
            "SELECT 'invoices', 'tenant-8', n::text, 1, 'bad' FROM generate_series(1, 20000) n"
        )
    assert pages(plan(seeded, "evidence")) < 12


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("claim", {"burst": "", "burst_runs": 1, "burst_events": 1, "session": "taskbridge"}),
        (
            "advance",
            {
                "sweeps": 0,
                "target": "1:1:",
                "finished": True,
                "at_xid": None,
                "at_id": None,
                "records": 1,
                "first_event_ms": 1,
                "first_event_bucket": 1,
                "batch_limit": None,
                "suspects": 0,
                "attempts": 0,
                "deaths": 0,
                "suspect_revision": None,
                "outages": 0,
                "idle_timeout": "5s",
            },
        ),
    ],
)
def test_claim_and_advance_touch_one_row(seeded: Engine, name: str, values: dict[str, Any]) -> None:
    if name == "advance":
        idle = {"idle_timeout": values.pop("idle_timeout")}
        values = {key: [value] for key, value in {**KEY, **values}.items()} | idle
    assert not any(node["Node Type"] == "Seq Scan" for node in nodes(plan(seeded, name, **values)))
