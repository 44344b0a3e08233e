"""The broker loses connections silently, or refuses commands for a while: workers stay alive and resume."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.gate import State
from taskbridge.store import record_invoice
from taskbridge.testing.servers import open_directory
from tests.deployment import ENDS_WITHIN, WORKER_STARTS_WITHIN, Deployment, Worker
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until
from verification.torture.servers import RedisHere

pytestmark = pytest.mark.e2e

RESUMES_WITHIN = 10.0


def answers(deployment: Deployment) -> bool:
    return bool(deployment.app.control.inspect(timeout=1.0).ping())


@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_a_worker_replaces_connections_that_were_lost_silently(deployment: Deployment, pool: str) -> None:
    hole = BlackHole(deployment.settings.redis_url)
    with deployment.worker("-P", pool, TASKBRIDGE_REDIS_URL=hole.url) as worker:
        deployment.save("before", "1")
        wait_until(lambda: len(deployment.deliveries()) == 1, "delivered")
        hole.lose_connections()
        deployment.save("after", "1")
        wait_until(lambda: len(deployment.deliveries()) == 2, "work resumes", 3 * RESUMES_WITHIN)
        wait_until(lambda: answers(deployment), "it answers", RESUMES_WITHIN)
        assert worker.text().count("silently lost") == 1, worker.text()
        deployment.wait_until_idle()
    hole.close()


def test_connections_that_are_lost_while_a_worker_stops_are_replaced_too(deployment: Deployment) -> None:
    hole = BlackHole(deployment.settings.redis_url)
    pipelines = "tests.faults.hasty"
    with deployment.worker(
        "-c", "1", handler_seconds=5.0, TASKBRIDGE_REDIS_URL=hole.url, TASKBRIDGE_PIPELINES=pipelines
    ) as worker:
        deployment.save("acme", "1")
        wait_until(
            lambda: deployment.gate.look("invoices", ["acme"])[0].state is State.RUNNING, "its handler is at work"
        )
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Warm shutdown" in worker.text(), "it stops")
        time.sleep(2.0)  # the watch looks every second; it is the first thing to be told to stop
        hole.lose_connections()
        # What it says when it ends is answered by nobody.
        wait_until(lambda: worker.process.poll() is not None, "it ends", ENDS_WITHIN)
        assert worker.text().count("silently lost") == 1, worker.text()
    hole.close()


@pytest.fixture
def server() -> Iterator[RedisHere]:
    """A Redis of the test's own."""
    with open_directory() as folder:
        own = RedisHere(folder)
        own.start()
        yield own
        own.close()


@pytest.fixture
def apart(engine: Engine, server: RedisHere, tmp_path: Path) -> Iterator[Deployment]:
    own = Deployment(engine, server.url, tmp_path)
    yield own
    own.close()


@contextmanager
def too_few_replicas(server: RedisHere) -> Iterator[None]:
    server.client.config_set("min-replicas-to-write", 1)
    yield
    server.client.config_set("min-replicas-to-write", 0)


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


@contextmanager
def memory_full(server: RedisHere) -> Iterator[None]:
    server.client.config_set("maxmemory", 1)
    yield
    server.client.config_set("maxmemory", 0)


@contextmanager
def replica(server: RedisHere) -> Iterator[None]:
    server.client.replicaof("127.0.0.1", "1")
    yield
    server.client.replicaof("NO", "ONE")


@contextmanager
def stale_replica(server: RedisHere) -> Iterator[None]:
    server.client.config_set("replica-serve-stale-data", "no")
    server.client.replicaof("127.0.0.1", "1")
    yield
    server.client.replicaof("NO", "ONE")


@contextmanager
def script_running(server: RedisHere) -> Iterator[None]:
    """Redis answers BUSY to everything."""
    server.client.config_set("lua-time-limit", 10)
    busy = redis.Redis.from_url(server.url, socket_timeout=0.1, retry=None)
    with suppress(redis.TimeoutError):
        busy.eval("while true do end", 0)
    yield
    server.client.script_kill()

    def answers() -> bool:
        with suppress(redis.ResponseError):
            return bool(server.client.ping())
        return False

    # The script ends some time after the reply.
    wait_until(answers, "Redis answers again")
    busy.close()


REFUSALS: dict[str, Callable[[RedisHere], Any]] = {
    one.__name__: one for one in (too_few_replicas, disk_lost, memory_full, replica, stale_replica, script_running)
}


@pytest.mark.parametrize("names", [["disk_lost", "script_running"], pytest.param([*REFUSALS], marks=pytest.mark.slow)])
def test_a_worker_outlives_a_redis_that_refuses_commands(
    apart: Deployment, server: RedisHere, names: list[str]
) -> None:
    expected = 0
    with apart.worker(handler_seconds=0.3) as worker:
        for name in names:
            refusing = REFUSALS[name]
            # given a run that is under way
            apart.save(f"{name}-a", "1")
            wait_until(lambda: apart.delivered(f"{name}-a"), "it runs")  # noqa: B023 - at once
            # when Redis refuses what the worker and a producer ask
            with refusing(server):
                record_invoice(apart.engine, f"{name}-b", "1", {})
                with pytest.raises(Unavailable):
                    apart.notify_event.delay(f"{name}-b")
                time.sleep(1.5)
                assert worker.process.poll() is None, f"{name}\n{worker.text()}"
            # then the worker resumes by itself
            apart.save(f"{name}-c", "1")
            expected += 3
            wait_until(lambda: len(apart.deliveries()) == expected, name, RESUMES_WITHIN)  # noqa: B023 - at once
        # and says when it began to wait, and when it went on
        begun = worker.text().count("the broker refuses commands")
        assert begun >= max(
            1, len(names) - 2
        )  # a full Redis lets workers take messages, and a script may end before one asks
        wait_until(lambda: worker.text().count("the broker accepts commands again") == begun, "as many ends")
    assert len(set(apart.deliveries())) == len(apart.deliveries()) == expected


@pytest.mark.parametrize("refusing", [pytest.param(too_few_replicas, marks=pytest.mark.slow), disk_lost])
def test_a_worker_starts_and_stops_while_redis_refuses_commands(
    apart: Deployment, server: RedisHere, refusing: Callable[[RedisHere], Any]
) -> None:
    record_invoice(apart.engine, "acme", "1", {})
    log = apart.logs / "starting.log"
    with refusing(server):
        worker = Worker(apart.environment(), log, ["-n", "starting@test", "-c", "1"])
        refused = re.compile("NOREPLICAS|MISCONF")
        wait_until(lambda: refused.search(worker.text()) or worker.process.poll() is not None, "it is refused")
        time.sleep(1.5)
        assert worker.process.poll() is None, worker.text()
    try:
        wait_until(lambda: len(apart.deliveries()) == 1, "delivered", RESUMES_WITHIN + WORKER_STARTS_WITHIN)
        told = worker.text().count("the broker refuses commands")
        with too_few_replicas(server):
            wait_until(lambda: worker.text().count("the broker refuses commands") > told, "it is refused again")
            worker.process.terminate()
            worker.process.wait(ENDS_WITHIN)
    finally:
        worker.stop()
