"""The log may be partitioned by tenant, as the page says: nothing else changes."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DataError

from taskbridge.declaring.criteria import Match, Unmatched
from taskbridge.store import Changes, Cursors, Kind, Prune, Records, prune, record, register_pipeline
from tests.store.adopting import adopted, rows, run
from tests.store.sweeping import batch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "partition.md"
INTO_A_PARTITION = """
DO $$
DECLARE
    one record;
BEGIN
    SELECT r.tableoid::regclass AS partition, r.tenant INTO one FROM taskbridge.records r LIMIT 1;
    EXECUTE format(
        'INSERT INTO %s (source, tenant, key, document) VALUES (%L, %L, %L, %L)',
        one.partition, '@source', one.tenant, 'x', '{}');
END
$$
"""
TENANTS = [f"tenant-{number}" for number in range(20)]


STATES = "SELECT state, count(*) FROM taskbridge.record_states GROUP BY 1"


@pytest.fixture
def split(engine: Engine) -> Engine:
    """A log with records, one of them unmatched, that was partitioned afterwards."""
    register_pipeline(engine, "orders", "orders")
    for tenant in TENANTS:
        record(engine, "orders", tenant, "1", {"version": 1})
    Records(engine, "orders").write("message", "{}", Unmatched("no criterion"))
    found = re.search(r"<!-- sql -->\n```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        before = list(connection.exec_driver_sql("SELECT * FROM taskbridge.records ORDER BY xid, id"))
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute(found[1])
        assert list(connection.exec_driver_sql("SELECT * FROM taskbridge.records ORDER BY xid, id")) == before
        used = connection.exec_driver_sql("SELECT count(DISTINCT tableoid) FROM taskbridge.records").scalar_one()
        assert used > 4
    return engine


def test_what_was_there_and_what_comes_is_found_handled_and_pruned(split: Engine) -> None:
    changes, cursors = Changes(split, 10.0), Cursors(split, "orders")
    found = changes.read_page(Kind.POLLER, "orders", "orders", 200)
    changes.store_page(Kind.POLLER, "orders", found)
    assert sorted(Changes(split).pending("orders", "orders")) == sorted(TENANTS)
    for tenant in TENANTS:
        batch(cursors, tenant=tenant, pipeline="orders")
    assert (sorted(Changes(split).pending("orders", "orders")), rows(split, STATES)) == ([], [("handled", 20)])

    assert not record(split, "orders", TENANTS[0], "1", {"version": 1})
    assert record(split, "orders", TENANTS[0], "1", {"version": 2})
    assert [one.tenant for one in changes.read_page(Kind.POLLER, "orders", "orders", 200).waiting] == [TENANTS[0]]

    moved = list(Records(split, "orders").match_again(lambda _: Match("moved", 1, "c")))
    assert [one.message_id for one, _ in moved] == ["message"]
    assert sorted(Changes(split).pending("orders", "orders")) == sorted(["moved", TENANTS[0]])
    batch(cursors, tenant="moved", pipeline="orders")
    what = Prune(timedelta(0), sources={"orders": "orders"})
    assert sum(step.deleted for step in prune(split, what, 7) if step.table == "records") == 20
    assert rows(split, STATES) == [("pending", 1)]


def test_the_source_of_an_adopted_table_is_refused_in_a_partition_too(split: Engine) -> None:
    run(split, "CREATE TABLE shops (id bigint PRIMARY KEY, customer text)")
    adopted(split, "shops", source="shops")
    run(split, INTO_A_PARTITION.replace("@source", "others"))
    with pytest.raises(DataError, match="the source shops is a table that was adopted"):
        run(split, INTO_A_PARTITION.replace("@source", "shops"))
