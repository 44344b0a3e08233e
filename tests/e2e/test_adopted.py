"""A table of a shop, plain SQL, and a real worker."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from taskbridge.gate.inspector import Hold
from taskbridge.store import adopt, adoption, unadopt
from tests.deployment import ROOT, Deployment, worker_command
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_what_plain_sql_does_to_an_adopted_table_is_seen_once(deployment: Deployment) -> None:
    def seen() -> list[tuple[object, ...]]:
        return [tuple(row) for row in deployment.rows("SELECT tenant, key, note, deleted FROM seen ORDER BY id")]

    engine = deployment.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (id bigserial, tenant text, key text, note text, deleted bool)")
        connection.exec_driver_sql(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, note text, seen timestamptz)"
        )
    with deployment.worker(TASKBRIDGE_PIPELINES="tests.pipelines_adopted"):
        # A worker that runs before there is such a source learns of it.
        adopt(engine, adoption(engine, "orders", "customer", ["id"]))
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders VALUES (1, 'acme', 'new'), (2, 'bolt', 'new')")
        wait_until(lambda: len(seen()) == 2, "both are seen")
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE orders SET note = 'paid' WHERE id = 1")
            connection.exec_driver_sql("DELETE FROM orders WHERE id = 2")
        wait_until(lambda: len(seen()) == 4, "the changes are seen")
        # What the handler wrote back wakes nobody: it would be seen before this.
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders VALUES (3, 'acme', 'last')")
        wait_until(lambda: ("acme", "3", "last", False) in seen(), "the last one is seen")
    assert len(seen()) == 5
    assert sorted(seen()[:2]) == [("acme", "1", "new", False), ("bolt", "2", "new", False)]
    assert sorted(seen()[2:4]) == [("acme", "1", "paid", False), ("bolt", "2", None, True)]
    assert deployment.rows("SELECT FROM orders WHERE seen IS NULL") == []


@pytest.mark.slow
def test_the_journal_takes_nothing_of_an_adopted_table_whenever_that_was_adopted(deployment: Deployment) -> None:
    engine = deployment.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE invoices (number text PRIMARY KEY, company text)")
    # Somebody forgot TASKBRIDGE_PIPELINES for a worker that runs already.
    with deployment.worker(TASKBRIDGE_PIPELINES=""):
        adopt(engine, adoption(engine, "invoices", "company", ["number"]))
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO invoices VALUES ('1', 'acme')")
        wait_until(lambda: deployment.gate.look("invoices", ["acme"])[0].hold is Hold.ASKED, "it waits")
        assert deployment.rows("SELECT FROM taskbridge.deliveries") == []
        # What is pending when the table is given up is for the shop's handler too.
        unadopt(engine, "invoices")
        deployment.redis.flushdb()
        wait_until(lambda: deployment.gate.look("invoices", ["acme"])[0].hold is Hold.ASKED, "it waits again")
        assert deployment.rows("SELECT FROM taskbridge.deliveries") == []
    assert deployment.rows("SELECT failures FROM taskbridge.sync_cursors") in ([(0,)], [])
    # No such worker starts after that, and the doctor says so.
    environment = deployment.environment(TASKBRIDGE_PIPELINES="")
    command = [sys.executable, "-c", "from taskbridge.cli.main import main; main()", "doctor", "--json"]
    said = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    (told,) = [
        one for one in json.loads(said.stdout)["findings"] if one["check"] == "journal" and one["level"] == "warning"
    ]
    assert told["text"].startswith("a table is or was adopted as 'invoices', and without a handler")
    assert "TASKBRIDGE_PIPELINES" in told["remedy"]
    ended = subprocess.run(
        worker_command("-P", "solo"),
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("taskbridge: a table is or was adopted as 'invoices', and without")
