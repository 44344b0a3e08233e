"""The runtime of a process: its gate, cursors and broker connections, created on first use.

A forked child creates its own: connections are not shared across a fork.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cached_property
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from taskbridge.common.histogram import Histogram
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import ForeignGate, TaskBridgeError
from taskbridge.gate import OURS, Gate, Keys, Queue, Timing, deadline, message
from taskbridge.gate.inspector import Inspector
from taskbridge.process.broker import broker_connection
from taskbridge.process.heartbeat import Heartbeat
from taskbridge.process.light_runtime import LightRuntime, redis_of
from taskbridge.process.pace import Pace
from taskbridge.settings import Settings
from taskbridge.store import Changes, Cursors, Records, driver_error

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from sqlalchemy import Engine

    from taskbridge.declaring.batch import RetryAfter
    from taskbridge.declaring.pipeline import Pipelines
    from taskbridge.gate.gate import Publish
    from taskbridge.process.event_loop import EventLoop
    from taskbridge.process.event_threads import EventThreads

__all__ = ["BEFORE_USE", "Runtime", "keys_of", "new_runtimes", "reset_runtimes", "runtime_of", "runtimes", "serves"]

G = TypeVar("G", bound=Gate)

EVENT_THREADS: Final = 8

log = logging.getLogger(__name__)

BROKER_TIMEOUT: Final = 2.0
"""Seconds that an attempt to publish a run may take if the broker is not the gate's server."""
BROKER_REST: Final = 1.0
"""Seconds in which nothing is published after a failed attempt, so that many runs do not wait one after the other."""
OWNER_REST: Final = 60.0
"""Seconds after which a producer checks again who owns the gate, if it had no owner."""
BEFORE_USE: Final[list[Callable[[], None]]] = []
"""Called before the runtime of an app is used: a framework may have changed the source of the settings."""
_SOCKET_TIMEOUTS: Final = ("socket_connect_timeout", "socket_timeout")


class Runtime(LightRuntime):
    """The connections and pipelines of one process."""

    runs_by_hand: bool = False
    """Whether a test does the runs itself, so that they wait for it even if Celery runs tasks inline."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        super().__init__(settings)
        self.app = app
        self.slots = 1
        """How many runs the worker of this process can do at a time."""
        self.worker = ""
        """The name of the worker of this process; empty outside of a worker."""
        self.idle_slots: Callable[[], int] = lambda: 1
        """Returns how many slots are free for tenants in the fair queue."""
        self.taken_from: frozenset[str] = frozenset()
        """The queues from which a slot takes runs itself: those that the worker served when it started."""
        self.pid = os.getpid()
        self.has_own_settings = False
        """Whether the settings were passed in, so that they are not read again."""
        self.shut_until = 0.0
        """Until when (`time.monotonic`) messages are retried later without an attempt: Postgres was unavailable."""
        self.waits: dict[tuple[str, str], RetryAfter] | None = None
        """The last waits that handlers asked for, by pipeline and tenant, for a test; None: they are not recorded."""
        self.is_interactive = False
        """Whether a person waits for its calls. Events may then take as long as any other call."""
        self.events_rest_until = 0.0
        """Until when (`time.monotonic`) no event is sent, because Redis did not answer in time."""
        self.unpublished: Exception | None = None
        """Why a run of this process could not be published; None: all were published."""
        self._owner_known_until = 0.0
        self._owns_since_ms = 0
        self._broker_away_until = 0.0
        self._broker_slow_until = 0.0
        self._publishing = BoundedSemaphore(EVENT_THREADS)

    @property
    def takes_first_events_only(self) -> bool:
        """Whether this worker serves the queue of first events and not that of continuations."""
        first, continuations = self.keys.queues
        return first in self.taken_from and continuations not in self.taken_from

    @property
    def most_in_flight(self) -> int:
        """How many runs of turns, and how many of reminders, may be queued.

        So a first event that is queued behind them waits for about one run per slot.
        """
        return (self.slots + 1) // 2

    @cached_property
    def gate(self) -> Gate:
        """The gate. Its scripts publish runs themselves if it shares its Redis with the broker."""
        return self.make_gate(Gate)

    @cached_property
    def redis(self) -> Redis:
        """The gate's client."""
        return redis_of(self.settings, interactive=self.is_interactive)

    @cached_property
    def interactive(self) -> Runtime:
        """A runtime with Redis clients of its own, whose timeouts suit a waiting person."""
        return _InteractiveRuntime(self)

    @cached_property
    def event_gate(self) -> Gate:
        """The gate for events: producers wait for Redis no longer than `taskbridge.gate.deadline` allows."""
        return self.gate if self.is_interactive else self.make_gate(Gate, self.event_redis, self.publish_for_event)

    @cached_property
    def event_redis(self) -> Redis:
        """The client of `event_gate`."""
        return redis_of(self.settings, self.settings.notify_timeout)

    @cached_property
    def event_threads(self) -> EventThreads:
        """Threads that send the events of coroutines; a few are enough, since none of them waits long."""
        from taskbridge.process.event_threads import EventThreads  # noqa: PLC0415 - not needed to read

        return EventThreads(EVENT_THREADS, "taskbridge-events")

    @cached_property
    def asking_threads(self) -> EventThreads:
        """Threads for events that need their delay from Postgres, so that no other event waits for Postgres."""
        from taskbridge.process.event_threads import EventThreads  # noqa: PLC0415 - not needed to read

        return EventThreads(EVENT_THREADS, "taskbridge-delays")

    def make_gate(self, kind: type[G], client: Redis | None = None, publish: Publish | None = None) -> G:
        """Return a gate of this class, with the Redis and the keys of this process."""
        settings, prefix = self.settings, self._queue_prefix
        return kind(
            client or self.redis,
            self.keys,
            Timing(round(settings.runner_ttl * 1000), round(settings.republish_after * 1000)),
            message=None if prefix is None else message.lua_message(self.app, prefix),
            publish=(publish or self.publish) if prefix is None else None,
            queue_prefix=prefix or "",
        )

    @property
    def publishes_in_gate(self) -> bool:
        """Whether the gate's scripts publish runs themselves: its Redis is the broker, and the app accepts JSON."""
        return self._queue_prefix is not None

    @property
    def _queue_prefix(self) -> str | None:
        """What kombu puts before a queue's name in the gate's Redis; None if runs are published the ordinary way."""
        if self.eager or message.serializer_of(self.app) != "json":
            return None
        return message.shared_prefix(self.app, self.settings.redis_url, self.keys.queues)

    def cursors_of(self, pipeline: str) -> Cursors:
        """Return the cursors over the source that a pipeline reads.

        Raises:
            UnknownPipeline: no loaded module declares it.
        """
        source, settings = self.pipelines[pipeline].source, self.settings
        if source not in self._cursors:
            self._cursors[source] = Cursors(
                self.engine,
                source,
                runner_ttl=settings.runner_ttl,
                transaction_timeout=settings.transaction_timeout,
            )
        return self._cursors[source]

    def records_of(self, pipeline: str) -> Records:
        """Return the messages of a pipeline's source; for an undeclared pipeline, those under its name."""
        return Records(self.engine, self.source_of(pipeline))

    @cached_property
    def _cursors(self) -> dict[str, Cursors]:
        return {}

    @cached_property
    def paces(self) -> defaultdict[str, Pace]:
        """How long recent calls of each pipeline's handler took in this process."""
        return defaultdict(Pace)

    @cached_property
    def lateness(self) -> defaultdict[str, Histogram]:
        """How late this process's ticker found the deadlines of each pipeline."""
        return defaultdict(Histogram)

    @cached_property
    def resting(self) -> dict[str, float]:
        """The pipelines whose tick failed in this process, and until when (`time.monotonic`) they are skipped."""
        return {}

    @cached_property
    def turns_given(self) -> deque[float]:
        """When this process's ticker recently gave tenants their turn, in seconds of the monotonic clock."""
        return deque()

    @cached_property
    def orphaned(self) -> Counter[str]:
        """How many orphaned tenants of each pipeline got a run from the reconciler of this process."""
        return Counter()

    @cached_property
    def changes(self) -> Changes:
        """The changes that poller and reconciler of each pipeline have not seen yet."""
        return Changes(self.engine)

    def pending(self, pipeline: str) -> Iterator[str]:
        """Return the tenants with pending records, each once, whether or not they are due."""
        declared = self.pipelines[pipeline]
        self.register(declared)
        return self.changes.pending(pipeline, declared.source)

    @cached_property
    def heartbeat(self) -> Heartbeat:
        """The heartbeat of this process's runs."""
        return Heartbeat(self.settings.runner_ttl)

    @cached_property
    def event_loop(self) -> EventLoop:
        """The event loop of this process's handlers."""
        from taskbridge.process.event_loop import EventLoop  # noqa: PLC0415 - not needed to read

        return EventLoop()

    @cached_property
    def eager(self) -> bool:
        """Whether Celery, and so an event, runs inline (`task_always_eager`); evaluated at the first event."""
        return bool(self.app.conf.task_always_eager) and not self.runs_by_hand

    def check(self, *, redis: bool = True) -> None:
        """Connect to everything, so that a worker that could not work fails before it takes a message.

        Raises:
            TaskBridgeError: as `LightRuntime.check`, or a server cannot be used.
        """
        with translated_errors():
            super().check(redis=redis)

    def check_owner_once(self) -> None:
        """Raise ForeignGate if workers of another database use the gate; errors of the servers are ignored.

        Once the gate belongs to this database, it is not checked again; until then it is checked once a minute.
        """
        if self.eager or time.monotonic() < self._owner_known_until:
            return
        foreign = None
        try:
            with translated_errors(), deadline(self.settings.notify_timeout):
                owner = Inspector(self.event_redis, self.keys).owner()
                if owner is not None:
                    foreign = owner[1] if owner[0] != self.deployment[0] else ""
        except Exception as error:
            # The database cannot always be identified: `pg_control_system` may be revoked or missing.
            if not isinstance(error, TaskBridgeError) and driver_error(error) is None:
                raise
        if foreign:
            raise ForeignGate(foreign, self.keys.owner)
        self._owner_known_until = time.monotonic() + OWNER_REST if foreign is None else math.inf

    def own_gate(self) -> None:
        """Take the gate for this deployment, or keep it; a worker repeats this as long as it runs.

        Raises:
            ForeignGate: another deployment owns it, and its workers are running, ended recently or have left work.
        """
        other, began_ms = self.gate.own(*self.deployment, self._owns_since_ms, self.pipelines.names())
        if other:
            raise ForeignGate(other, self.keys.owner)
        self._owns_since_ms = began_ms

    def publish(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run the ordinary way.

        If the broker cannot be reached, this is only logged; the run is published again when its deadline passes.
        """
        task, arguments = message.RUN_TASK, (pipeline, tenant, token)
        options: dict[str, Any] = {
            "queue": self.keys.queue(queue),
            "argsrepr": message.arguments_text(*arguments),
            "serializer": message.serializer_of(self.app),
        }
        if self.eager:
            self.app.tasks[task].apply_async(arguments, **options)
            return
        if self.runs_by_hand and self.app.conf.task_always_eager:
            # Celery would do the run at once. The test finds the run without its message.
            return
        if time.monotonic() < self._broker_away_until:
            return
        ends = time.monotonic() + BROKER_TIMEOUT
        for last in (False, True):
            try:
                with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
                    self.app.tasks[task].apply_async(arguments, producer=producer, retry=False, **options)
            except Exception as error:
                # An open connection may lead to a server that has been replaced.
                self._drop_producers()
                if last or time.monotonic() >= ends:
                    log.warning(
                        "a run of %s is not published: the broker cannot be used (%s); it is retried at its deadline",
                        pipeline,
                        type(error).__name__,
                    )
                    self._broker_away_until = time.monotonic() + BROKER_REST
                    self.unpublished = error
                    return
            else:
                return

    def publish_for_event(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run the ordinary way in a thread, and wait no longer than an event may take.

        After one that took longer, runs within the next second are not waited for: a request may notify several times.
        If too many are in progress, the run is left to its deadline.
        """
        seconds = 0.0 if time.monotonic() < self._broker_slow_until else self.settings.notify_timeout
        ends = time.monotonic() + seconds
        if not self._publishing.acquire(timeout=seconds):
            self._broker_slow_until = time.monotonic() + BROKER_REST
            return
        ended: Future[None] = Future()

        def publish() -> None:
            try:
                self.publish(queue, pipeline, tenant, token)
                ended.set_result(None)
            except BaseException as error:
                ended.set_exception(error)
            finally:
                self._publishing.release()

        # The process does not wait for this thread when it exits.
        thread = Thread(target=copy_context().run, args=(publish,), name="taskbridge-publishing", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no threads (since Python 3.12), or the machine has none left.
            publish()
        try:
            ended.result(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            if seconds:
                self._broker_slow_until = time.monotonic() + BROKER_REST

    @cached_property
    def _producers(self) -> Any:
        """Connections to the broker with a timeout, which those of the app may lack."""
        from kombu.pools import ProducerPool  # noqa: PLC0415 - not needed to read

        conf = self.app.conf
        options = dict(conf.broker_transport_options)
        connection = broker_connection(self.app, write=True, connect_timeout=BROKER_TIMEOUT, transport_options=options)
        if connection.transport.driver_type == "redis":
            options |= {name: min(options.get(name) or math.inf, BROKER_TIMEOUT) for name in _SOCKET_TIMEOUTS}
        # Otherwise kombu waits for 2 s between two attempts, even if the connection is refused.
        options |= {"max_retries": max(0, len(connection.alt) - 1), "interval_start": 0}
        connection.transport_options = options
        limit = conf.broker_pool_limit
        return ProducerPool(connection.Pool(limit), limit=limit, Producer=self.app.amqp.Producer)

    def delete_queues(self) -> None:
        """Delete the queues of runs with their messages, at the end of a test that may have published some."""
        if not self.publishes_in_gate and "_producers" not in vars(self):
            return
        from kombu import Exchange  # noqa: PLC0415 - as above
        from kombu import Queue as KombuQueue  # noqa: PLC0415

        with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
            for name in self.keys.queues:
                queue = KombuQueue(name, Exchange(name), routing_key=name).bind(producer.channel)
                # kombu deletes only what it has declared; the gate's scripts publish without declaring.
                queue.declare()
                queue.delete()

    def _drop_producers(self) -> None:
        producers = self.__dict__.pop("_producers", None)
        if producers is not None:
            with suppress(Exception):
                producers.force_close_all()
            with suppress(Exception):
                producers.connections.force_close_all()

    def close_sessions(self) -> None:
        """Close the open Postgres sessions; new ones are opened when needed."""
        if "changes" in self.__dict__:
            self.changes.close()
        super().close_sessions()

    def close(self) -> None:
        """Close the connections that were opened."""
        self.close_sessions()
        for name in {"redis", "event_redis"} & self.__dict__.keys():
            self.__dict__[name].close()
        for name in {"event_threads", "asking_threads"} & self.__dict__.keys():
            self.__dict__[name].shutdown()
        if "interactive" in self.__dict__:
            self.interactive.close()
        self._drop_producers()

    def forget(self) -> None:
        """Drop what was inherited through a fork, without using the parent's connections."""
        if "engine" in self.__dict__:
            self.engine.dispose(close=False)
        kept = {
            name: self.__dict__[name]
            for name in ("has_own_settings", "slots", "worker", "is_interactive", "taken_from")
        }
        app, settings = self.app, self.settings
        self.__dict__.clear()
        Runtime.__init__(self, app, settings)
        self.__dict__.update(kept)


class _InteractiveRuntime(Runtime):
    """An interactive runtime in a process that does other work too. It shares the Postgres pool of the process."""

    def __init__(self, of: Runtime) -> None:
        super().__init__(of.app, of.settings)
        self._of = of
        self.is_interactive = True

    @property
    def engine(self) -> Engine:
        """The pool of the process."""
        return self._of.engine

    @property
    def pipelines(self) -> Pipelines:
        """The pipelines of the process."""
        return self._of.pipelines


_RUNTIMES: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()


def runtime_of(app: Celery, settings: Settings | None = None) -> Runtime:
    """Return this process's runtime of `app`.

    The first call creates it with `settings`, or with those of the environment; later calls return the same one.
    """
    for hook in BEFORE_USE:
        hook()
    runtime = _RUNTIMES.get(app)
    if runtime is None:
        runtime = _RUNTIMES[app] = Runtime(app, settings or Settings.read())
        runtime.has_own_settings = settings is not None
    elif runtime.pid != os.getpid():
        # This process was forked without Python's hooks.
        runtime.forget()
    return runtime


@contextmanager
def new_runtimes() -> Iterator[None]:
    """Let every app of the process create a new runtime in the block, from the environment at that time.

    At the end of the block these are closed, and the previous runtimes are restored.
    """
    before = dict(_RUNTIMES)
    _RUNTIMES.clear()
    try:
        yield
    finally:
        for runtime in _RUNTIMES.values():
            runtime.close()
        _RUNTIMES.clear()
        _RUNTIMES.update(before)


def reset_runtimes() -> None:
    """Let each app read its settings again on next use, unless settings were passed to it.

    All Postgres sessions of the apps are closed.
    """
    for app, runtime in list(_RUNTIMES.items()):
        if runtime.has_own_settings:
            runtime.close_sessions()
        else:
            runtime.close()
            del _RUNTIMES[app]


def runtimes() -> list[Runtime]:
    """Return the runtimes that this process has created."""
    return list(_RUNTIMES.values())


def keys_of(app: Celery) -> Keys:
    """Return the deployment's keys and queues; with the default prefix if the settings cannot be read.

    That error is reported where the settings are used; raised here, it would block the app's other tasks.
    """
    with suppress(TaskBridgeError):
        return runtime_of(app).keys
    return Keys()


def serves(app: Celery) -> bool:
    """Whether the worker of this process serves one of our queues."""
    return any(name.startswith(OURS) for name in app.amqp.queues.consume_from)


def _forget_all() -> None:
    for runtime in _RUNTIMES.values():
        runtime.forget()


os.register_at_fork(after_in_child=_forget_all)
