"""Records that end what handles them, in real workers."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from celery.platforms import EX_FAILURE

from taskbridge import LatencyNeutral
from taskbridge.gate import Keys, State
from taskbridge.store import record, record_invoice
from tests.deployment import ENDS_WITHIN, Deployment
from tests.special_exceptions import LONG, SPECIAL
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PIPELINES = "tests.pipelines_of_failures"


def save(deployment: Deployment, tenant: str, number: str, **document: object) -> None:
    record_invoice(deployment.engine, tenant, number, document)


def save_orders(deployment: Deployment, *whats: str) -> None:
    """Commit for each of `whats` a tenant of this name with an order that does it, and one that is delivered."""
    for what in whats:
        record(deployment.engine, "orders", what, what, {"do": what})
        record(deployment.engine, "orders", what, f"after {what}", {})
        # This process does not declare "orders".
        deployment.gate.notify("orders", what, LatencyNeutral().spacing)


def quarantined(deployment: Deployment) -> dict[str, str]:
    return dict(map(tuple, deployment.rows("SELECT external_id, reason FROM taskbridge.quarantine")))


def delivered(deployment: Deployment) -> list[str]:
    return sorted(number for _, number in deployment.deliveries())


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_a_coroutine_that_exits_ends_no_worker(deployment: Deployment, pool: str) -> None:
    save(deployment, "acme", "1")
    save(deployment, "acme", "2", do="exit")
    save(deployment, "acme", "3", do="cancel")
    save(deployment, "acme", "4")
    with deployment.worker("--pool", pool, TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        deployment.wait_until_idle(30)
        assert worker.process.poll() is None
        log = worker.text()
    assert quarantined(deployment) == {"2": "SystemExit: 3", "3": "CancelledError: "}
    assert sorted(deployment.deliveries()) == [("acme", "1"), ("acme", "4")]
    assert "WorkerLostError" not in log
    assert "does not end a worker: raise an Exception" in log


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "threads"))]
)
def test_no_exception_of_a_handler_is_special_to_celery_or_fills_the_log(deployment: Deployment, pool: str) -> None:
    whats = [*SPECIAL, "long"]
    with deployment.worker("--pool", pool, TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        save_orders(deployment, *whats)
        wait_until(lambda: quarantined(deployment).keys() == {*whats}, "in quarantine", 60)
        wait_until(lambda: delivered(deployment) == sorted(f"after {what}" for what in whats), "the others go on")
        # A message's own run, or one that its slot took besides.
        failed = re.compile(r"run of (?:pipeline orders, tenant|orders for tenant) '(\w+)',? failed")
        wait_until(lambda: {*failed.findall(worker.text())} >= {*whats}, "each failure is in the log")
        assert worker.process.poll() is None
        assert len(worker.text()) < LONG / 100
    for what, reason in quarantined(deployment).items():
        assert reason.startswith(f"{'ValueError' if what == 'long' else what}: ")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
@pytest.mark.parametrize("whats", [["kill"], pytest.param(["kill", "terminate", "hang"], marks=pytest.mark.slow)])
def test_a_record_that_ends_its_process_goes_to_quarantine_and_the_rest_go_on(
    deployment: Deployment, whats: list[str]
) -> None:
    """`hang` ends it too, since the worker has a hard time limit."""
    with deployment.worker("-c", "3", "--time-limit", "2", TASKBRIDGE_PIPELINES=PIPELINES):
        save_orders(deployment, *whats)
        wait_until(lambda: quarantined(deployment).keys() == {*whats}, "in quarantine", 150)
        wait_until(lambda: delivered(deployment) == sorted(f"after {what}" for what in whats), "the others go on")
    for reason in quarantined(deployment).values():
        assert reason.startswith("the previous run did not end: its process died")


def wait_until_a_run_is_on(deployment: Deployment) -> None:
    wait_until(lambda: deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE owner IS NOT NULL"), "a run is on")


def failed_runs(deployment: Deployment) -> list[int]:
    return [row[0] for row in deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors")]


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
def test_a_pool_process_that_alone_is_told_to_end_costs_one_attempt(deployment: Deployment) -> None:
    """As by a hard time limit, or by its handler: nobody told the worker to stop."""
    save(deployment, "acme", "1", sleep=1)
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        wait_until_a_run_is_on(deployment)
        pid = worker.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        deployment.wait_until_idle(30)
    assert deployment.deliveries() == [("acme", "1")]
    assert failed_runs(deployment) == [1]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGQUIT, marks=pytest.mark.slow)], ids=["all its processes", "cold"]
)
def test_a_worker_that_is_told_to_stop_hands_its_batch_over_and_that_costs_no_attempt(
    deployment: Deployment, number: signal.Signals
) -> None:
    save(deployment, "acme", "1", sleep=5)
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        wait_until_a_run_is_on(deployment)
        if number == signal.SIGTERM:
            worker.signal_all(number)
        else:
            os.kill(worker.process.pid, number)
        worker.process.wait(timeout=ENDS_WITHIN)
    (status,) = deployment.gate.look("invoices", ["acme"])
    assert status.state is State.QUEUED
    assert failed_runs(deployment) == [0]
    assert deployment.redis.hget(Keys().runner("invoices", "acme"), "died") is None


NUMBERS = [f"{number:03}" for number in range(20)]


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
@pytest.mark.parametrize("deployment", [{"run_budget": 60.0}], indirect=True)
def test_a_warm_shutdown_ends_the_batch_in_hand_and_hands_the_tenant_over(deployment: Deployment, pool: str) -> None:
    # given a run that has time for all of its tenant's batches
    deployment.save("acme", *NUMBERS, notify=False)
    with deployment.worker("--pool", pool, handler_seconds=0.5, batch_size=2) as stopping:
        deployment.notify_event.delay("acme")
        wait_until(lambda: len(deployment.delivered("acme")) == 2, "in the middle of its second batch")
        # when the worker is told to stop
        stopping.stop()
    # then each batch in hand took effect, and the next run is published. (Until Celery's loop has stopped, which takes
    # two seconds in some pools, the worker may still take the continuation and do a batch of it.)
    batches = len(deployment.delivered("acme"))
    assert 2 <= batches < len(NUMBERS) / 2
    assert len(deployment.deliveries()) == 2 * batches
    (status,) = deployment.gate.look("invoices", ["acme"])
    assert status.state is State.QUEUED
    with deployment.worker(batch_size=20):
        deployment.wait_until_idle()
    assert sorted(deployment.deliveries()) == [("acme", number) for number in NUMBERS]


def test_a_worker_that_cannot_read_its_processes_answers_ends_by_itself(deployment: Deployment) -> None:
    with deployment.worker("-c", "1", TASKBRIDGE_PIPELINES="tests.faults.garbled") as failing:
        deployment.save("acme", "1")
        wait_until(lambda: "Unrecoverable error" in failing.text(), "its main process fails")
        wait_until(lambda: failing.process.poll() is not None, "it ends")
        assert failing.process.poll() == EX_FAILURE
