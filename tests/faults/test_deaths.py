"""Records that end what handles them, in real workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from taskbridge.store import record_invoice
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PIPELINES = "tests.pipelines_of_failures"


def save(deployment: Deployment, tenant: str, number: str, **document: object) -> None:
    record_invoice(deployment.engine, tenant, number, document)


def quarantined(deployment: Deployment) -> dict[str, str]:
    return dict(map(tuple, deployment.rows("SELECT external_id, reason FROM taskbridge.quarantine")))


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
    assert "ends no worker: raise an Exception" in log


@pytest.mark.parametrize("deployment", [{"runner_ttl": 1.0}], indirect=True)
def test_a_record_that_kills_its_process_goes_to_quarantine_and_the_rest_go_on(deployment: Deployment) -> None:
    save(deployment, "acme", "1", do="kill")
    save(deployment, "acme", "2")
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES):
        deployment.notify_event.delay("acme")
        wait_until(lambda: quarantined(deployment), "in quarantine", 60)
        deployment.wait_until_idle(30)
    ((number, reason),) = quarantined(deployment).items()
    assert number == "1"
    assert reason.startswith("the run before this one did not end: its process died")
    assert deployment.deliveries() == [("acme", "2")]


def test_a_pool_process_that_is_told_to_end_hands_its_batch_over_at_once(deployment: Deployment) -> None:
    save(deployment, "acme", "1", sleep=1)
    with deployment.worker(TASKBRIDGE_PIPELINES=PIPELINES) as worker:
        deployment.notify_event.delay("acme")
        wait_until(
            lambda: deployment.rows("SELECT FROM taskbridge.sync_cursors WHERE owner IS NOT NULL"), "a run is on"
        )
        pid = worker.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)
        deployment.wait_until_idle()
    assert deployment.deliveries() == [("acme", "1")]
    assert deployment.rows("SELECT failed_runs FROM taskbridge.sync_cursors") == [(0,)]
    assert deployment.redis.hget("sync:counts:invoices", "replaced") is None
