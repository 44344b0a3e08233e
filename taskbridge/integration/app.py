"""The package's own Celery app: `celery -A taskbridge worker`, `celery -A taskbridge flower`."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from celery import Celery

from taskbridge.errors import TaskBridgeError
from taskbridge.gate import Queue
from taskbridge.integration import is_celery
from taskbridge.integration.installation import install
from taskbridge.integration.transport import BOUNDED_CONNECTIONS
from taskbridge.process.runtime import keys_of, runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings

__all__ = [
    "anotify",
    "anotify_many",
    "app",
    "arecord",
    "arecord_event",
    "arecord_invoice",
    "arecord_many",
    "make_app",
    "notify",
    "notify_event",
    "notify_many",
    "record",
    "record_event",
    "record_invoice",
    "record_many",
]

DEFAULTS: Final[dict[str, Any]] = {
    "broker_connection_retry_on_startup": True,
    # By default Celery gives up after 100 attempts, and the worker ends.
    "broker_connection_max_retries": None,
    "task_ignore_result": True,
    # Reserved messages are outside the order of the queues, so a worker reserves few.
    "worker_prefetch_multiplier": 1,
    # In seconds. A `record_event` message whose worker was killed is redelivered after this. No task takes that long.
    "broker_transport_options": {"visibility_timeout": 300, **BOUNDED_CONNECTIONS},
}


def make_app(settings: Settings | None = None) -> Bridge:
    """Return TaskBridge on a Celery app of its own.

    The app is configured by our defaults, then by the module that CELERY_CONFIG_MODULE names, then by the broker of
    `settings`. If that variable is unset, the program `celery` (and no other) loads celeryconfig.py if it can be
    imported. If `settings` is None, they are read from the environment when the app is first used.
    """

    def configuration() -> dict[str, Any]:
        values = DEFAULTS | {"task_default_queue": keys_of(made).queue(Queue.FIRST)} | _celeryconfig()
        # An invalid setting is reported where it is used. Raised here, it would be lost in Celery's own traceback.
        with suppress(TaskBridgeError):
            chosen = runtime_of(made).settings
            values["broker_url"] = chosen.broker
            values["broker_transport_options"] = values["broker_transport_options"] | chosen.broker_options
        return values

    # Not the current app: the process may have its own, which must keep its tasks.
    made = Celery("taskbridge", set_as_current=False)
    made.add_defaults(configuration)
    return install(made, settings)


def _celeryconfig() -> dict[str, Any]:
    name = os.environ.get("CELERY_CONFIG_MODULE")
    if not name:
        # Other programs, such as `taskbridge`, must not run a file that happens to be in the current directory.
        if not is_celery(Path(sys.argv[0])) or importlib.util.find_spec("celeryconfig") is None:
            return {}
        name = "celeryconfig"
    module = importlib.import_module(name)
    return {key: getattr(module, key) for key in dir(module) if not key.startswith("_")}


_bridge = make_app()

app = _bridge.app
notify = _bridge.notify
anotify = _bridge.anotify
notify_event = _bridge.notify_event
notify_many = _bridge.notify_many
anotify_many = _bridge.anotify_many
record = _bridge.record
arecord = _bridge.arecord
record_many = _bridge.record_many
arecord_many = _bridge.arecord_many
record_event = _bridge.record_event
arecord_event = _bridge.arecord_event
record_invoice = _bridge.record_invoice
arecord_invoice = _bridge.arecord_invoice
