"""A module that a worker loads: the SDK, with spans in a file; and a span around each Celery task, as instrumentation
makes it. Its handler asks somebody, in a span of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery.signals import task_postrun, task_prerun
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from taskbridge import Batch, pipeline
from taskbridge.handlers.journal import journal

FILE = Path(os.environ["TEST_SPANS"])


class ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with FILE.open("a") as file:
            file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("tests")
on: dict[str, tuple[Any, Any]] = {}


@task_prerun.connect
def begin(task_id: str, **_: object) -> None:
    span = tracer.start_span("celery task")
    on[task_id] = span, context.attach(trace.set_span_in_context(span))


@task_postrun.connect
def end(task_id: str, **_: object) -> None:
    span, token = on.pop(task_id)
    context.detach(token)
    span.end()


@pipeline("invoices")
def ask(batch: Batch) -> None:
    with tracer.start_as_current_span("asks somebody"):
        journal(batch)
