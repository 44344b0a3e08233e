"""Latency-neutral batching on Celery, Redis and Postgres."""

from __future__ import annotations

from taskbridge.app import app, notify_event, notify_many, record_event, record_invoice
from taskbridge.batch import Batch, Record, RetryAfter
from taskbridge.criteria import Criterion
from taskbridge.installation import install
from taskbridge.pipeline import pipeline
from taskbridge.policy import DelaySinceLastRun, LatencyNeutral, RateLimit

__all__ = [
    "Batch",
    "Criterion",
    "DelaySinceLastRun",
    "LatencyNeutral",
    "RateLimit",
    "Record",
    "RetryAfter",
    "app",
    "install",
    "notify_event",
    "notify_many",
    "pipeline",
    "record_event",
    "record_invoice",
]
