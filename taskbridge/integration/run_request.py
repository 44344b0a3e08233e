"""What a worker's main process does with the message of a run."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

__all__ = ["RunRequest"]


class RunRequest(Request):
    """A message of `taskbridge.run`, whose run goes on when the connection to the broker is lost.

    With `worker_cancel_long_running_tasks_on_connection_loss`, Celery kills tasks that are acknowledged late, because
    their messages are delivered again. A run needs no second message, and would count as one that died.
    """

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing; see Celery, which calls this only after the connection was lost."""
