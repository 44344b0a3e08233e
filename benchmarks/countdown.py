"""The baseline of waiting: a Celery task with a countdown for each tick, which the worker holds until it is due.

`celery -A benchmarks.countdown worker` runs it. Its main process writes how late it hands each task to its pool,
in ms, to the file of TASKBRIDGE_BENCH_LATENESS; how long tasks then wait for a free child is not part of it.
"""

from __future__ import annotations

import os
import time
from typing import Final

from celery import Celery
from celery.worker.request import Request

__all__ = ["app", "tick"]

LATENESS: Final = os.environ.get("TASKBRIDGE_BENCH_LATENESS", os.devnull)

app: Final = Celery("countdown", broker=os.environ.get("TASKBRIDGE_REDIS_URL"), set_as_current=False)
app.conf.update(task_default_queue="countdown", task_ignore_result=True, broker_connection_retry_on_startup=True)


class _Timed(Request):
    """A task that is due."""

    def revoked(self) -> bool:
        """Note how late it is. This is the last that a worker asks before it hands the task to its pool."""
        late = (time.time() - self.args[1]) * 1000
        file = os.open(LATENESS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{late:.3f}\n".encode())
        os.close(file)
        return bool(super().revoked())


@app.task(name="countdown.tick", Request=_Timed)
def tick(tenant: str, due: float) -> None:
    """Let a tenant tick that was `due` then, in seconds of the Unix epoch."""
