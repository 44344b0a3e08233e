"""Latency-neutral batching on Celery, Redis and Postgres."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Batch, Record, RetryAfter
    from taskbridge.declaring.criteria import Criterion
    from taskbridge.declaring.pipeline import pipeline
    from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral, RateLimit
    from taskbridge.integration.app import (
        app,
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
    "app",
    "install",
    "notify_event",
    "notify_many",
    "pipeline",
    "record",
    "record_event",
    "record_invoice",
    "record_many",
]

if not TYPE_CHECKING:
    # A module is imported when one of its names is first used: a command's help needs no Celery, a policy no Postgres.
    _MODULES = {
        "integration.app": (
            "app",
            "notify_event",
            "notify_many",
            "record",
            "record_event",
            "record_invoice",
            "record_many",
        ),
        "declaring.batch": ("Batch", "Record", "RetryAfter"),
        "declaring.criteria": ("Criterion",),
        "integration.installation": ("install",),
        "declaring.pipeline": ("pipeline",),
        "declaring.policy": ("DelaySinceLastRun", "LatencyNeutral", "RateLimit"),
    }
    _PLACES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> Any:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(place), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
