"""The Celery app: `celery -A taskbridge worker`, `celery -A taskbridge flower`."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Final

from celery import Celery, signals
from kombu import Exchange
from kombu import Queue as KombuQueue

from taskbridge.errors import TaskBridgeError
from taskbridge.gate import Queue
from taskbridge.message import RUN_TASK
from taskbridge.runtime import runtime, speaking_plainly
from taskbridge.settings import Settings
from taskbridge.store import check_schema
from taskbridge.tasks import NOTIFY_TASK, register
from taskbridge.ticker import TickerStep

__all__ = ["app", "notify_event"]

DEFAULTS: Final[dict[str, Any]] = {
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    # Workers take first events before continuations: queues are served in sorted order of their names.
    "broker_transport_options": {"queue_order_strategy": "sorted"},
    "task_default_queue": Queue.FIRST.value,
    "task_ignore_result": True,
    "task_queues": tuple(KombuQueue(name, Exchange(name), routing_key=name) for name in Queue),
    "task_routes": {NOTIFY_TASK: {"queue": Queue.FIRST.value}, RUN_TASK: {"queue": Queue.NEXT.value}},
    "task_serializer": "json",
    # What a worker has reserved it no longer takes in order, so it reserves little.
    "worker_prefetch_multiplier": 1,
}


def _configuration() -> dict[str, Any]:
    """Defaults, then celeryconfig.py where one can be imported, then the broker of the environment."""
    values = dict(DEFAULTS)
    name = os.environ.get("CELERY_CONFIG_MODULE") or "celeryconfig"
    if importlib.util.find_spec(name) is not None:
        module = importlib.import_module(name)
        values |= {key: getattr(module, key) for key in dir(module) if not key.startswith("_")}
    broker = Settings.read().broker
    if broker:
        values["broker_url"] = broker
    return values


# Not the current app: a process may have its own, and its tasks stay there.
app: Final = Celery("taskbridge", set_as_current=False)
app.add_defaults(_configuration)
app.steps["worker"].add(TickerStep)
notify_event, run = register(app)


@signals.celeryd_init.connect(weak=False)
def _refuse_to_start(conf: Any, **_: Any) -> None:
    """End a worker of this app that could not work, with the reason and the next step, before it takes a message."""
    if conf is not app.conf:
        return
    here = runtime(app)
    try:
        with speaking_plainly():
            here.pipelines.names()
            here.redis.ping()
            check_schema(here.engine)
    except TaskBridgeError as error:
        sys.stderr.write(f"taskbridge: {error}\n")
        raise SystemExit(error.exit_status) from None
