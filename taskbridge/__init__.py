"""Latency-neutral batching on Celery, Redis and Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.lazy import on_first_use

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Batch, Record, RetryAfter
    from taskbridge.declaring.criteria import Criterion
    from taskbridge.declaring.pipeline import pipeline
    from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral, RateLimit
    from taskbridge.integration.app import (
        anotify,
        anotify_many,
        app,
        arecord,
        arecord_event,
        arecord_invoice,
        arecord_many,
        notify,
        notify_event,
        notify_many,
        record,
        record_event,
        record_invoice,
        record_many,
    )
    from taskbridge.integration.installation import install

__all__ = [
    "Batch",
    "Criterion",
    "DelaySinceLastRun",
    "LatencyNeutral",
    "RateLimit",
    "Record",
    "RetryAfter",
    "anotify",
    "anotify_many",
    "app",
    "arecord",
    "arecord_event",
    "arecord_invoice",
    "arecord_many",
    "install",
    "notify",
    "notify_event",
    "notify_many",
    "pipeline",
    "record",
    "record_event",
    "record_invoice",
    "record_many",
]

if not TYPE_CHECKING:
    # A command's help needs no Celery, a policy no Postgres.
    __getattr__ = on_first_use(
        __name__,
        {
            "integration.app": (
                "anotify anotify_many app arecord arecord_event arecord_invoice arecord_many notify notify_event "
                "notify_many record record_event record_invoice record_many"
            ),
            "integration.installation": "install",
            "declaring.batch": "Batch Record RetryAfter",
            "declaring.criteria": "Criterion",
            "declaring.pipeline": "pipeline",
            "declaring.policy": "DelaySinceLastRun LatencyNeutral RateLimit",
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
