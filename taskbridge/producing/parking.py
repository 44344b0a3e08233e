"""The parking queue: messages of `taskbridge.record_event` that could not be recorded when they were taken.

It lies in the broker and is consumed by nobody; `intake.py` says what is parked and what is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from celery import Celery
from kombu import Exchange
from kombu import Queue as KombuQueue

from taskbridge.common.texts import printable
from taskbridge.process.runtime import Runtime, runtime_of

__all__ = ["RECORD_TASK", "bound", "count_parked", "park", "rotate"]

log = logging.getLogger(__name__)

RECORD_TASK: Final = "taskbridge.record_event"


def count_parked(app: Celery, channel: Any) -> int:
    """Return how many messages wait to be recorded."""
    return int(bound(runtime_of(app), channel).queue_declare().message_count)


def _parking(runtime: Runtime) -> KombuQueue:
    """Return the parking queue. As an object and not by name: Celery would let its workers consume it."""
    name = runtime.keys.parked
    return KombuQueue(name, Exchange(name), routing_key=name)


def bound(runtime: Runtime, channel: Any) -> Any:
    """Return the parking queue on a channel of the broker."""
    return _parking(runtime).bind(channel)


def park(
    app: Celery,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    task_id: str,
    tries: int,
    failure: str,
) -> None:
    """Put a message into the parking queue, with how often it was tried and why that failed."""
    app.tasks[RECORD_TASK].apply_async(
        tuple(arguments),
        dict(keywords),
        task_id=task_id,
        queue=_parking(runtime_of(app)),
        headers={"taskbridge_tries": str(tries), "taskbridge_failure": printable(failure)[:500]},
    )


def rotate(app: Celery, message: Any, failure: str) -> None:
    """Put a message that was taken out of the parking queue at its end, with why this try failed."""
    arguments, keywords, _ = message.decode()
    tries = int(message.headers.get("taskbridge_tries", 1)) + 1
    task_id = message.headers["id"]
    park(app, arguments, keywords, task_id, tries, failure)
    message.ack()
    log.warning("message %s waits to be recorded after %d tries: %s", task_id, tries, failure)
