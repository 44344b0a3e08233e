"""The second pattern with real workers, delays of 0.5 s and 1.5 s, and what faults cost it."""

from __future__ import annotations

from typing import Any

import pytest

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.recording import Recorded, record_event
from taskbridge.store import count_unmatched
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PIPELINE = "log-alerts"
DELAYS = {"ERROR": 0.5, "WARNING": 1.5}
# Times are kept in whole milliseconds here and there.
TOLERANCE = 0.002


@pytest.fixture
def alerts(deployment: Deployment) -> Deployment:
    """A producer that knows the pipeline, as the workers of `tests.pipelines` do."""
    pipelines = Pipelines()
    criteria = tuple(Criterion("$.level", level, "$.service", delay) for level, delay in DELAYS.items())
    pipelines.declare(Pipeline(PIPELINE, lambda _: None, DelaySinceLastRun(criteria), 500))
    runtime_of(deployment.app).pipelines = pipelines
    return deployment


def record(alerts: Deployment, level: str, service: str) -> Recorded:
    return record_event(alerts.app, PIPELINE, {"level": level, "service": service})


def delivered(alerts: Deployment, count: int) -> list[Any]:
    """Wait until `count` records have been delivered, and return when each run was published, in order.

    That is in the token. A run begins a moment later, and the next is published a delay after that at the soonest.
    """
    wait_until(lambda: len(alerts.deliveries()) >= count, f"{count} deliveries", 40)
    assert len(set(alerts.deliveries())) == len(alerts.deliveries()) == count
    return alerts.rows(
        "SELECT left(token, 16)::bigint / 1e6::float AS began, tenant, cardinality(numbers) FROM ledger ORDER BY id"
    )


def test_at_once_then_not_before_the_delay_since_the_last_run(alerts: Deployment) -> None:
    with alerts.worker():
        # A poller that looks between commit and event is the first.
        assert record(alerts, "WARNING", "A").answer.name in {"STARTED", "ABSORBED"}  # type: ignore[union-attr]
        delivered(alerts, 1)
        assert [record(alerts, level, "A").answer.name for level in ("WARNING", "WARNING")] == ["DELAYED"] * 2  # type: ignore[union-attr]
        assert record(alerts, "ERROR", "B").answer.name in {"STARTED", "ABSORBED"}  # type: ignore[union-attr]
        runs = delivered(alerts, 4)
        of_a = [began for began, tenant, _ in runs if tenant == "A"]
        assert len(of_a) == 2, "what waited was taken by one run"
        assert of_a[1] - of_a[0] >= DELAYS["WARNING"] - TOLERANCE
        # An ERROR pulls a waiting WARNING forward.
        record(alerts, "WARNING", "A")
        record(alerts, "ERROR", "A")
        third = [began for began, tenant, _ in delivered(alerts, 6) if tenant == "A"][2]
        assert DELAYS["ERROR"] - TOLERANCE <= third - of_a[1] < DELAYS["WARNING"]


def test_a_message_by_name_from_another_program_is_recorded_once(alerts: Deployment) -> None:
    with alerts.worker():
        for _ in range(2):
            alerts.app.send_task("taskbridge.record_event", [PIPELINE, {"level": "ERROR", "service": "A"}, "m-1"])
        delivered(alerts, 1)
        alerts.app.send_task("taskbridge.record_event", [PIPELINE, {"level": "INFO", "service": "A"}])
        runtime = runtime_of(alerts.app)
        wait_until(lambda: count_unmatched(runtime.engine, PIPELINE) == 1, "the unmatched record")
        wait_until(lambda: not runtime.gate.active(PIPELINE), "idle")
    assert alerts.deliveries() == [("A", "m-1")]


def test_a_record_in_the_callers_transaction_waits_for_its_commit(alerts: Deployment) -> None:
    with alerts.engine.connect() as connection, alerts.worker():
        recorded = record_event(
            alerts.app, PIPELINE, {"level": "ERROR", "service": "A"}, message_id="m-1", connection=connection
        )
        assert recorded.tenant == "A"
        assert recorded.answer is None
        assert alerts.rows("SELECT * FROM taskbridge.records") == []
        connection.commit()
        # The poller of the worker may have been quicker.
        assert alerts.notify_event.delay(recorded.tenant, PIPELINE).get() in ("started", "absorbed", "delayed")
        delivered(alerts, 1)
