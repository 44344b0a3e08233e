"""The keeper: looks in each worker how many messages wait to be recorded, and lets the pool take a slice of them."""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import suppress
from typing import Any, Final

from celery import Celery, bootsteps
from sqlalchemy.exc import DBAPIError

from taskbridge.common.texts import error_line
from taskbridge.gate.message import serializer_of
from taskbridge.process.runtime import runtime_of, serves
from taskbridge.producing.intake import with_undeclared
from taskbridge.producing.parking import count_parked

__all__ = ["AGAIN_TASK", "KeeperStep"]

log = logging.getLogger(__name__)

AGAIN_TASK: Final = "taskbridge.record_again"

# Seconds between two looks.
SHORTEST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 30.0
IDLE_WAIT: Final = 1.0
UNDECLARED_CHECK: Final = 10.0
"""Seconds between two looks for messages whose pipeline was not known, while there are none."""


class KeeperStep(bootsteps.StartStopStep):
    """Looks after parked messages, in a thread of each worker of our queues."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._keep, args=(worker.app,), name="taskbridge-keeper", daemon=True)
        self._thread.start()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def terminate(self, worker: Any) -> None:
        """End the thread; Celery calls this in a cold shutdown."""
        self.stop(worker)

    def _keep(self, app: Celery) -> None:
        """Let the pool try messages that wait: soon while they get fewer, else after a wait that doubles."""
        wait, look_at = IDLE_WAIT, 0.0
        parked_before, undeclared = 0, dict[str, int]()
        connection: Any = None
        # Kept: with Redis a channel has connections of its own, and to open those costs more than all the rest.
        channel: Any = None
        while not self._stopping.wait(wait * random.uniform(0.75, 1.25)):  # noqa: S311 - jitter
            try:
                connection = connection or app.connection_for_write()
                channel = channel or connection.channel()
                parked, undeclared_before = count_parked(app, channel), undeclared
                if undeclared or time.monotonic() >= look_at:
                    look_at, undeclared = time.monotonic() + UNDECLARED_CHECK, {}
                    with suppress(DBAPIError):
                        undeclared = with_undeclared(runtime_of(app))
                if parked or undeclared:
                    app.tasks[AGAIN_TASK].apply_async(expires=LONGEST_WAIT, serializer=serializer_of(app))
                if not parked and not undeclared:
                    wait = IDLE_WAIT
                elif parked < parked_before or undeclared != undeclared_before:
                    wait = SHORTEST_WAIT
                else:
                    wait = min(LONGEST_WAIT, 2 * max(wait, SHORTEST_WAIT))
                parked_before = parked
            except Exception as error:
                log.warning("the look at parked messages failed: %s", error_line(error))
                wait = min(LONGEST_WAIT, 2 * wait)
                if connection is not None:
                    with suppress(Exception):
                        connection.close()
                connection = channel = None
