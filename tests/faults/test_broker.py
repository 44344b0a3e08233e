"""The broker loses connections silently, or refuses commands for a while: workers stay alive and resume."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store import record_invoice
from tests.deployment import ENDS_WITHIN, WORKER_STARTS_WITHIN, Deployment, Worker
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until
from verification.torture.servers import RedisHere

pytestmark = pytest.mark.e2e

RESUMES_WITHIN = 10.0


def answers(deployment: Deployment) -> bool:
    return bool(deployment.app.control.inspect(timeout=1.0).ping())


def test_a_worker_replaces_connections_that_were_lost_silently(deployment: Deployment) -> None:
    hole = BlackHole(deployment.settings.redis_url)
    with deployment.worker(TASKBRIDGE_REDIS_URL=hole.url) as worker:
        deployment.save("before", "1")
        wait_until(lambda: len(deployment.deliveries()) == 1, "delivered")
        hole.lose_connections()
        deployment.save("after", "1")
        wait_until(lambda: len(deployment.deliveries()) == 2, "work resumes", 3 * RESUMES_WITHIN)
        wait_until(lambda: answers(deployment), "it answers", RESUMES_WITHIN)
        assert worker.text().count("silently lost") == 1, worker.text()
        deployment.wait_until_idle()
    hole.close()


@pytest.fixture
def apart(engine: Engine, server: RedisHere, tmp_path: Path) -> Iterator[Deployment]:
    own = Deployment(engine, server.url, tmp_path)
    yield own
    own.close()


@contextmanager
def disk_lost(server: RedisHere) -> Iterator[None]:
    """No snapshot can be written, so Redis answers MISCONF, even to PING."""
    shutil.rmtree(str(server.client.config_get("dir")["dir"]))
    server.client.config_set("save", "1 1")
    server.client.set("changed", 1)

    def failed() -> bool:
        return bool(server.client.info("persistence")["rdb_last_bgsave_status"] == "err")

    wait_until(failed, "the snapshot fails")
    yield
    server.client.config_set("stop-writes-on-bgsave-error", "no")


def test_a_worker_starts_works_and_stops_although_redis_refuses_commands_now_and_then(
    apart: Deployment, server: RedisHere
) -> None:
    def refusals() -> int:
        return worker.text().count("the broker refuses commands")

    record_invoice(apart.engine, "acme", "1", {})
    with disk_lost(server):
        environment = apart.environment(TEST_HANDLER_SECONDS="0.3")
        worker = Worker(environment, apart.logs / "starting.log", ["-n", "starting@test", "-c", "1"])
        wait_until(lambda: "MISCONF" in worker.text() or worker.process.poll() is not None, "it is refused")
        time.sleep(1.5)
        assert worker.process.poll() is None, worker.text()
    try:
        wait_until(lambda: len(apart.deliveries()) == 1, "delivered", RESUMES_WITHIN + WORKER_STARTS_WITHIN)
        # given a run that is under way
        apart.save("running", "1")
        wait_until(lambda: apart.delivered("running"), "it runs")
        # when Redis refuses what the worker and a producer ask
        server.client.config_set("min-replicas-to-write", 1)
        record_invoice(apart.engine, "found", "1", {})
        with pytest.raises(Unavailable):
            apart.notify_event.delay("found")
        time.sleep(1.5)
        assert worker.process.poll() is None, worker.text()
        server.client.config_set("min-replicas-to-write", 0)
        # then the worker resumes by itself, and says so
        apart.save("after", "1")
        wait_until(lambda: len(apart.deliveries()) == 4, "it resumes", RESUMES_WITHIN)
        wait_until(lambda: worker.text().count("the broker accepts commands again") == refusals(), "as many ends")
        # and when it is told to stop meanwhile, it does
        told = refusals()
        server.client.config_set("min-replicas-to-write", 1)
        wait_until(lambda: refusals() > told, "it is refused again")
        worker.process.terminate()
        worker.process.wait(ENDS_WITHIN)
    finally:
        worker.stop()
        server.client.config_set("min-replicas-to-write", 0)
    assert len(set(apart.deliveries())) == len(apart.deliveries()) == 4
