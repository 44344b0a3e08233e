"""The Celery tasks. Other programs publish them, so their names must not change."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, Final, NoReturn

from celery import Celery, Task
from celery.exceptions import Reject
from celery.result import AsyncResult
from celery.signals import task_postrun

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.texts import error_line, printable
from taskbridge.declaring.failures import drop_tracebacks
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
RUN_REQUEST: Final = "taskbridge.integration.run_request:RunRequest"
HIDDEN: Final = "(...)"
RETRIED_WITHIN: Final = 120.0
"""The longest wait between two attempts to record a message, in seconds.

It is well below Redis's visibility timeout (300 s in the package's own app), because a message that a worker holds
longer than that is delivered again, and long enough that 10,000 messages cause only about 110 attempts a second.
"""


class RecordTask(Task):  # type: ignore[type-arg] # not generic before Celery 5.5
    """`record_event`: its arguments hold a document, which must not appear in logs, events or Flower."""

    abstract = True
    _reported = LogThrottle()

    def apply_async(self, args: Any = None, kwargs: Any = None, *further: Any, **options: Any) -> AsyncResult[Any]:
        """Publish the task, with its arguments shown as `(...)`."""
        options = {"argsrepr": HIDDEN, "kwargsrepr": HIDDEN, "serializer": task_serializer(self), **options}
        return super().apply_async(args, kwargs, *further, **options)

    def retry_later(self, kind: type[Exception], failure: str) -> NoReturn:
        """Publish the message again after a back-off that doubles from 1 s to `RETRIED_WITHIN`.

        Do not call it while handling an exception: Celery's events show the whole chain of exceptions, and a driver's
        error may quote the document.
        """
        failure = printable(failure)[:500]
        if count := self._reported.counted(kind):
            log.warning(
                "%d messages cannot be recorded yet and will be retried, the last %s: %s",
                count,
                self.request.id,
                failure,
            )
        longest = min(RETRIED_WITHIN, 2.0 ** min(self.request.retries, 10))
        try:
            self.retry(exc=Unavailable(failure), countdown=longest * random.uniform(0.5, 1))  # noqa: S311 - jitter
        except Reject:
            # The broker refused it, and Celery would drop the message here.
            log.error("message %s could be neither recorded (%s) nor republished", self.request.id, failure)
        time.sleep(1)
        raise Reject(failure, requeue=True)


def register(app: Celery) -> NotifyTask:
    """Add the tasks to `app` and return `notify_event`. Celery creates them later, so `app` is not configured."""
    # Not shared: Celery would also add them to every other app of the process.
    ours: dict[str, Any] = {"shared": False, "ignore_result": True}

    # Early ack: a lost run is restarted by its deadline within seconds, not by the visibility timeout.
    @app.task(name=NOTIFY_TASK, base=NotifyTask, **ours, acks_late=False)
    def notify_event(tenant: str, pipeline: str = INVOICES) -> str:
        """Tell the tenant's runner that there are new records."""
        return notify(app, tenant, pipeline).name.lower()

    # It carries data, so it is acknowledged once that is committed or the message is published again. A redelivered
    # message has the same id. If its process dies, it is retried after `default_retry_delay` instead of at once.
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

        A message without an id gets the task's.
        """
        try:
            return record_message(runtime_of(app), arguments, keywords, str(self.request.id))
        except Exception as error:
            if runtime_of(app).eager or self.request.is_eager or self.request.called_directly:
                raise
            kind, failure = type(error), error_line(error)
        return self.retry_later(kind, failure)

    # Acknowledged late only so that it counts towards the prefetch limit while it runs: a worker whose slots are busy
    # takes no further message, and a first event stays in its queue, where every run looks before its next call.
    @app.task(name=RUN_TASK, **ours, Request=RUN_REQUEST, acks_late=True, reject_on_worker_lost=False)
    def run(pipeline: str, tenant: str, token: str) -> None:
        """Perform one run of a tenant; published by the gate."""
        slot.work(runtime_of(app), pipeline, tenant, token)

    made: NotifyTask = notify_event
    return made


@task_postrun.connect(weak=False)
def _free_failed_run(sender: Task[Any, Any], retval: object, **_: object) -> None:
    """Free the batch of a failed run, once Celery has logged its error: frames of its traceback refer to both."""
    if sender.name == RUN_TASK and isinstance(retval, BaseException):
        drop_tracebacks(retval)
