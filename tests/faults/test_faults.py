"""After each fault the tenant goes on within its bound, and every committed invoice is delivered once."""

from __future__ import annotations

import signal

import pytest

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify
from taskbridge.worker.poller import Poller
from taskbridge.worker.ticker import fire_due
from tests.deployment import Deployment
from tests.waiting import wait_until

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
        wait_until(lambda: len(deployment.deliveries()) > half, "the tenant goes on", 3 * RUNNER_TTL)
        deployment.wait_until_idle()
    # then the tenant goes on where it stood
    assert delivered_once(deployment)
    assert deployment.delivered("acme")[2] == NUMBERS[5:10], "the batch that was lost is delivered again"


def test_a_worker_that_was_frozen_past_its_deadline_changes_nothing(deployment: Deployment) -> None:
    # given a run that freezes in mid-batch
    with deployment.worker(handler_seconds=0.5) as frozen:
        deployment.save("acme", *NUMBERS)
        wait_until(lambda: deployment.delivered("acme"), "first batch delivered")
        frozen.signal_all(signal.SIGSTOP)
        # when another worker takes the tenant over and the first one wakes
        with deployment.worker():
            wait_until(lambda: len(deployment.deliveries()) == len(NUMBERS), "taken over", 3 * RUNNER_TTL)
            frozen.signal_all(signal.SIGCONT)
            wait_until(lambda: "replaced by another run" in frozen.text(), "the frozen run notices")
            deployment.wait_until_idle()
        # then nothing is delivered twice
        assert delivered_once(deployment)


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
        wait_until(lambda: delivered_once(deployment), "published again", 3 * RUNNER_TTL)


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
        wait_until(lambda: delivered_once(deployment), "reconnected and tried again", 20)
        deployment.wait_until_idle()
        assert delivered_once(deployment)


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_a_handler_longer_than_the_runner_ttl_keeps_its_tenant(deployment: Deployment, pool: str) -> None:
    # The heartbeat moves the deadline on while the handler works. All is saved before a worker is there: its poller
    # would find what is saved so far.
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker("-P", pool, handler_seconds=2.5) as worker:
        deployment.notify_event.delay("acme")
        wait_until(lambda: delivered_once(deployment), "delivered")
        deployment.wait_until_idle()
        assert deployment.delivered("acme") == [NUMBERS]
        assert "replaced by another run" not in worker.text()
