"""The spans of a run: one for the run, starting with its first records, and a child span for each handler call.

A run's span begins a new trace, whatever span is current in the worker (for example that of another tenant's message,
in whose slot this run is done). It links to the spans of its records, and to that of the event that started the runner.
No span contains a document, a key, or the text of an error, which may quote either.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from taskbridge.common import tracing

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Record
    from taskbridge.worker.delivery import Run, RunResult

__all__ = ["RunTrace", "trace_of"]

LOST: Final = "lost"
"""The outcome of a run that was replaced, or whose end is unknown."""


def trace_of(run: Run) -> RunTrace | None:
    """Return the trace of a run that has begun; None: the program does not use tracing."""
    tracer = tracing.tracer()
    return None if tracer is None else RunTrace(tracer, run)


class RunTrace:
    """The trace of one run. It has no span until the run has records."""

    def __init__(self, tracer: Any, run: Run) -> None:
        self._tracer = tracer
        self._run = run
        self._started = time.time_ns()
        self._span: Any = None
        self._linked: set[str] = set()
        self._taken: set[tuple[int, str]] = set()
        self._called: list[tuple[Any, int]] = []
        """Spans of finished calls, and when they ended, in nanoseconds since the Unix epoch."""

    def take(self, records: Sequence[Record], traceparents: Mapping[str, str]) -> None:
        """Add records that the run is about to deliver; `traceparents` has the spans of some, by external id."""
        self._end_calls()
        if not records:
            return
        try:
            parents = (traceparents.get(record.external_id) for record in records)
            self._taken.update((record.revision, record.external_id) for record in records)
            if self._span is None:
                burst = self._links([self._run.begun.traceparent], "burst")
                self._span = self._begun([*burst, *self._links(parents, "record")])
            elif self._span.is_recording():
                for link in self._links(parents, "record"):
                    self._span.add_link(link.context, link.attributes)
        except Exception as error:
            tracing.report(error)

    def _links(self, traceparents: Iterable[str | None], kind: str) -> Iterator[Any]:
        """Yield links to spans that the run does not link to yet, up to the maximum number of links."""
        api = tracing.loaded_api()
        for text in traceparents:
            if text and text not in self._linked and len(self._linked) < tracing.MOST_LINKS:
                self._linked.add(text)
                if (context := tracing.parsed(text)) is not None:
                    yield api.Link(context, {"taskbridge.link": kind})

    def _begun(self, links: list[Any]) -> Any:
        (pipeline, tenant, token), begun = self._run.key, self._run.begun
        attributes = {
            "messaging.system": tracing.SYSTEM,
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": pipeline,
            "taskbridge.tenant": tenant,
            "taskbridge.run": token,
            "taskbridge.burst.events": begun.events,
            "taskbridge.burst.runs": begun.runs,
        }
        return self._tracer.start_span(
            f"run {pipeline}",
            context=_nothing(),
            kind=tracing.loaded_api().SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
            start_time=self._started,
        )

    @contextmanager
    def call(self, records: int) -> Iterator[None]:
        """Make a span for a call of the handler, and make it current in the block."""
        span, attached = self._begin_call(records)
        try:
            yield
        except BaseException as error:
            if span is not None:
                tracing.fail(span, error)
            raise
        finally:
            if span is not None:
                sys.modules["opentelemetry.context"].detach(attached)
                # The transaction is still open, and ending a span may take as long as its exporter.
                self._called.append((span, time.time_ns()))

    def _begin_call(self, records: int) -> tuple[Any, Any]:
        """Return a span and the token of its context, or (None, None)."""
        if self._span is None or not self._span.get_span_context().is_valid:
            return None, None
        try:
            api, name = tracing.loaded_api(), f"handle {self._run.key.pipeline}"
            attributes = {"messaging.batch.message_count": records}
            span = self._tracer.start_span(
                name, context=api.set_span_in_context(self._span, _nothing()), attributes=attributes
            )
            return span, sys.modules["opentelemetry.context"].attach(api.set_span_in_context(span, _nothing()))
        except Exception as error:
            tracing.report(error)
            return None, None

    def _end_calls(self) -> None:
        while self._called:
            span, ended = self._called.pop(0)
            tracing.end(span, ended)

    def end(self, result: RunResult | None) -> None:
        """End the run's span, if there is one; `result`: how the run ended, if known."""
        self._end_calls()
        span, self._span = self._span, None
        if span is None:
            return
        outcome = result.outcome if result is not None else None
        try:
            attributes = {
                "messaging.batch.message_count": len(self._taken),
                "taskbridge.handled": self._run.handled,
                "taskbridge.revision.first": min(self._taken)[0],
                "taskbridge.revision.last": max(self._taken)[0],
                "taskbridge.outcome": LOST if outcome is None else outcome.value,
            }
            span.set_attributes(attributes)
        except Exception as error:
            tracing.report(error)
        if result is not None and result.error is not None:
            tracing.fail(span, result.error)
        tracing.end(span)


def _nothing() -> Any:
    """Return a context in which no span is current."""
    return sys.modules["opentelemetry.context"].Context()
