"""The span of the events that a producer sends, with links to the first events of the runners that take them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from taskbridge.common import tracing
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from taskbridge.gate import Gate, Notified

__all__ = ["send_traced"]

_FIXED: Final = {
    "messaging.system": tracing.SYSTEM,
    "messaging.operation.name": "notify",
    "messaging.operation.type": "send",
}


def send_traced(gate: Gate, events: Sequence[tuple[str, str, Spacing]]) -> list[Answer]:
    """Send events (pipeline, tenant, spacing) to a gate, in one span if the program samples it."""
    if (span := _started(events)) is None:
        return gate.notify_many(events)
    try:
        notified = gate.notify_traced(events, tracing.text_of(span.get_span_context()) or "")
        _describe(span, events, notified)
    except BaseException as error:
        tracing.fail(span, error)
        raise
    finally:
        tracing.end(span)
    return [event.answer for event in notified]


def _started(events: Sequence[tuple[str, str, Spacing]]) -> Span | None:
    """Start a span; None if the program does not use tracing or does not sample this span."""
    tracer = tracing.tracer()
    if tracer is None:
        return None
    name, attributes, pipelines = "notify", {**_FIXED}, {pipeline for pipeline, *_ in events}
    if len(pipelines) == 1:
        name = f"notify {events[0][0]}"
        attributes["messaging.destination.name"] = events[0][0]
    try:
        span = tracer.start_span(name, kind=tracing.loaded_api().SpanKind.PRODUCER, attributes=attributes)
        return span if span.is_recording() else None
    except Exception as error:
        tracing.report(error)
        return None


def _describe(span: Span, events: Sequence[tuple[str, str, Spacing]], notified: Sequence[Notified]) -> None:
    """Set the outcome of the events. They are sent already, so an exporter's error is only reported."""
    try:
        if len({tenant for _, tenant, _ in events}) == 1:
            span.set_attribute("taskbridge.tenant", events[0][1])
        if len(notified) == 1:
            span.set_attribute("taskbridge.outcome", notified[0].answer.name.lower())
            if notified[0].token:
                span.set_attribute("taskbridge.run", notified[0].token)
        else:
            counts = Counter(f"taskbridge.{event.answer.name.lower()}" for event in notified)
            span.set_attributes({**counts, "messaging.batch.message_count": len(notified)})
        for first in islice(dict.fromkeys(event.first for event in notified if event.first), tracing.MOST_LINKS):
            if (context := tracing.parsed(first)) is not None:
                span.add_link(context, {"taskbridge.link": "runner"})
    except Exception as error:
        tracing.report(error)
