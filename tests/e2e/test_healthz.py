"""`/healthz` of a worker turns red when one of its threads, or all of it, stands still, and not for its servers."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.deployment import Deployment, Worker
from tests.scraping import free_ports
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


def probe(port: int, seconds: float = 20) -> tuple[int, Any]:
    """Return status and content as a probe gets them; status 0: no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=seconds) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def stuck(port: int) -> list[str]:
    """Return the threads that turn it red."""
    status, content = probe(port)
    return [] if status != 503 else [name for name, age in content["seconds_since_progress"].items() if age > 2]


@contextmanager
def freezing(deployment: Deployment, port: int, *options: str, thread: str = "") -> Iterator[Worker]:
    """Run a worker whose `thread` can be frozen."""
    variables: dict[str, Any] = {"TASKBRIDGE_PIPELINES": "tests.pipelines_that_freeze", "TEST_FREEZES": thread}
    with deployment.worker(*options, TASKBRIDGE_METRICS_PORT=str(port), **variables) as worker:
        wait_until(lambda: is_green(port), "green")
        yield worker


def is_green(port: int) -> bool:
    return probe(port)[0] == 200


@pytest.mark.parametrize("thread", ["taskbridge-ticker", "taskbridge-poller"])
def test_a_thread_that_stands_still_turns_it_red(deployment: Deployment, thread: str) -> None:
    port = free_ports()
    with freezing(deployment, port, "-P", "threads", thread=thread):
        deployment.redis.set("test-freezes", 1)
        wait_until(lambda: stuck(port) == [thread], "red because of this thread alone")
        deployment.redis.delete("test-freezes")
        wait_until(lambda: is_green(port), "green again")


def test_a_frozen_worker_gives_no_answer_and_one_whose_servers_refuse_is_green(deployment: Deployment) -> None:
    port = free_ports()
    with freezing(deployment, port) as worker:
        # when both servers refuse what threads ask for
        deployment.execute("ALTER TABLE taskbridge.tails RENAME TO away")
        with deployment.redis.pipeline() as pipe:
            pipe.delete("sync:owner")
            pipe.lpush("sync:owner", "of another type")
            pipe.execute()
        wait_until(lambda: "owner: " in worker.text() and "polling pauses" in worker.text(), "threads fail")
        time.sleep(3)
        wait_until(lambda: is_green(port), "green, after longer than a thread may stand still", 10)
        # and when its main process stands still
        worker.process.send_signal(signal.SIGSTOP)
        assert probe(port, seconds=1)[0] == 0
        worker.process.send_signal(signal.SIGCONT)
        wait_until(lambda: is_green(port), "green again")
