"""A worker whose main process ends by an error ends for good, also if Celery's shutdown does not.

Celery then shuts down as for SIGTERM: it waits for the results of the pool's processes. If the error came from reading
those results, it waits forever, and a supervisor sees a process that is alive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from celery import bootsteps
from celery.platforms import EX_FAILURE

from taskbridge.process.runtime import serves

__all__ = ["FailedWorkerStep"]

log = logging.getLogger(__name__)

ENDS_WITHIN: Final = 30.0
"""Seconds that a failed worker has for its shutdown, with the calls that handlers are in."""


class FailedWorkerStep(bootsteps.StartStopStep):
    """Bound the shutdown after an error, in a thread of the main process."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Do nothing: an error may come later."""

    def stop(self, worker: Any) -> None:
        """Bound the rest of the shutdown if an error is its reason; Celery stops this step before the pool."""
        if worker.exitcode == EX_FAILURE:
            threading.Thread(target=_end, name="taskbridge-end", daemon=True).start()


def _end() -> None:
    time.sleep(ENDS_WITHIN)
    log.critical("the worker failed, and its shutdown did not end within %.0f s: it ends now", ENDS_WITHIN)
    os._exit(EX_FAILURE)
