"""Exceptions that Celery or its pools treat in a special way, by name."""

from __future__ import annotations

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate

__all__ = ["LONG", "SPECIAL"]

LONG = 50_000_000
"""Characters of an error's text."""
SPECIAL: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        Ignore,
        KeyboardInterrupt,
        MemoryError,
        Reject,
        Retry,
        SoftTimeLimitExceeded,
        WorkerLostError,
        WorkerShutdown,
        WorkerTerminate,
    )
}
