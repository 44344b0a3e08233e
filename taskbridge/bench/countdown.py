"""The baseline of waiting: a Celery task with a countdown for each tick, which the worker holds until it is due.

`celery -A taskbridge.bench.countdown worker` runs it. Each task writes how late it began, in ms, to the file of
TASKBRIDGE_BENCH_LATENESS.
"""

from __future__ import annotations

import os
import time
from typing import Final

from celery import Celery

__all__ = ["QUEUE", "app", "tick"]

QUEUE: Final = "countdown"
LATENESS: Final = os.environ.get("TASKBRIDGE_BENCH_LATENESS", os.devnull)

app: Final = Celery("countdown", broker=os.environ.get("TASKBRIDGE_REDIS_URL"), set_as_current=False)
app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task(name="countdown.tick")
def tick(tenant: str, due: float) -> None:  # noqa: ARG001 - whose tick it is
    """Note how late the tick of a tenant begins that was `due` then, in seconds of the Unix epoch."""
    late = (time.time() - due) * 1000
    file = os.open(LATENESS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{late:.3f}\n".encode())
    os.close(file)
