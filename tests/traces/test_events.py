"""The spans of events: what each says, where it leads, and that no event needs one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import redis
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanKind, StatusCode

from taskbridge.declaring.policy import LatencyNeutral, Spacing
from taskbridge.errors import Unavailable
from taskbridge.gate import Answer, Gate, Keys
from taskbridge.producer.notify import notify, notify_many
from taskbridge.producer.producer import Bridge
from tests.deployment import Deployment
from tests.inline import Inline
from tests.traces.conftest import Spans, context_of

LONG = LatencyNeutral(lease=60, tick=60)
SPACING = Spacing(delay=200, lease=60_000)
NAME = "notify invoices"


@pytest.fixture
def inline(deployment: Deployment) -> Inline:
    made = Inline(deployment)
    made.handle(lambda _: None, policy=LONG)
    return made


def test_an_absorbed_event_that_leads_nowhere(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    with spans.tracer.start_as_current_span("request") as request:
        assert notify(deployment.app, "acme") is Answer.STARTED
    assert notify(deployment.app, "acme") is Answer.ABSORBED
    message = inline.message()

    started, absorbed = spans.named(NAME)
    assert message is not None
    assert started.parent == request.get_span_context()
    assert absorbed.parent is None
    assert {started.kind, absorbed.kind} == {SpanKind.PRODUCER}
    common = {
        "messaging.system": "taskbridge",
        "messaging.operation.name": "notify",
        "messaging.operation.type": "send",
        "messaging.destination.name": "invoices",
        "taskbridge.tenant": "acme",
        "taskbridge.run": message[2],
    }
    assert started.attributes == {**common, "taskbridge.outcome": "started"}
    assert absorbed.attributes == {**common, "taskbridge.outcome": "absorbed"}
    assert not started.links
    (link,) = absorbed.links
    assert context_of(link) == context_of(started)
    assert link.attributes == {"taskbridge.link": "runner"}


def test_an_event_of_a_runner_that_waits_leads_to_its_first_event(
    deployment: Deployment, inline: Inline, spans: Spans
) -> None:
    deployment.save("acme", "1")
    assert inline.run_all() == 1
    assert notify(deployment.app, "acme") is Answer.DELAYED

    first, delayed = spans.named(NAME)
    assert [context_of(link) for link in delayed.links] == [context_of(first)]
    assert delayed.attributes is not None
    assert delayed.attributes["taskbridge.outcome"] == "delayed"
    # Its run has no token yet, and the former one did not take it.
    assert "taskbridge.run" not in delayed.attributes


@pytest.mark.usefixtures("inline")
def test_many_events_are_one_span(deployment: Deployment, spans: Spans) -> None:
    notify(deployment.app, "acme")
    assert notify_many(deployment.app, ["acme", "bolt", "acme"]) == [Answer.ABSORBED, Answer.STARTED, Answer.ABSORBED]

    first, many = spans.named(NAME)
    assert many.attributes is not None
    assert many.attributes["messaging.batch.message_count"] == 3
    assert (many.attributes["taskbridge.started"], many.attributes["taskbridge.absorbed"]) == (1, 2)
    assert not {"taskbridge.tenant", "taskbridge.run"} & many.attributes.keys()
    assert [context_of(link) for link in many.links] == [context_of(first)]


@pytest.mark.usefixtures("inline")
def test_an_event_after_the_commit_that_is_in_nobodys_trace(deployment: Deployment, spans: Spans) -> None:
    bridge = Bridge(deployment.app, deployment.notify_event)

    async def request() -> Any:
        with spans.tracer.start_as_current_span("request") as span:
            await bridge.arecord_invoice("acme", "1", {}, notify="after commit")
            await bridge.anotify("acme")
        return span

    span = asyncio.run(request())
    assert [one.parent and one.parent.span_id for one in spans.named(NAME)] == [span.context.span_id] * 2


@pytest.mark.parametrize("deployment", [{"notify_timeout": 1.0}], indirect=True)
@pytest.mark.usefixtures("inline")
def test_an_event_that_was_not_sent(deployment: Deployment, spans: Spans) -> None:
    notify(deployment.app, "acme")
    deployment.redis.client_pause(4_000)
    try:
        with pytest.raises(Unavailable):
            notify(deployment.app, "acme")
    finally:
        deployment.redis.client_unpause()

    *_, failed = spans.named(NAME)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.status.description == failed.attributes["error.type"] == "redis.exceptions.TimeoutError"
    assert not failed.events


def test_a_sampler_that_fails_keeps_no_event(
    deployment: Deployment, inline: Inline, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Sampler):
        def should_sample(self, *_: Any, **__: Any) -> Any:
            raise ValueError("secret")

        def get_description(self) -> str:
            return "Failing"

    spans.switch.how = Failing()
    deployment.save("acme", "1", notify=False)
    with caplog.at_level(logging.WARNING):
        assert notify(deployment.app, "acme") is Answer.STARTED
        assert notify_many(deployment.app, ["acme"]) == [Answer.ABSORBED]
        assert inline.run_all() == 1
    assert inline.seen == ["1"]
    assert "OpenTelemetry raised ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_a_run_that_the_caller_publishes_is_published_once(redis_client: redis.Redis, keys: Keys) -> None:
    """An answer that tells of a runner is not taken for one that starts it."""
    published = []
    gate = Gate(redis_client, keys, publish=lambda *message: published.append(message))
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    events = [("invoices", "acme", SPACING), ("orders", "acme", SPACING), ("invoices", "acme", SPACING)]
    first, other, again = gate.notify_traced(events, traceparent)

    assert (first.answer, other.answer, again.answer) == (Answer.STARTED, Answer.STARTED, Answer.ABSORBED)
    assert [token for *_, token in published] == [first.token, other.token]
    assert (again.token, again.first) == (first.token, traceparent)
    assert (first.first, other.first) == ("", "")
