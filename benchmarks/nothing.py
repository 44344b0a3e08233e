"""The baseline of a run: a Celery task that does nothing, on the same broker, with Celery's own defaults."""

from __future__ import annotations

import os
from typing import Final

from celery import Celery

__all__ = ["NOTHING", "QUEUE", "app", "make_app"]

NOTHING: Final = "bench.nothing"
QUEUE: Final = "celery"


def make_app(broker_url: str) -> Celery:
    """Return a Celery app with one task, which does nothing and whose result is ignored."""
    made = Celery("nothing", broker=broker_url, set_as_current=False)
    made.conf.update(task_serializer="json", task_ignore_result=True, broker_connection_retry_on_startup=True)

    @made.task(name=NOTHING, shared=False)
    def nothing(tenant: str) -> None:
        """Take the tenant and do nothing."""

    return made


app = make_app(os.environ.get("TASKBRIDGE_REDIS_URL", ""))
