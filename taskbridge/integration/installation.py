"""TaskBridge on a Celery app that is there already: it adds tasks, queues and threads of the worker, and no more."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from celery import Celery, signals
from kombu import Exchange
from kombu import Queue as KombuQueue
from redis import RedisError

from taskbridge.common.server_errors import address_of, translated_errors
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.gate import OURS, Queue
from taskbridge.gate.message import RUN_TASK, check_serializer
from taskbridge.handlers.journal import JOURNAL, NOT_FOR_THE_JOURNAL
from taskbridge.integration.broker_watch import BrokerWatchStep
from taskbridge.integration.failed_worker import FailedWorkerStep
from taskbridge.integration.queue_order import QueueOrder
from taskbridge.integration.tasks import NOTIFY_TASK, RECORD_TASK, register
from taskbridge.integration.transport import DECLARED_COMMAND, check_versions, transport_of
from taskbridge.observe.metrics_server import MetricsStep
from taskbridge.process.runtime import Runtime, keys_of, runtime_of, serves
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings, unknown_variables
from taskbridge.store import is_adopted
from taskbridge.worker.ticker import TickerStep

__all__ = ["apply_config", "check_pool", "install", "installed_beside", "is_installed", "reset_app", "reset_apps"]

REDIS: Final = frozenset({"redis", "rediss", "sentinel"})
SILENT_SECONDS: Final = 3.0
"""A worker that starts says of a server that it has not answered for so long, and waits on."""
ORDER: Final = "queue_order_strategy"
GREEN: Final = ("gevent", "eventlet")
"""Celery's pools whose tasks, and all threads of the worker, take turns in one thread."""

_INSTALLED: WeakKeyDictionary[Celery, Bridge] = WeakKeyDictionary()


def install(app: Celery, settings: Settings | None = None) -> Bridge:
    """Add TaskBridge to a Celery app and return what its producers call. A second call returns the same.

    The app gets the tasks `taskbridge.*`, their queues beside its own, and in the workers that serve these a ticker,
    and metrics where a port is set. Its other tasks and queues, its broker, serializer,
    results and default queue stay as they are. The app is not configured by this, so it may come before or after
    `app.config_from_object`.

    Args:
        app: the app, whatever its broker.
        settings: where gate and records are. None: what the environment says when they are first needed.

    Raises:
        ConfigurationError: it was installed with other settings before.
    """
    before = _INSTALLED.get(app)
    if before is not None:
        if settings is not None and runtime_of(app).settings != settings:
            raise ConfigurationError(
                f"TaskBridge is installed on the app {app.main!r} with other settings already: "
                "call `taskbridge.install` once for each app"
            )
        return before
    if settings is not None:
        runtime_of(app, settings)
    bridge = _INSTALLED[app] = Bridge(app, register(app))
    app.steps["worker"].update((TickerStep, MetricsStep, BrokerWatchStep, FailedWorkerStep))
    _add_queues(app)
    app.on_after_configure.connect(_configured, weak=False)
    if app.configured:  # type: ignore[attr-defined]
        apply_config(app)
    return bridge


def is_installed(app: Celery) -> bool:
    """Whether TaskBridge was installed on the app."""
    return app in _INSTALLED


def installed_beside(app: Celery) -> str | None:
    """Return where another app is that TaskBridge was installed on, as `celery -A` takes it; None: none is known."""
    for other in list(_INSTALLED):
        # Other modules may have imported it from its own, which has the shortest name as a rule.
        found = [
            name.removesuffix(".celery")
            for name, module in list(sys.modules.items())
            if other is not app and any(one is other for one in list(getattr(module, "__dict__", {}).values()))
        ]
        if found:
            return min(found, key=len)
    return None


def _add_queues(app: Celery) -> None:
    """Let Celery know our queues beside those of the app, also where the app has only its default queue.

    Not by `task_queues`: the app may still change it, and its default queue, until Celery makes the queues.
    """
    amqp: Any = app.amqp
    made = amqp.queues_cls

    def with_ours(*args: Any, **options: Any) -> Any:
        queues = made(*args, **options)
        _select(queues, app)
        return queues

    amqp.queues_cls = with_ours
    if "queues" in vars(amqp):
        _select(amqp.queues, app)


def reset_app(app: Celery) -> None:
    """Let the app make its queues, routes and pool anew when they are next used: its settings have changed.

    `Celery.close` is not for this: an app that is closed learns of no shared task that is declared afterwards.
    """
    vars(app).pop("amqp", None)
    app._pool = None  # type: ignore[attr-defined]
    _add_queues(app)


def reset_apps() -> None:
    """Do so for all apps that TaskBridge was installed on, and fit their configuration to what they read then."""
    for app in list(_INSTALLED):
        reset_app(app)
        if app.configured:  # type: ignore[attr-defined]
            apply_config(app)


def _select(queues: Any, app: Celery) -> None:
    for name in keys_of(app).queues:
        queues.select_add(KombuQueue(name, Exchange(name), routing_key=name))


def _configured(sender: Celery, **_: Any) -> None:
    apply_config(sender)


def apply_config(app: Any) -> None:
    """Change what our tasks need in the configuration, and nothing else: other tasks and queues stay as they are."""
    conf, keys = app.conf, keys_of(app)
    first, following = ({"queue": keys.queue(queue)} for queue in Queue)
    ours = {NOTIFY_TASK: first, RECORD_TASK: first, RUN_TASK: following}
    routes = conf.task_routes or ()
    routes = list(routes) if isinstance(routes, (list, tuple)) else [routes]
    # Behind those of other settings, which the app may have had meanwhile, they would do nothing.
    if routes[:1] != [ours]:
        conf.task_routes = [ours, *(one for one in routes if one != ours)]
        # A router keeps the routes that it was made with, so it is made anew. Where there is none yet, `update` would
        # make one, and with it the queues, too early.
        if "router" in vars(app.amqp):
            conf.update(task_routes=conf.task_routes)
    options = conf.broker_transport_options
    if _uses_redis(conf) and options.get(ORDER, "round_robin") == "round_robin":
        conf.broker_transport_options = {**options, ORDER: f"{QueueOrder.__module__}:{QueueOrder.__qualname__}"}


def _uses_redis(conf: Any) -> bool:
    brokers = conf.broker_read_url
    first = brokers if isinstance(brokers, str) or not brokers else brokers[0]
    return str(first).partition("://")[0] in REDIS


@signals.celeryd_init.connect(weak=False)
def _worker_begins(instance: Any, options: Any, **_: Any) -> None:
    """Fit the configuration again: the app may have changed it since `install`. A worker has a transport of ours.

    One whose `-Q` names other queues alone keeps that of kombu.
    """
    app, chosen = instance.app, options.get("queues") or ()
    if app not in _INSTALLED:
        return
    apply_config(app)
    names = chosen.split(",") if isinstance(chosen, str) else chosen
    serves_ours = not names or any(str(name).strip().startswith(OURS) for name in names)
    if serves_ours and (transport := transport_of(app.conf)):
        app.conf.broker_transport = transport


def check_pool(pool: Any) -> None:
    """See that a worker with this pool can serve our queues.

    Args:
        pool: its class, or its name as Celery has it, such as `prefork` or `celery.concurrency.solo:TaskPool`.

    Raises:
        ConfigurationError: its tasks share one thread with the ticker and with heartbeats.
    """
    modules = [one.__module__ for one in pool.__mro__] if isinstance(pool, type) else [str(pool).partition(":")[0]]
    for name in GREEN:
        if name in modules or f"celery.concurrency.{name}" in modules:
            raise ConfigurationError(
                f"a worker with the pool {name} cannot serve the queues of TaskBridge: its tasks share one thread with "
                "the ticker and with heartbeats, so a handler that computes stops them all",
                "start it with -P prefork, threads or solo; for tasks of yours that need this pool, start another "
                "worker whose -Q names their queues alone",
            )


def _answer_doctor() -> None:
    """Let this worker tell which pipelines it declares, as a command of Celery's remote control."""
    from celery.worker.control import inspect_command  # noqa: PLC0415 - only workers need it

    def declared(state: Any, **_: Any) -> list[str]:
        return sorted(runtime_of(state.app).pipelines.names())

    inspect_command(name=DECLARED_COMMAND)(declared)


@contextmanager
def _told_if_silent(server: str, name: str) -> Iterator[None]:
    """Say on stderr that a server is silent, while the block waits for it; `name` as in `address_of`."""

    def tell() -> None:
        address = address_of(name)
        where = f" ({address})" if address else ""
        sys.stderr.write(
            f"taskbridge: {server}{where} has not answered for {SILENT_SECONDS:g} s, and this worker waits on for a "
            "while\n"
        )

    timer = threading.Timer(SILENT_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_journal(runtime: Runtime) -> None:
    """See that the built-in journal does not handle the changes of an adopted table in place of the shop's handler.

    Raises:
        ConfigurationError: it would.
    """
    names = runtime.pipelines.names()
    if INVOICES in names and runtime.pipelines[INVOICES] is JOURNAL and is_adopted(runtime.database, INVOICES):
        raise ConfigurationError(*NOT_FOR_THE_JOURNAL)


@signals.worker_init.connect(weak=False)
def _refuse_to_start(sender: Any, **_: Any) -> None:
    """End a worker of our queues that could not work, with the reason and the next step, before it takes a message."""
    app = sender.app
    if app not in _INSTALLED or not serves(app):
        return
    for name, text in unknown_variables(os.environ):
        sys.stderr.write(f"taskbridge: the variable {name} is not known and does nothing: {text}\n")
    try:
        check_pool(sender.pool_cls)
        check_serializer(app)
        with _told_if_silent("the broker", "broker"):
            check_versions(app)
        runtime = runtime_of(app)
        runtime.pipelines.names()
        with _told_if_silent("Redis", "Redis"), translated_errors():
            runtime.gate.check_version()
        runtime.check(redis=False)
        # Where Redis takes no writes for a while, the worker's thread takes it later.
        with translated_errors(), suppress(RedisError):
            runtime.own_gate()
        with translated_errors():
            check_journal(runtime)
        _answer_doctor()
    except TaskBridgeError as error:
        sys.stderr.write(f"taskbridge: {error}\n")
        raise SystemExit(error.exit_status) from None
    except Exception:
        traceback.print_exc()
        sys.stderr.write("taskbridge: this worker cannot start, as is said above\n")
        raise SystemExit(1) from None
