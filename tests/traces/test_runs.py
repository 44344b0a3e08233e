"""The spans of runs: where each leads, what is below it, what none has; and that no run needs OpenTelemetry."""

from __future__ import annotations

import json

import pytest
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.store import record_invoice, record_many
from taskbridge.worker import slot
from tests.deployment import Deployment
from tests.inline import Inline
from tests.traces.conftest import Spans, context_of

RUN, HANDLE = "run invoices", "handle invoices"
SECRET = "a-document-that-nobody-may-see"
LONG = LatencyNeutral(lease=60, tick=60)


@pytest.fixture
def inline(deployment: Deployment) -> Inline:
    made = Inline(deployment)
    made.handle(lambda _: None)
    return made


def saved(deployment: Deployment, spans: Spans, *keys: str, tenant: str = "acme") -> list[tuple[int, int]]:
    """Record each in a span of its own; return these."""
    found = []
    for key in keys:
        with spans.tracer.start_as_current_span(f"saves {key}") as span:
            record_invoice(deployment.engine, tenant, key, {"secret": SECRET})
        found.append(context_of(span))
    return found


def test_a_run_that_leads_to_none_of_its_records(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    contexts = saved(deployment, spans, "1", "2")
    record_invoice(deployment.engine, "acme", "3", {})
    deployment.notify_event.delay("acme")
    deployment.notify_event.delay("acme")
    message = inline.message()
    assert message is not None
    with spans.tracer.start_as_current_span("the worker's own"):
        slot.run_tenant(inline.runtime, *message)

    run, first = spans.one(RUN), spans.named("notify invoices")[0]
    assert run.parent is None
    assert run.kind is SpanKind.CONSUMER
    assert [(context_of(link), dict(link.attributes or {})) for link in run.links] == [
        (context_of(first), {"taskbridge.link": "burst"}),
        *((context, {"taskbridge.link": "record"}) for context in contexts),
    ]
    revisions = deployment.rows("SELECT min(revision), max(revision) FROM taskbridge.records")[0]
    assert run.attributes == {
        "messaging.system": "taskbridge",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "invoices",
        "messaging.batch.message_count": 3,
        "taskbridge.tenant": "acme",
        "taskbridge.run": message[2],
        "taskbridge.burst.events": 2,
        "taskbridge.burst.runs": 1,
        "taskbridge.handled": 3,
        "taskbridge.revision.first": revisions[0],
        "taskbridge.revision.last": revisions[1],
        "taskbridge.outcome": "done",
    }
    assert run.status.status_code is StatusCode.UNSET


def test_what_a_handler_does_is_in_nobodys_trace(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    def handle(batch: Batch) -> None:
        with spans.tracer.start_as_current_span(f"posts {len(batch)}"):
            pass

    async def handle_in_coroutine(batch: Batch) -> None:
        handle(batch)

    for handler in (handle, handle_in_coroutine):
        inline.handle(handler, batch_size=2)
        record_many(deployment.engine, "invoices", [("acme", key, {"by": handler.__name__}) for key in "123"])
        deployment.notify_event.delay("acme")
        outer = get_current_span()
        assert inline.run_all()
        assert get_current_span() is outer

    runs, calls = spans.named(RUN), spans.named(HANDLE)
    posts = [span for span in spans.all if span.name.startswith("posts")]
    assert len(runs) == 2
    assert [span.parent and span.parent.span_id for span in calls] == [
        run.context.span_id for run in runs for _ in range(2) if run.context
    ]
    assert [span.parent and span.parent.span_id for span in posts] == [
        call.context.span_id for call in calls if call.context
    ]
    assert [dict(span.attributes or {}) for span in calls] == [
        {"messaging.batch.message_count": count} for count in (2, 1, 2, 1)
    ]


def test_more_links_than_a_span_keeps(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    inline.handle(lambda _: None, batch_size=100)
    saved(deployment, spans, *(f"{number:03}" for number in range(150)))
    with spans.tracer.start_as_current_span("many"):
        record_many(deployment.engine, "invoices", [("bolt", str(number), {}) for number in range(150)])
    for tenant in ("acme", "bolt"):
        deployment.notify_event.delay(tenant)
        assert inline.run_all()

    acme, bolt = spans.named(RUN)
    assert len(acme.links) == 128
    assert [dict(link.attributes or {})["taskbridge.link"] for link in acme.links] == ["burst"] + ["record"] * 127
    assert acme.attributes is not None
    assert acme.attributes["messaging.batch.message_count"] == 150
    # 150 records of one span are one link.
    assert len(bolt.links) == 2


def test_a_run_that_failed_says_so_and_quotes_nothing(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    def handle(batch: Batch) -> None:
        raise LookupError(f"cannot take {batch[0].document}")

    inline.handle(handle)
    saved(deployment, spans, "the-key")
    deployment.notify_event.delay("acme")
    message = inline.message()
    assert message is not None
    with pytest.raises(LookupError):
        slot.run_tenant(inline.runtime, *message)

    for name in (RUN, HANDLE):
        span = spans.one(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.status.description == span.attributes["error.type"] == "LookupError"
    run = spans.one(RUN)
    assert run.attributes is not None
    assert (run.attributes["taskbridge.outcome"], run.attributes["taskbridge.handled"]) == ("retry", 0)
    ours = [span for span in spans.all if span.name.startswith(("notify", "run", "handle"))]
    text = json.dumps([json.loads(span.to_json()) for span in ours])
    assert len(ours) == 3
    assert "acme" in text
    assert SECRET not in text
    assert "the-key" not in text


def test_a_run_that_was_taken_along_is_below_no_other(deployment: Deployment, inline: Inline, spans: Spans) -> None:
    inline.handle(lambda _: None, policy=LONG)
    for tenant in ("acme", "bolt", "cord"):
        saved(deployment, spans, "1", tenant=tenant)
        deployment.notify_event.delay(tenant)
    keys = [message.run for message in inline.runtime.gate.take(16, 16)[0]]
    with spans.tracer.start_as_current_span("the worker's own"):
        assert not any(slot.run_together(inline.runtime, keys))

    runs = spans.named(RUN)
    assert [span.parent for span in runs] == [None] * 3
    assert len({context_of(span)[0] for span in runs}) == 3
    saves = {span.context.span_id: span.name for span in spans.all if span.context and span.name.startswith("saves")}
    assert len(saves) == 3
    assert all(len(span.links) == 2 for span in runs)
    parents = [span.parent and span.parent.trace_id for span in spans.named(HANDLE)]
    assert sorted(parents, key=str) == sorted((context_of(span)[0] for span in runs), key=str)
