"""What a worker serves on its port is what happened: compared with the ledger, in every pool, and with servers away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from taskbridge.common.run_key import RunKey
from taskbridge.gate import Answer
from taskbridge.observe.metrics import Metrics
from taskbridge.store import record_invoice
from taskbridge.testing.clock import inject_clock
from tests.deployment import Deployment, Worker
from tests.inline import Inline
from tests.runs import begin
from tests.scraping import SAMPLES, free_ports, reachable, samples, scrape
from tests.waiting import wait_until

NUMBERS = [f"{number:03}" for number in range(40)]


@contextmanager
def serving(deployment: Deployment, *options: str, **extra: Any) -> Iterator[tuple[Worker, int]]:
    """Run a worker that serves its metrics on the port that comes with it."""
    port = free_ports()
    with deployment.worker(*options, TASKBRIDGE_METRICS_PORT=str(port), **extra) as worker:
        wait_until(lambda: reachable(port), "the port is open")
        yield worker, port


# The poller may find a record before its event comes, and its reminder counts as one.
@pytest.mark.e2e
@pytest.mark.parametrize("deployment", [{"tail_interval": 60.0, "base_interval": 600.0}], indirect=True)
def test_the_figures_of_a_burst_are_those_of_the_ledger(deployment: Deployment) -> None:
    with serving(deployment) as (_, port):
        # given a burst, and a tenant with one event
        deployment.save("acme", *NUMBERS)
        deployment.save("other", "1")
        deployment.wait_until_idle()
        found = scrape(port)
    # then the figures are those of the cursors and of the handler's own ledger
    (cursors,) = deployment.rows(
        "SELECT sum(events) AS events, sum(runs) AS runs, sum(sweeps) AS sweeps FROM taskbridge.sync_cursors"
    )
    batches = deployment.delivered("acme") + deployment.delivered("other")
    assert found["taskbridge_events_total"] == cursors.events == len(NUMBERS) + 1
    assert found["taskbridge_bursts_total"] == 2
    assert found["taskbridge_absorbed_events_total"] == len(NUMBERS) - 1
    assert found["taskbridge_runs_total"] == cursors.runs
    # On a slow machine a run may find no records, and advance its cursor without a call of the handler.
    assert found["taskbridge_sweeps_total"] == cursors.sweeps >= len(batches)
    assert found["taskbridge_records_total"] == len(deployment.deliveries()) == len(NUMBERS) + 1
    assert found["taskbridge_first_event_seconds_count"] == 2
    assert found["taskbridge_first_event_seconds_bucket 10.0"] == 2
    assert (
        found["taskbridge_first_event_seconds_sum"]
        == sum(one.first_event_ms for one in deployment.rows("SELECT first_event_ms FROM taskbridge.sync_cursors"))
        / 1000
    )
    # and the ticker has fired at least the sweeps that close both bursts
    assert found["taskbridge_tick_lateness_seconds_count"] >= 1
    for at_rest in ("failed_runs_total", "failing_tenants", "pending_records", "quarantined_records", "runners"):
        assert found[f"taskbridge_{at_rest}"] == 0
    assert found["taskbridge_up redis"] == found["taskbridge_up postgres"] == 1
    assert (found["taskbridge_slots busy"], found["taskbridge_slots idle"]) == (0, 2)
    assert {name.partition(" ")[0] for name in found} == SAMPLES


def test_a_killed_runner_and_lost_messages_are_told_apart(deployment: Deployment) -> None:
    inline = Inline(deployment)
    gate = inject_clock(inline.runtime)
    deployment.save("killed", "1")
    message = inline.message()
    assert message is not None
    begin(gate, RunKey(*message))
    deployment.save("lost", "1")
    assert deployment.redis.delete("taskbridge.first") == 1
    gate.us += 6_000_000
    assert gate.expire("invoices", ["killed", "lost"]) == [Answer.REISSUED, Answer.REPUBLISHED]
    deployment.redis.zadd("sync:fair-queue", {"invoices:waiting": 1})
    found = samples(Metrics(inline.runtime).text())
    assert found["taskbridge_waiting_runs fair"] == 1
    assert (found["taskbridge_runs_replaced_total"], found["taskbridge_messages_republished_total"]) == (1, 1)


@pytest.mark.e2e
def test_busy_slots_and_runs_that_wait_are_counted(deployment: Deployment) -> None:
    with serving(deployment, "-c", "1", handler_seconds=2.0) as (_, port):
        for tenant in ("a", "b", "c"):
            deployment.save(tenant, "1")
        found = wait_until(lambda: seen if (seen := scrape(port))["taskbridge_slots busy"] else {}, "a slot is busy")
        assert found["taskbridge_slots idle"] == 0
        assert found["taskbridge_waiting_runs first"] >= 1
        assert found["taskbridge_waiting_runs next"] == 0


@pytest.mark.e2e
def test_failures_a_backlog_and_orphaned_tenants_are_seen_and_a_server_that_is_away_costs_its_own_metrics(
    deployment: Deployment,
) -> None:
    # given a tenant whose producer died before its event, and one with a record that cannot be handled
    deployment.save("orphan", "1", notify=False)
    with serving(deployment, "-P", "threads") as (worker, port):
        wait_until(lambda: deployment.deliveries() == [("orphan", "1")], "found in Postgres")
        record_invoice(deployment.engine, "acme", "bad", {"fail": True})
        deployment.notify_event.delay("acme")
        wait_until(lambda: len(deployment.delivered("acme")) >= 2, "tried again")
        found = scrape(port)
        (cursor,) = deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors WHERE tenant = 'acme'")
        assert 1 <= found["taskbridge_failed_runs_total"] <= cursor.failed_runs
        assert found["taskbridge_failing_tenants"] == 1
        assert found["taskbridge_pending_records"] == 1
        assert 0 < found["taskbridge_oldest_pending_seconds"] < 60
        assert found["taskbridge_runners"] >= 1
        assert found["taskbridge_orphaned_tenants_total"] == 1
        # when Postgres has no schema any more
        deployment.execute("ALTER TABLE taskbridge.sync_cursors RENAME TO away")
        found = scrape(port)
        assert (found["taskbridge_up postgres"], found["taskbridge_up redis"]) == (0, 1)
        assert "taskbridge_events_total" not in found
        # and then holds every reader up, longer than anyone waits
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE taskbridge.away RENAME TO sync_cursors")
            assert scrape(port)["taskbridge_up postgres"] == 0
        # then the worker goes on
        deployment.save("other", "1")
        wait_until(lambda: len(deployment.deliveries()) == 2, "delivered")
        assert scrape(port)["taskbridge_up postgres"] == 1
        assert worker.process.poll() is None
