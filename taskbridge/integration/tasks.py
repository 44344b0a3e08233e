"""The Celery tasks. Other programs publish them, so their names must not change."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Reject
from celery.result import AsyncResult

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.texts import error_line, printable
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import Unavailable
from taskbridge.gate.message import RUN_TASK, task_serializer
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.intake import record_message
from taskbridge.producer.notify import notify
from taskbridge.producer.notify_task import NotifyTask
from taskbridge.worker import slot

__all__ = ["NOTIFY_TASK", "RECORD_TASK", "RETRIED_WITHIN", "register"]

log = logging.getLogger(__name__)

NOTIFY_TASK: Final = "taskbridge.notify_event"
RECORD_TASK: Final = "taskbridge.record_event"
HIDDEN: Final = "(...)"
RETRIED_WITHIN: Final = 120.0
"""Seconds between two tries of a message, at the most.

Well below the visibility timeout of Redis (300 s in the package's own app): a message that a worker holds for longer
than that is delivered a second time. And long enough that 10,000 messages are about 110 tries a second.
"""


# Celery's own class takes no parameters before 5.5.
if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task


class RecordTask(_Task):
    """`record_event`: its arguments hold a document, which logs, events and Flower must not show."""

    abstract = True
    _reported = LogThrottle()

    def apply_async(self, args: Any = None, kwargs: Any = None, *further: Any, **options: Any) -> AsyncResult[Any]:
        """Publish it; its arguments are shown as `(...)`."""
        options = {"argsrepr": HIDDEN, "kwargsrepr": HIDDEN, "serializer": task_serializer(self), **options}
        return super().apply_async(args, kwargs, *further, **options)

    def retry_later(self, kind: type[Exception], failure: str) -> NoReturn:
        """Publish the message again, due after a back-off that doubles from 1 s to `RETRIED_WITHIN`.

        Not to be called while an exception is handled: Celery's events show a whole chain of exceptions, and a
        driver's error may quote the document.
        """
        failure = printable(failure)[:500]
        if count := self._reported.counted(kind):
            log.warning(
                "%d messages cannot be recorded yet and are retried, the last %s: %s", count, self.request.id, failure
            )
        longest = min(RETRIED_WITHIN, 2.0 ** min(self.request.retries, 10))
        try:
            self.retry(exc=Unavailable(failure), countdown=longest * random.uniform(0.5, 1))  # noqa: S311 - jitter
        except Reject:
            # The broker did not take it. Celery would drop the message here.
            log.error("message %s is neither recorded (%s) nor published again", self.request.id, failure)
        time.sleep(1)
        raise Reject(failure, requeue=True)


def register(app: Celery) -> NotifyTask:
    """Add the tasks to `app` and return `notify_event`. Celery makes them later, so `app` is not configured by this."""
    # Not shared: Celery would put them into every other app of the process as well.
    ours: dict[str, Any] = {"shared": False, "ignore_result": True}

    # Early ack: a lost run comes back through its deadline in seconds, and not through the visibility timeout.
    @app.task(name=NOTIFY_TASK, base=NotifyTask, **ours, acks_late=False)
    def notify_event(tenant: str, pipeline: str = INVOICES) -> str:
        """Tell the tenant's runner that there are new records."""
        return notify(app, tenant, pipeline).name.lower()

    # It carries data, so it is acknowledged when that is committed, or published again. A repeated message has the
    # same id. If its process dies, it is retried after `default_retry_delay`, and not at once, over and over.
    @app.task(
        name=RECORD_TASK,
        base=RecordTask,
        **ours,
        bind=True,
        acks_late=True,
        acks_on_timeout=False,
        reject_on_worker_lost=True,
        retry_on_worker_lost=True,
        max_retries=None,
        default_retry_delay=10,
    )
    def record(self: RecordTask, *arguments: Any, **keywords: Any) -> str:
        """Record one message of a pipeline with criteria: `pipeline, payload, message_id=None`.

        Without an id of its own the message has the task's.
        """
        try:
            return record_message(runtime_of(app), arguments, keywords, str(self.request.id))
        except Exception as error:
            if runtime_of(app).eager or self.request.is_eager or self.request.called_directly:
                raise
            kind, failure = type(error), error_line(error)
        return self.retry_later(kind, failure)

    @app.task(name=RUN_TASK, **ours, acks_late=False)
    def run(pipeline: str, tenant: str, token: str) -> None:
        """One run of a tenant; published by the gate."""
        slot.work(runtime_of(app), pipeline, tenant, token)

    made: NotifyTask = notify_event
    return made
