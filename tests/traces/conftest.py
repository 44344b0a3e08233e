"""The spans that this process makes. A provider can be set once in a process, so it samples within such tests alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult


class Switch(Sampler):
    """Samples as `how` says."""

    how: Sampler = ALWAYS_OFF

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        return self.how.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return "Switch"


class Spans:
    """What was made since the test began. `switch` says what is sampled."""

    def __init__(self, exporter: InMemorySpanExporter, switch: Switch) -> None:
        self._exporter = exporter
        self.switch = switch
        self.tracer = trace.get_tracer("tests")

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


class Ids(IdGenerator):
    """Ids that leave the state of `random` alone: the provider stays, and other tests of the process rely on that."""

    def generate_span_id(self) -> int:
        return secrets.randbits(63) + 1

    def generate_trace_id(self) -> int:
        return secrets.randbits(127) + 1


@cache
def _provided() -> tuple[InMemorySpanExporter, Switch]:
    exporter, switch = InMemorySpanExporter(), Switch()
    # So that what limits the links is not the SDK.
    limits = SpanLimits(max_links=1_000)
    provider = TracerProvider(sampler=switch, shutdown_on_exit=False, span_limits=limits, id_generator=Ids())
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter, switch


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter, switch = _provided()
    exporter.clear()
    switch.how = ParentBased(ALWAYS_ON)
    yield Spans(exporter, switch)
    switch.how = ALWAYS_OFF


def context_of(span: Any) -> tuple[int, int]:
    """Return the ids of a span, or of the context of a link."""
    context = span.context
    return context.trace_id, context.span_id


def traceparent_of(span: Any) -> str:
    return "00-{:032x}-{:016x}".format(*context_of(span))
