"""The span of events that a producer sends. It links to the first events of the runners that take them."""

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

__all__ = ["send_many", "send_one"]

_NAMES: Final = {one: one.name.lower() for one in Answer}
_FIXED: Final = {
    "messaging.system": tracing.SYSTEM,
    "messaging.operation.name": "notify",
    "messaging.operation.type": "send",
}

SpacedEvent = tuple[str, str, Spacing]
"""Pipeline, tenant and spacing."""


def send_one(gate: Gate, pipeline: str, tenant: str, spacing: Spacing) -> Answer:
    """Send one event through a gate, in a span where the program makes any."""
    if (span := _begun(pipeline)) is None:
        return gate.notify(pipeline, tenant, spacing)
    (answer,) = _in_span(span, gate, [(pipeline, tenant, spacing)])
    return answer


def send_many(gate: Gate, events: Sequence[SpacedEvent]) -> list[Answer]:
    """Send events through a gate, all in one span where the program makes any."""
    pipelines = {pipeline for pipeline, *_ in events}
    if (span := _begun(*pipelines) if len(pipelines) == 1 else _begun()) is None:
        return gate.notify_many(events)
    return _in_span(span, gate, events)


def _begun(pipeline: str | None = None) -> Span | None:
    """Return a span that has begun; None: the program makes none, or it is not sampled."""
    tracer = tracing.tracer()
    if tracer is None:
        return None
    try:
        # No more than a sampler needs: without an SDK it is in vain.
        attributes = _FIXED if pipeline is None else {**_FIXED, "messaging.destination.name": pipeline}
        name = "notify" if pipeline is None else f"notify {pipeline}"
        span = tracer.start_span(name, kind=tracing.loaded_api().SpanKind.PRODUCER, attributes=attributes)
        return span if span.is_recording() else None
    except Exception as error:
        tracing.report(error)
        return None


def _in_span(span: Span, gate: Gate, events: Sequence[SpacedEvent]) -> list[Answer]:
    try:
        told = gate.notify_traced(events, tracing.text_of(span.get_span_context()) or "")
    except BaseException as error:
        tracing.fail(span, error)
        tracing.end(span)
        raise
    try:
        _tell(span, events, told)
    except Exception as error:
        tracing.report(error)
    tracing.end(span)
    return [one.answer for one in told]


def _tell(span: Span, events: Sequence[SpacedEvent], told: Sequence[Notified]) -> None:
    """Write down what became of events."""
    tenants = {tenant for _, tenant, _ in events}
    if len(tenants) == 1:
        span.set_attribute("taskbridge.tenant", *tenants)
    if len(told) == 1:
        span.set_attribute("taskbridge.outcome", _NAMES[told[0].answer])
        if told[0].token:
            span.set_attribute("taskbridge.run", told[0].token)
    else:
        counts = Counter(_NAMES[one.answer] for one in told)
        span.set_attributes({f"taskbridge.{name}": count for name, count in counts.items()})
        span.set_attribute("messaging.batch.message_count", len(told))
    for first in islice(dict.fromkeys(one.first for one in told if one.first), tracing.MOST_LINKS):
        if (context := tracing.parsed(first)) is not None:
            span.add_link(context, {"taskbridge.link": "runner"})
