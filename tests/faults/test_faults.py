"""After each fault the tenant goes on within its bound, and every committed invoice is delivered once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate import State
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify, notify_many
from taskbridge.store import record, record_invoice
from taskbridge.worker.poller import Poller
from taskbridge.worker.ticker import fire_due
from tests.deployment import Deployment
from tests.waiting import TIME_FACTOR, wait_until

pytestmark = pytest.mark.e2e

NUMBERS = [f"{number:03}" for number in range(20)]
RUNNER_TTL = 5.0


def delivered_once(deployment: Deployment, tenant: str = "acme") -> bool:
    return sorted(deployment.deliveries()) == [(tenant, number) for number in NUMBERS]


def test_kill_9_of_the_only_worker_in_mid_batch(deployment: Deployment) -> None:
    # given a worker in the middle of its second batch
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker(handler_seconds=0.4, batch_size=5) as first:
        deployment.notify_event.delay("acme")
        wait_until(lambda: len(deployment.delivered("acme")) == 2, "second batch delivered")
        first.kill()
    half = len(deployment.deliveries())
    assert 0 < half < len(NUMBERS)
    # when another is started
    with deployment.worker(batch_size=5):
        started = time.monotonic()
        wait_until(lambda: len(deployment.deliveries()) > half, "the tenant goes on", RUNNER_TTL + 2)
        resumed_after = time.monotonic() - started
        deployment.wait_until_idle()
    # then the tenant goes on in time, where it stood
    assert resumed_after < (RUNNER_TTL + 2) * TIME_FACTOR
    assert delivered_once(deployment)
    assert deployment.delivered("acme")[2] == NUMBERS[5:10], "the batch that was lost is delivered again"


@pytest.mark.slow
def test_kill_9_of_a_worker_that_has_begun_runs_which_it_took_from_the_queue(deployment: Deployment) -> None:
    # given many first events that wait, and one among them whose handler hangs
    tenants = [f"tenant-{number:02}" for number in range(60)]
    hanging = tenants[40]
    for tenant in tenants:
        record_invoice(deployment.engine, tenant, "1", {"seconds": 60 if tenant == hanging else 0})
    notify_many(deployment.app, tenants)
    with deployment.worker("-c", "1") as first:
        wait_until(lambda: deployment.delivered(hanging), "it hangs")
        first.kill()
    # Of those that had begun with it some may have been given back by then.
    left = {one.state for one in deployment.gate.look("invoices", tenants)}
    assert State.RUNNING in left
    # when another worker is started
    record_invoice(deployment.engine, hanging, "1", {"seconds": 0})
    with deployment.worker():
        deployment.wait_until_idle(RUNNER_TTL + 2)
    # then they all come again, once each
    assert sorted(deployment.deliveries()) == [(tenant, "1") for tenant in tenants]


def test_a_worker_that_was_frozen_past_its_deadline_changes_nothing(deployment: Deployment) -> None:
    # given a run that freezes in mid-batch
    with deployment.worker(handler_seconds=0.5) as frozen:
        deployment.save("acme", *NUMBERS)
        wait_until(lambda: deployment.delivered("acme"), "first batch delivered")
        frozen.signal_all(signal.SIGSTOP)
        # when another worker takes the tenant over and the first one wakes
        with deployment.worker():
            wait_until(lambda: len(deployment.deliveries()) == len(NUMBERS), "taken over", RUNNER_TTL + 2)
            frozen.signal_all(signal.SIGCONT)
            wait_until(lambda: "replaced by another run" in frozen.text(), "the frozen run notices")
            deployment.wait_until_idle()
        # then nothing is delivered twice
        assert delivered_once(deployment)


@pytest.mark.slow
def test_a_worker_that_was_frozen_in_its_handler_goes_through_no_more_of_its_batch(
    deployment: Deployment, tmp_path: Path
) -> None:
    # given a handler that calls somebody for each record, and freezes behind the first call
    calls = tmp_path / "calls"
    module = "tests.faults.calling"
    for number in NUMBERS:
        record(deployment.engine, "calls", "acme", number, {"version": 1})
    with deployment.worker(TASKBRIDGE_PIPELINES=module, CALLS=str(calls)) as frozen:
        wait_until(lambda: calls.exists() and calls.read_text(), "first call")
        frozen.signal_all(signal.SIGSTOP)
        before = calls.read_text().splitlines()
        # when its records change, another worker handles them, and the first one wakes
        for number in NUMBERS:
            record(deployment.engine, "calls", "acme", number, {"version": 2})
        with deployment.worker(TASKBRIDGE_PIPELINES=module, CALLS=str(calls)):
            newest = {f"{number} 2" for number in NUMBERS}
            wait_until(lambda: newest <= set(calls.read_text().splitlines()), "taken over", 30)
            after = len(calls.read_text().splitlines())
            frozen.signal_all(signal.SIGCONT)
            wait_until(lambda: "replaced by another run" in frozen.text(), "the frozen run notices")
            deployment.wait_until_idle()
    # then it made at most the call that was under way
    assert len(before) < len(NUMBERS)
    assert len(calls.read_text().splitlines()) - after <= 1


def test_all_of_redis_is_lost_in_mid_burst(deployment: Deployment) -> None:
    with deployment.worker(handler_seconds=0.05):
        for at, number in enumerate(NUMBERS):
            deployment.save("acme", number)
            if at == len(NUMBERS) // 2:
                deployment.redis.flushdb()
                deployment.redis.script_flush()
        deployment.wait_until_idle(35)
        assert delivered_once(deployment)


def test_a_lock_on_the_log_ends_no_round_for_good(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    poller = Poller(runtime)
    poller.poll_pages()
    deployment.save("acme", "1", notify=False)
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE taskbridge.records")
        poller.poll_pages()
        poller.reconcile_pages()
    assert deployment.gate.active("invoices") == []
    assert {(one.extra, one.reconcile_extra) for one in poller.states.values()} == {(0.0, 0.0)}, (
        "a lock takes as long however long one waits, so the next try comes no later"
    )
    poller.states.clear()
    poller.poll_pages()
    assert deployment.gate.active("invoices") == ["acme"]


def test_an_error_in_one_pipelines_tick_leaves_the_others_alone(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    pipelines = Pipelines()
    for name in ("alpha", "invoices", "zebra"):
        pipelines.declare(Pipeline(name, print, LatencyNeutral(), 500))
    runtime.pipelines = pipelines
    # given deadlines that passed long ago, and in one pipeline something that is none
    for name in ("alpha", "zebra"):
        notify(deployment.app, "acme", name)
        deployment.redis.zadd(runtime.keys.due(name), {"acme": 1})
    deployment.redis.set(runtime.keys.due("invoices"), "no sorted set")
    fire_due(runtime)
    for name in ("alpha", "zebra"):
        (runner,) = runtime.gate.look(name, ["acme"])
        assert runner.deadline_ms is not None
        assert runner.deadline_ms > 1, "its message was published again"


def test_a_run_message_is_lost(deployment: Deployment) -> None:
    # given a message that vanishes from the broker
    deployment.save("acme", *NUMBERS)
    assert deployment.redis.delete("taskbridge.first") == 1
    # then it is published again
    with deployment.worker():
        wait_until(lambda: delivered_once(deployment), "published again", 5 + 2)


def test_a_run_message_is_doubled(deployment: Deployment) -> None:
    deployment.save("acme", *NUMBERS)
    (message,) = deployment.redis.lrange("taskbridge.first", 0, -1)
    deployment.redis.lpush("taskbridge.first", message, message)
    with deployment.worker(handler_seconds=0.3) as worker:
        deployment.wait_until_idle()
        assert delivered_once(deployment)
        assert deployment.delivered("acme") == [NUMBERS]
        wait_until(lambda: worker.text().count("late or doubled message") == 2, "both doubles refused")


def test_postgres_drops_every_connection_in_mid_batch(deployment: Deployment) -> None:
    with deployment.worker(handler_seconds=0.3):
        deployment.save("acme", *NUMBERS)
        wait_until(lambda: deployment.delivered("acme"), "first batch delivered")
        deployment.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        wait_until(lambda: delivered_once(deployment), "reconnected and tried again", 10)
        deployment.wait_until_idle()
        assert delivered_once(deployment)


def test_a_handler_that_raises_is_tried_again_and_events_do_not_hurry_it(deployment: Deployment) -> None:
    # given an invoice that its handler cannot take
    with deployment.worker() as worker:
        deployment.save("acme", "good", notify=False)
        record_invoice(deployment.engine, "acme", "bad", {"fail": True})
        deployment.notify_event.delay("acme")
        wait_until(lambda: deployment.gate.look("invoices", ["acme"])[0].held, "held after the failure")
        # when events come
        for _ in range(20):
            assert deployment.notify_event.delay("acme").get() == "absorbed"
        # then the tenant waits for its back-off, the error is on record, and nothing is delivered by half
        assert len(deployment.delivered("acme")) == 1
        assert deployment.deliveries() == []
        wait_until(
            lambda: deployment.rows(
                "SELECT failures FROM taskbridge.sync_cursors WHERE last_error LIKE '%%bad cannot be handled'"
            ),
            "the error on record",
        )
        # and when the invoice is corrected, all is delivered
        record_invoice(deployment.engine, "acme", "bad", {"fail": False})
        wait_until(lambda: len(deployment.deliveries()) == 2, "tried again")
        deployment.wait_until_idle()
        assert sorted(deployment.deliveries()) == [("acme", "bad"), ("acme", "good")]
        assert "bad cannot be handled" in worker.text()


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_a_handler_longer_than_the_runner_ttl_keeps_its_tenant(deployment: Deployment, pool: str) -> None:
    # The heartbeat moves the deadline on while the handler works. All is saved before a worker is there: its poller would
    # find what is saved so far.
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker("-P", pool, handler_seconds=2.5) as worker:
        deployment.notify_event.delay("acme")
        wait_until(lambda: delivered_once(deployment), "delivered")
        deployment.wait_until_idle()
        assert deployment.delivered("acme") == [NUMBERS]
        assert "replaced by another run" not in worker.text()
