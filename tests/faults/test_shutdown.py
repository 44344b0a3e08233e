"""A worker that is told to stop ends the batch in hand and hands its tenant over."""

from __future__ import annotations

import pytest
from celery.platforms import EX_FAILURE

from taskbridge.gate import State
from taskbridge.integration.failed_worker import ENDS_WITHIN
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

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
        wait_until(lambda: failing.process.poll() is not None, "it ends", ENDS_WITHIN + 10)
        assert failing.process.poll() == EX_FAILURE
