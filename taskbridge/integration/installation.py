"""Install TaskBridge on an existing Celery app: it adds tasks, queues and worker threads, and nothing else."""

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

from taskbridge.common.sentinel import stay
from taskbridge.common.server_errors import address_of, translated_errors
from taskbridge.common.texts import spoken
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.gate import OURS, Queue
from taskbridge.gate.message import RUN_TASK, check_serializer
from taskbridge.handlers.journal import JOURNAL, NOT_FOR_THE_JOURNAL
from taskbridge.integration.broker_watch import BrokerWatchStep
from taskbridge.integration.failed_worker import FailedWorkerStep
from taskbridge.integration.queue_order import QueueOrder
from taskbridge.integration.tasks import NOTIFY_TASK, RECORD_TASK, register
from taskbridge.integration.transport import (
    DECLARED_COMMAND,
    REDIS_SCHEMES,
    FailoverConnection,
    check_versions,
    scheme_of_broker,
    transport_of,
)
from taskbridge.observe.metrics_server import MetricsStep
from taskbridge.process.runtime import Runtime, keys_of, runtime_of, serves
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings, unknown_variables
from taskbridge.store import is_adopted
from taskbridge.worker.ticker import TickerStep

__all__ = ["apply", "check_journal", "check_pool", "install", "is_installed", "reset", "reset_all"]

SILENT_SECONDS: Final = 3.0
"""A starting worker reports a server that has not answered for this long, and keeps waiting."""
ORDER: Final = "queue_order_strategy"
GREEN: Final = ("gevent", "eventlet")
"""Celery's pools that run all tasks, and all threads of the worker, in one operating system thread."""

_INSTALLED: WeakKeyDictionary[Celery, Bridge] = WeakKeyDictionary()


def install(app: Celery, settings: Settings | None = None) -> Bridge:
    """Add TaskBridge to a Celery app and return its producer API. If you call it again, you get the same object.

    The app gets the tasks `taskbridge.*` and their queues. Workers that serve these queues run a ticker, and serve
    metrics if a port is set. Everything else in the app stays as it is: its own tasks and queues, broker, serializer,
    results and default queue. Only a worker with TASKBRIDGE_REDIS uses that Redis as its broker. You can call this
    before or after `app.config_from_object`.

    Args:
        app: the app, with any broker.
        settings: which Postgres and Redis to use. None: read them from the environment on first use.

    Raises:
        ConfigurationError: TaskBridge is already installed on this app with other settings.
    """
    before = _INSTALLED.get(app)
    if before is not None:
        if settings is not None and runtime_of(app).settings != settings:
            raise ConfigurationError(
                f"TaskBridge is already installed on the app {app.main!r} with other settings: "
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
        apply(app)
    return bridge


def is_installed(app: Celery) -> bool:
    """Whether TaskBridge was installed on the app."""
    return app in _INSTALLED


def _add_queues(app: Celery) -> None:
    """Add our queues to those of the app, even if the app has only its default queue.

    `task_queues` is no place for them: the app may change it, and its default queue, until Celery creates the queues.
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


def reset(app: Celery) -> None:
    """Make the app recreate its queues, routes and pool when they are next used, because its settings have changed.

    `Celery.close` cannot be used for this: a closed app misses shared tasks that are declared afterwards.
    """
    vars(app).pop("amqp", None)
    app._pool = None  # type: ignore[attr-defined]
    _add_queues(app)


def reset_all() -> None:
    """Reset all apps on which TaskBridge is installed, and apply our configuration to them again."""
    for app in list(_INSTALLED):
        reset(app)
        if app.configured:  # type: ignore[attr-defined]
            apply(app)


def _select(queues: Any, app: Celery) -> None:
    kind = app.conf.get("task_default_queue_type", "classic")
    arguments = None if kind == "classic" else {"x-queue-type": kind}
    for name in keys_of(app).queues:
        queues.select_add(KombuQueue(name, Exchange(name), routing_key=name, queue_arguments=arguments))


def _configured(sender: Celery, **_: Any) -> None:
    apply(sender)


def apply(app: Any) -> None:
    """Configure what our tasks need, and leave the app's other tasks and queues as they are."""
    conf, keys = app.conf, keys_of(app)
    first, following = ({"queue": keys.queue(queue)} for queue in Queue)
    ours = {NOTIFY_TASK: first, RECORD_TASK: first, RUN_TASK: following}
    routes = conf.task_routes or ()
    routes = list(routes) if isinstance(routes, (list, tuple)) else [routes]
    # Ours must come first, or the app's routes may win; the app may have changed them since.
    if routes[:1] != [ours]:
        conf.task_routes = [ours, *(one for one in routes if one != ours)]
        # A router keeps the routes it was created with, so create it again. If there is none yet, `update` would create
        # it too early, and the queues with it.
        if "router" in vars(app.amqp):
            conf.update(task_routes=conf.task_routes)
    options = conf.broker_transport_options
    if scheme_of_broker(conf) in REDIS_SCHEMES and options.get(ORDER, "round_robin") == "round_robin":
        conf.broker_transport_options = {**options, ORDER: f"{QueueOrder.__module__}:{QueueOrder.__qualname__}"}
    if scheme_of_broker(conf) == "sentinel" and not conf.broker_failover_strategy:
        conf.broker_failover_strategy = stay


@signals.celeryd_init.connect(weak=False)
def _worker_begins(instance: Any, options: Any, **_: Any) -> None:
    """Apply the configuration again, because the app may have changed it since `install`, and choose our transport.

    The worker of a named Redis has its broker there. A worker whose `-Q` names only other queues keeps kombu's
    transport.
    """
    app, chosen = instance.app, options.get("queues") or ()
    if app not in _INSTALLED:
        return
    # An invalid setting is reported later, with its remedy.
    with suppress(TaskBridgeError):
        _use_named_redis(app, runtime_of(app).settings)
    apply(app)
    names = chosen.split(",") if isinstance(chosen, str) else chosen
    serves_ours = not names or any(str(name).strip().startswith(OURS) for name in names)
    if serves_ours and (transport := transport_of(app.conf)):
        app.conf.broker_transport = transport
        app.amqp.Connection = FailoverConnection


def _use_named_redis(app: Celery, settings: Settings) -> None:
    """Make the named Redis that this worker serves, if any, the broker of its app."""
    if not settings.redis:
        return
    # They would override the app's configuration.
    for name in ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        os.environ.pop(name, None)
    options = app.conf.broker_transport_options
    # What belongs to the app's own broker. The URL says all of it for this one.
    others = ("read_url", "write_url", "transport", "use_ssl", "user", "password", "vhost", "port", "failover_strategy")
    app.conf.update({f"broker_{name}": None for name in others})
    app.conf.update(broker_url=settings.broker, broker_transport_options={**options, **settings.broker_options})


def check_pool(pool: Any) -> None:
    """Check that a worker with this pool can serve our queues.

    Args:
        pool: its class, or its name as Celery takes it, such as `prefork` or `celery.concurrency.solo:TaskPool`.

    Raises:
        ConfigurationError: the pool's tasks share one thread with the ticker and the heartbeats.
    """
    modules = [one.__module__ for one in pool.__mro__] if isinstance(pool, type) else [str(pool).partition(":")[0]]
    for name in GREEN:
        if name in modules or f"celery.concurrency.{name}" in modules:
            raise ConfigurationError(
                f"a worker with the pool {name} cannot serve the queues of TaskBridge: its tasks share one thread with "
                "the ticker and the heartbeats, so a handler that computes blocks them all",
                "start it with -P prefork, threads or solo; if tasks of yours need this pool, start a separate "
                "worker whose -Q names only their queues",
            )


def _answer_doctor() -> None:
    """Add a remote control command that returns the pipelines which this worker declares."""
    from celery.worker.control import inspect_command  # noqa: PLC0415 - only workers need it

    def declared(state: Any, **_: Any) -> list[str]:
        return runtime_of(state.app).names()

    inspect_command(name=DECLARED_COMMAND)(declared)


@contextmanager
def _report_silence(server: str, name: str) -> Iterator[None]:
    """Report on stderr if the block waits long for a server; `name` is as in `address_of`."""

    def report() -> None:
        address = address_of(name)
        where = f" ({address})" if address else ""
        sys.stderr.write(
            f"taskbridge: {server}{where} has not answered for {SILENT_SECONDS:g} s; this worker is still waiting\n"
        )

    timer = threading.Timer(SILENT_SECONDS, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_journal(runtime: Runtime) -> None:
    """Check that the built-in journal does not handle the changes of an adopted table.

    Raises:
        ConfigurationError: it would, in place of the handler that the table was adopted for.
    """
    names = runtime.pipelines.names()
    if INVOICES in names and runtime.pipelines[INVOICES] is JOURNAL and is_adopted(runtime.engine, INVOICES):
        raise ConfigurationError(*NOT_FOR_THE_JOURNAL)


def _check_named_redis(runtime: Runtime) -> None:
    """Check that every pipeline's Redis has a URL, and that the worker of a named one serves pipelines from there.

    Raises:
        ConfigurationError: a URL is missing, or no pipeline is on this worker's Redis.
    """
    names, redis = runtime.names(), runtime.settings.redis
    if redis and not names:
        raise ConfigurationError(
            f"no pipeline is on the Redis {redis!r}", "correct TASKBRIDGE_REDIS or TASKBRIDGE_PIPELINES"
        )


def _check_django() -> None:
    """Check that Django, if the worker has set it up, has our app.

    Raises:
        ConfigurationError: it has not, so what handlers write with the ORM would not commit together with their batch.
    """
    apps = getattr(sys.modules.get("django.apps"), "apps", None)
    if apps is not None and apps.ready and not apps.is_installed("taskbridge.django"):
        raise ConfigurationError(
            "INSTALLED_APPS lacks 'taskbridge.django', so the ORM would write in transactions of its own",
            "add it; if TaskBridge uses another database than Django, also set TASKBRIDGE_DATABASE to None",
        )


@signals.worker_init.connect(weak=False)
def _refuse_to_start(sender: Any, **_: Any) -> None:
    """Stop a worker of our queues that could not work, with the reason and a remedy, before it takes a message."""
    app = sender.app
    if app not in _INSTALLED or not serves(app):
        return
    for name, text in unknown_variables(os.environ):
        sys.stderr.write(f"taskbridge: the variable {name} is unknown and ignored: {text}\n")
    try:
        check_pool(sender.pool_cls)
        check_serializer(app)
        _check_django()
        runtime = runtime_of(app)
        _check_named_redis(runtime)
        with _report_silence("Redis", "Redis"), translated_errors():
            runtime.gate.check_server()
            runtime.gate.check_scripts()
        with _report_silence("the broker", "broker"):
            check_versions(app)
        runtime.check(redis=False)
        # If Redis refuses writes for now, the worker's thread takes ownership later.
        with translated_errors(), suppress(RedisError):
            runtime.own_gate()
        with translated_errors():
            check_journal(runtime)
        _answer_doctor()
    except TaskBridgeError as error:
        text = f"{error.what}: {spoken(error.remedy)}" if error.remedy else str(error)
        sys.stderr.write(f"taskbridge: {text}\n")
        raise SystemExit(error.exit_status) from None
    except Exception:
        traceback.print_exc()
        sys.stderr.write("taskbridge: this worker cannot start; the error is shown above\n")
        raise SystemExit(1) from None
