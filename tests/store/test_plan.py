"""The hot queries are served by their indexes on a seeded table, however many rows lie behind the cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.store.cursor import SMALL
from taskbridge.store.queries import INVOICE_ROWS, RECORD_ROWS, Source, query

ROWS, TENANTS = 60_000, 600
KEY = {"pipeline": "invoices", "tenant": "tenant-7", "token": "t"}


@pytest.fixture
def seeded(engine: Engine) -> Engine:
    """60,000 handled invoices of 600 tenants, of which 20 are pending for one."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO invoices (tenant, number, document) "
            "SELECT 'tenant-' || n %% %(tenants)s, n::text, '{}' FROM generate_series(1, %(rows)s) n",
            {"rows": ROWS, "tenants": TENANTS},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO sync_cursors (pipeline, tenant, owner, snapshot) "
            "SELECT 'invoices', 'tenant-' || n, 't', pg_current_snapshot() FROM generate_series(0, %(tenants)s - 1) n",
            {"tenants": TENANTS},
        )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO invoices (tenant, number, document) "
            "SELECT 'tenant-7', 'new ' || n, '{}' FROM generate_series(1, 20) n"
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE invoices, sync_cursors")
    return engine


def plan(engine: Engine, name: str, source: Source | None = None, **values: Any) -> dict[str, Any]:
    """Run a query under EXPLAIN and return its plan."""
    with engine.connect() as connection:
        if name == "read_batch":
            connection.exec_driver_sql(query("plan_by_index"))
        text = query(name, source)
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


def test_a_sweep_does_not_read_what_was_handled(seeded: Engine) -> None:
    top = plan(seeded, "read_batch", INVOICE_ROWS, limit=500, narrowed=True, small=SMALL)
    (scan,) = (node for node in nodes(top) if node.get("Relation Name") == "invoices")
    assert scan["Node Type"] == "Index Scan"
    assert scan["Index Name"] == "ix_invoices_tenant_xid_id"
    assert "xid" in scan["Index Cond"]
    assert scan["Actual Rows"] == 20
    assert pages(top) < 20
    assert not any(node["Node Type"] == "Sort" and node["Actual Rows"] for node in nodes(top)), "the index gives it"


def test_a_sweep_of_records_with_criteria_does_not_read_what_was_handled_either(seeded: Engine) -> None:
    with seeded.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO records (pipeline, message_id, tenant, delay_ms, criterion, payload) "
            "SELECT 'invoices', n::text, 'tenant-' || n %% 600, 1000, 'c', '{}' FROM generate_series(1, 60000) n"
        )
        connection.exec_driver_sql("UPDATE sync_cursors SET snapshot = '1:1:'")
    with seeded.begin() as connection:
        connection.exec_driver_sql("UPDATE sync_cursors SET snapshot = pg_current_snapshot()")
        connection.exec_driver_sql(
            "INSERT INTO records (pipeline, message_id, tenant, delay_ms, criterion, payload) "
            "SELECT 'invoices', 'new' || n, 'tenant-7', 1000, 'c', '{}' FROM generate_series(1, 20) n"
        )
    with seeded.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE records, sync_cursors")
    top = plan(seeded, "read_batch", RECORD_ROWS, limit=500, narrowed=True, small=SMALL)
    (scan,) = (node for node in nodes(top) if node.get("Relation Name") == "records")
    assert scan["Index Name"] == "ix_records_pipeline_tenant_xid_id"
    assert scan["Actual Rows"] == 20
    assert pages(top) < 30
    waiting = plan(seeded, "waiting_tenants", all=True)
    assert not any(node["Node Type"] == "Seq Scan" and node["Relation Name"] == "records" for node in nodes(waiting))
    assert waiting["Actual Rows"] == 1
    # Two descents of an index of three levels for each tenant, and a few pages.
    assert pages(waiting) < TENANTS * 10


def test_looking_for_pending_tenants_reads_tenants_and_not_rows(seeded: Engine) -> None:
    top = plan(seeded, "pending_tenants")
    assert not any(node["Node Type"] == "Seq Scan" and node["Relation Name"] == "invoices" for node in nodes(top))
    assert top["Actual Rows"] == 1
    # Two descents of an index of three levels for each tenant, and a few pages.
    assert pages(top) < TENANTS * 10


def test_waiting_for_a_drain_does_not_read_what_was_handled(seeded: Engine) -> None:
    with seeded.connect() as connection:
        snapshot = connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one()
    top = plan(seeded, "pending_before", INVOICE_ROWS, tenants=["tenant-7", "tenant-8"], snapshot=snapshot)
    assert top["Actual Rows"] == 1
    scans = [node for node in nodes(top) if node.get("Index Name") == "ix_invoices_tenant_xid_id"]
    assert any("xid" in scan["Index Cond"] and scan["Actual Rows"] * scan["Actual Loops"] == 20 for scan in scans), top


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("claim", {"new_events": 1, "burst_runs": 1, "burst_events": 1, "session": "taskbridge"}),
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
                "handled": 1,
                "batch_limit": None,
                "suspects": 0,
                "attempts": 0,
                "deaths": 0,
                "suspect_revision": None,
                "outages": 0,
                "patience": "5s",
            },
        ),
    ],
)
def test_claim_and_advance_touch_one_row(seeded: Engine, name: str, values: dict[str, Any]) -> None:
    assert not any(node["Node Type"] == "Seq Scan" for node in nodes(plan(seeded, name, **values)))
