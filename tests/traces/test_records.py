"""A record keeps the span that wrote it last, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from sqlalchemy import Engine

import taskbridge.producer.recording as recording
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.producer.producer import Bridge
from taskbridge.store import record, record_many
from tests.deployment import Deployment
from tests.inline import Inline
from tests.traces.conftest import Spans, traceparent_of

ALERTS = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 60),))


def kept(engine: Engine) -> dict[str, str | None]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT key, traceparent FROM taskbridge.records ORDER BY key")
        return {key: text and text.rpartition("-")[0] for key, text in rows}


def test_a_span_that_is_not_the_last_writers(engine: Engine, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("first") as first:
        record_many(engine, "orders", [("acme", key, {"a": 1}) for key in "1234"])
    with spans.tracer.start_as_current_span("second") as second:
        record_many(engine, "orders", [("acme", "1", {"a": 1})])
        record(engine, "orders", "acme", "2", {"a": 2})
    record(engine, "orders", "acme", "3", {"a": 2})
    with engine.begin() as connection:
        connection.exec_driver_sql("""SELECT taskbridge.record('orders', 'acme', '4', '{"a": 2}')""")

    # The first was not changed; the last two were changed by somebody without a span.
    assert kept(engine) == {"1": traceparent_of(first), "2": traceparent_of(second), "3": None, "4": None}


def test_a_trace_that_nobody_keeps_takes_no_room(engine: Engine, spans: Spans) -> None:
    spans.switch.how = ALWAYS_OFF
    with spans.tracer.start_as_current_span("not sampled"):
        record(engine, "orders", "acme", "1", {})
    record(engine, "orders", "acme", "2", {})

    assert kept(engine) == {"1": None, "2": None}


def _record_event(deployment: Deployment) -> Any:
    return recording.record_event(deployment.app, "alerts", {"level": "ERROR", "service": "acme"}, "1")


def _record_for_task(deployment: Deployment) -> Any:
    task = deployment.app.tasks["taskbridge.record_event"]
    return task.apply(("alerts", {"level": "ERROR", "service": "acme"}, "1")).get()


def _record_in_coroutine(deployment: Deployment) -> Any:
    return asyncio.run(Bridge(deployment.app, deployment.notify_event).arecord("acme", "1", {}, source="alerts"))


@pytest.mark.parametrize("write", [_record_event, _record_for_task, _record_in_coroutine])
def test_a_way_to_write_that_forgets_the_span(
    deployment: Deployment, spans: Spans, write: Callable[[Deployment], Any]
) -> None:
    Inline(deployment).handle(lambda _: None, policy=ALERTS, pipeline="alerts")
    with spans.tracer.start_as_current_span("writes") as span:
        write(deployment)

    assert kept(deployment.engine) == {"1": traceparent_of(span)}
