"""What operators look with: Celery's inspect and Flower's API, against an ordinary worker."""

from __future__ import annotations

import pytest

from tests.deployment import Deployment, Worker
from tests.waiting import TIME_FACTOR

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"TASKBRIDGE_PIPELINES": "tests.unit.broken_pipelines"}, "does not import: ZeroDivisionError"),
        ({"TASKBRIDGE_POSTGRES_URL": "postgresql://a:secret@127.0.0.1:1/b"}, "Postgres cannot be reached"),
        (
            {"TASKBRIDGE_METRICS_ADDRESS": "203.0.113.1", "TASKBRIDGE_METRICS_PORT": "9464"},
            "taskbridge: metrics cannot be served on 203.0.113.1, port 9464 (",
        ),
        ({}, "run `taskbridge migrate`"),
    ],
)
def test_a_worker_that_could_not_work_says_so_and_ends(
    deployment: Deployment, environment: dict[str, str], text: str
) -> None:
    if not environment:
        deployment.execute("DELETE FROM taskbridge.taskbridge_schema")
    worker = Worker(deployment.environment(**environment), deployment.logs / "refused.log", ["-P", "solo"])
    try:
        assert worker.process.wait(60 * TIME_FACTOR) != 0
    finally:
        worker.stop()
    printed = worker.text()
    assert text in printed
    assert "Traceback" not in printed
    assert "secret" not in printed
