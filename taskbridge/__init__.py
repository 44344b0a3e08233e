"""Latency-neutral batching on Celery, Redis and Postgres."""

from __future__ import annotations

from taskbridge.app import app, notify_event
from taskbridge.batch import Batch, Record, RetryAfter
from taskbridge.criteria import Criterion
from taskbridge.pipeline import pipeline
from taskbridge.policy import DelaySinceLastRun, LatencyNeutral, RateLimit
from taskbridge.producer import notify_many, record_event, record_invoice

__all__ = [
    "Batch",
    "Criterion",
    "DelaySinceLastRun",
    "LatencyNeutral",
    "RateLimit",
    "Record",
    "RetryAfter",
    "app",
    "notify_event",
    "notify_many",
    "pipeline",
    "record_event",
    "record_invoice",
]
