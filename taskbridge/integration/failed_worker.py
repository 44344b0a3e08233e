"""End a worker whose main process failed, even if Celery's shutdown hangs.

After an error Celery shuts down as it does for SIGTERM: it waits for the results of the pool's processes. If reading
those results caused the error, it waits forever, and a supervisor sees a live process.
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
"""Seconds that a failed worker has to shut down, including the handlers' current calls."""


class FailedWorkerStep(bootsteps.StartStopStep):
    """Limits how long a shutdown takes after an error, in a thread of the main process."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def stop(self, worker: Any) -> None:
        """Limit the rest of the shutdown if an error caused it; Celery stops this step before the pool."""
        if worker.exitcode == EX_FAILURE:
            threading.Thread(target=_end, name="taskbridge-end", daemon=True).start()


def _end() -> None:
    time.sleep(ENDS_WITHIN)
    log.critical("the worker failed and did not shut down within %.0f s: exiting now", ENDS_WITHIN)
    os._exit(EX_FAILURE)
