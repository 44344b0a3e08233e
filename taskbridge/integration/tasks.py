"""The Celery tasks. Other programs publish them, so their names must not change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Task
from celery.result import AsyncResult

from taskbridge.declaring.pipeline import INVOICES
from taskbridge.gate.message import RUN_TASK, task_serializer
from taskbridge.process.runtime import runtime_of
from taskbridge.producing import intake
from taskbridge.producing.keeper import AGAIN_TASK
from taskbridge.producing.notify import notify
from taskbridge.producing.notify_task import NotifyTask
from taskbridge.producing.parking import RECORD_TASK
from taskbridge.running import slot

__all__ = ["NOTIFY_TASK", "RECORD_TASK", "register"]

NOTIFY_TASK: Final = "taskbridge.notify_event"
HIDDEN: Final = "(...)"


# Celery's own class takes no parameters before 5.5.
if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task


class RecordTask(_Task):
    """`record_event`: its arguments hold a document, which logs, events and Flower must not show."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, *further: Any, **options: Any) -> AsyncResult[Any]:
        """Publish it; its arguments are shown as `(...)`."""
        options = {"argsrepr": HIDDEN, "kwargsrepr": HIDDEN, "serializer": task_serializer(self), **options}
        return super().apply_async(args, kwargs, *further, **options)


def register(app: Celery) -> NotifyTask:
    """Add the tasks to `app` and return `notify_event`. Celery makes them later, so `app` is not configured by this."""
    # Not shared: Celery would put them into every other app of the process as well.
    ours: dict[str, Any] = {"shared": False, "ignore_result": True}

    # Early ack: a lost run comes back through its deadline in seconds, and not through the visibility timeout.
    @app.task(name=NOTIFY_TASK, base=NotifyTask, **ours, acks_late=False)
    def notify_event(tenant: str, pipeline: str = INVOICES) -> str:
        """Tell the tenant's runner that there are new records."""
        return notify(app, tenant, pipeline).name.lower()

    # It carries data, so it is acknowledged when that is committed or parked. A message that comes again has the same
    # id. One whose process dies comes again after `default_retry_delay`, and not at once, over and over.
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
    def record(self: Task[Any, Any], *arguments: Any, **keywords: Any) -> str:
        """Record one message of a pipeline with criteria: `pipeline, payload, message_id=None`.

        Without an id of its own the message has the task's.
        """
        return intake.take(app, arguments, keywords, str(self.request.id))

    @app.task(name=AGAIN_TASK, **ours, acks_late=False)
    def record_again() -> None:
        """Try parked messages again; published by a worker's keeper."""
        intake.again(app)

    @app.task(name=RUN_TASK, **ours, acks_late=False)
    def run(pipeline: str, tenant: str, token: str) -> None:
        """One run of a tenant; published by the gate."""
        slot.work(runtime_of(app), pipeline, tenant, token)

    made: NotifyTask = notify_event
    return made
