"""What operators look with: Celery's inspect and Flower's API, against an ordinary worker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from itertools import islice
from typing import Any

import pytest

from tests.deployment import ROOT, Deployment, Worker, worker_command
from tests.waiting import TIME_FACTOR, wait_until

pytestmark = pytest.mark.e2e

TASKS = [
    "taskbridge.notify_event",
    "taskbridge.record_event",
    "taskbridge.run",
]


@pytest.mark.slow
def test_flower_lists_the_workers_and_the_runs_with_their_tenant(deployment: Deployment) -> None:
    pytest.importorskip("flower")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = deployment.environment(FLOWER_UNAUTHENTICATED_API="true")
    options = ["flower", "--address=127.0.0.1", f"--port={port}"]
    with (deployment.logs / "flower.log").open("wb") as log, deployment.worker():
        flower = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "taskbridge", *options],
            env=environment,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:

            def api(path: str) -> Any:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=5) as answer:
                        return json.load(answer)
                except OSError:
                    return None

            workers = wait_until(lambda: api("workers?refresh=1"), "Flower lists a worker", 30)
            (worker,) = workers.values()
            assert worker["registered"] == TASKS
            assert sorted(queue["name"] for queue in worker["active_queues"]) == ["taskbridge.first", "taskbridge.next"]
            deployment.save("Müller & Söhne", "1")
            tasks = wait_until(lambda: api("tasks"), "Flower lists the run")
            assert {task["name"] for task in tasks.values()} == {"taskbridge.run"}
            assert all("Müller & Söhne" in task["args"] for task in tasks.values())
        finally:
            flower.terminate()
            flower.wait(timeout=10)


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"TASKBRIDGE_PIPELINES": "tests.unit.broken_pipelines"}, "does not import: ZeroDivisionError"),
        ({"TASKBRIDGE_REDIS_URL": "redis://127.0.0.1:1/0"}, "Redis cannot be reached"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://a:secret@127.0.0.1:1/b"}, "Postgres cannot be reached"),
        ({"TASKBRIDGE_RUNNER_TTL": "never"}, "TASKBRIDGE_RUNNER_TTL is 'never'"),
    ],
)
def test_a_worker_that_could_not_work_says_so_and_ends(
    deployment: Deployment, environment: dict[str, str], text: str
) -> None:
    assert_refused(deployment, environment, text)


@pytest.mark.slow
def test_a_worker_that_waits_for_a_silent_server_says_so_meanwhile(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with subprocess.Popen(
            worker_command("-P", "solo"),
            env=deployment.environment(TASKBRIDGE_REDIS_URL=f"redis://127.0.0.1:{port}/0"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker:
            try:
                assert worker.stderr is not None
                said = [*islice((line for line in worker.stderr if line.startswith("taskbridge: ")), 2)]
                assert worker.poll() is None, "it waits on"
            finally:
                worker.kill()
    waits = "has not answered for 3 s; this worker is still waiting\n"
    assert said == [f"taskbridge: {server} (127.0.0.1:{port}) {waits}" for server in ("the broker", "Redis")]


def test_a_worker_refuses_a_schema_that_it_does_not_know(deployment: Deployment) -> None:
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM taskbridge.taskbridge_schema")
    assert_refused(deployment, {}, "run `taskbridge migrate`")


def assert_refused(deployment: Deployment, environment: dict[str, str], text: str) -> None:
    worker = Worker(deployment.environment(**environment), deployment.logs / "refused.log", ["-P", "solo"])
    try:
        assert worker.process.wait(60 * TIME_FACTOR) != 0
    finally:
        worker.stop()
    printed = worker.text()
    assert text in printed
    assert "Traceback" not in printed
    assert "secret" not in printed
