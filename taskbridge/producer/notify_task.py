"""The task `notify_event`, as producers call it."""

from __future__ import annotations

import importlib
from typing import Any

from celery import Task, states
from celery.result import AsyncResult, EagerResult
from celery.utils import uuid

from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import ConfigurationError, InvalidConnection
from taskbridge.gate.message import task_serializer
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import events_of
from taskbridge.producer.transactions import notify_after_commit

__all__ = ["NotifyTask"]


class NotifyTask(Task):  # type: ignore[type-arg] # not generic before Celery 5.5
    """`notify_event`: calls the gate in the producer's own process, so that an absorbed event causes no message.

    With a countdown, an eta, a link or any other option of `apply_async`, it is an ordinary message, and a worker calls
    the gate.
    """

    abstract = True

    def __call__(self, tenant: str, pipeline: str = INVOICES) -> str:
        """Notify in this process and return the gate's answer."""
        answer: str = self.run(tenant, pipeline)
        return answer

    def delay(self, tenant: str, pipeline: str = INVOICES) -> AsyncResult[str]:
        """Tell the tenant's runner that there are new records; see `apply_async`."""
        return self.apply_async((tenant, pipeline))

    def delay_on_commit(self, tenant: str, pipeline: str = INVOICES) -> None:
        """Notify after the commit of a Django transaction, like the method of the same name of Celery's DjangoTask.

        The transaction is that of the alias in TASKBRIDGE_DATABASE, or of `default`. Each tenant is notified once. If
        Redis cannot be used, a warning is logged and nothing is raised, as by `taskbridge.notify`.

        Raises:
            ConfigurationError: Django is not installed.
            InvalidConnection: the alias is not a PostgreSQL database.
            Others: as `taskbridge.notify`.
        """
        try:
            connections: Any = importlib.import_module("django.db").connections
            settings: Any = importlib.import_module("django.conf").settings
        except ImportError:
            raise ConfigurationError(
                "`delay_on_commit` is for Django, which is not installed: pass your connection to `taskbridge.notify`"
            ) from None
        alias = getattr(settings, "TASKBRIDGE_DATABASE", None) or "default"
        connection = connections[alias]
        if connection.vendor != "postgresql":
            raise InvalidConnection(
                f"Django's database {alias!r} is {connection.display_name}, but TaskBridge uses PostgreSQL",
                "set TASKBRIDGE_DATABASE to the alias of that database, or call `transaction.on_commit(lambda: "
                "notify_event.delay(tenant))`",
            )
        events = events_of(runtime_of(self.app), [tenant], pipeline)
        notify_after_commit(self.app, dict(events), connection)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[str]:
        """Notify; the result is the gate's answer (`started`, `delayed` or `absorbed`), without a result backend.

        Raises: as `Bridge.notify_many`, unless it becomes a message.
        """
        if producer or link or link_error or shadow or options:
            options.setdefault("serializer", task_serializer(self))
            return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
        answer = self.run(*(args or ()), **(kwargs or {}))
        return EagerResult(task_id or uuid(), answer, states.SUCCESS, name=self.name)
