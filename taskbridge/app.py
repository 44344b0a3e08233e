"""The Celery app: `celery -A taskbridge worker`, `celery -A taskbridge flower`."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from typing import Any, Final

from celery import Celery, Task, signals
from kombu import Exchange
from kombu import Queue as KombuQueue

from taskbridge.errors import TaskBridgeError
from taskbridge.gate import Queue
from taskbridge.message import RUN_TASK, RUNS_TASK
from taskbridge.metrics_server import MetricsStep
from taskbridge.runtime import runtime
from taskbridge.settings import Settings
from taskbridge.tasks import NOTIFY_TASK, RECORD_TASK, register
from taskbridge.ticker import TickerStep

__all__ = ["app", "make_app", "notify_event"]

DEFAULTS: Final[dict[str, Any]] = {
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    # Workers take first events before continuations: queues are served in sorted order of their names.
    "broker_transport_options": {"queue_order_strategy": "sorted"},
    "task_default_queue": Queue.FIRST.value,
    "task_ignore_result": True,
    "task_queues": tuple(KombuQueue(name, Exchange(name), routing_key=name) for name in Queue),
    "task_routes": {
        NOTIFY_TASK: {"queue": Queue.FIRST.value},
        RECORD_TASK: {"queue": Queue.FIRST.value},
        RUN_TASK: {"queue": Queue.NEXT.value},
        RUNS_TASK: {"queue": Queue.NEXT.value},
    },
    "task_serializer": "json",
    # What a worker has reserved it no longer takes in order, so it reserves little.
    "worker_prefetch_multiplier": 1,
}


def make_app(settings: Settings | None = None) -> tuple[Celery, Task[Any, Any]]:
    """Return a Celery app with the tasks, the queues, the ticker and metrics, and its task `notify_event`.

    Its configuration: defaults, then celeryconfig.py (or the module of CELERY_CONFIG_MODULE) where one can be imported,
    then the broker of `settings`. Those are read from the environment when the app is first used, if none are given.
    """

    def configuration() -> dict[str, Any]:
        values = DEFAULTS | _celeryconfig()
        # A setting that cannot be read is reported where it is used; raised here it would drown in Celery's own trace.
        with suppress(TaskBridgeError):
            values["broker_url"] = runtime(made, settings).settings.broker
        return values

    # Not the current app: a process may have its own, and its tasks stay there.
    made = Celery("taskbridge", set_as_current=False)
    made.add_defaults(configuration)
    made.steps["worker"].update((TickerStep, MetricsStep))
    return made, register(made)


def _celeryconfig() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE") or "celeryconfig"
    if importlib.util.find_spec(name) is None:
        return {}
    module = importlib.import_module(name)
    return {key: getattr(module, key) for key in dir(module) if not key.startswith("_")}


app, notify_event = make_app()


@signals.celeryd_init.connect(weak=False)
def _refuse_to_start(conf: Any, **_: Any) -> None:
    """End a worker of this app that could not work, with the reason and the next step, before it takes a message."""
    if conf is not app.conf:
        return
    try:
        runtime(app).check()
    except TaskBridgeError as error:
        sys.stderr.write(f"taskbridge: {error}\n")
        raise SystemExit(error.exit_status) from None
