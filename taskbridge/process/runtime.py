"""What one process needs to work: the gate, the cursors, the broker. Made when it is first used.

A forked child makes its own: connections are not shared across a fork.
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
from taskbridge.store import Cursors, Records, Changes, driver_error

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from sqlalchemy import Engine

    from taskbridge.declaring.batch import RetryAfter
    from taskbridge.declaring.pipeline import Pipelines
    from taskbridge.gate.gate import Publish
    from taskbridge.process.event_loop import EventLoop
    from taskbridge.process.event_threads import EventThreads

__all__ = ["BEFORE_USE", "Runtime", "new_runtimes", "keys_of", "reset_runtimes", "runtime_of", "runtimes", "serves"]

G = TypeVar("G", bound=Gate)

EVENT_THREADS: Final = 8

log = logging.getLogger(__name__)

BROKER_TIMEOUT: Final = 2.0
"""Seconds that one attempt to publish a run may take where the broker is another server than the gate's."""
BROKER_REST: Final = 1.0
"""Seconds for which nothing is published after an attempt failed, so that many runs do not wait one after the other."""
OWNER_REST: Final = 60.0
"""Seconds for which a producer does not ask again whose gate it is, where nobody's is known."""
BEFORE_USE: Final[list[Callable[[], None]]] = []
"""Called before the runtime of an app is used: a framework may have changed what its settings are read from."""
_SOCKET_TIMEOUTS: Final = ("socket_connect_timeout", "socket_timeout")


class Runtime(LightRuntime):
    """One process's connections and pipelines."""

    runs_by_hand: bool = False
    """Whether a test does the runs itself, so that they wait for it also where Celery runs tasks inline."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        super().__init__(settings)
        self.app = app
        self.slots = 1
        """How many runs can be on at a time in the worker of this process."""
        self.worker = ""
        """The name of the worker of this process; empty outside of one."""
        self.idle_slots: Callable[[], int] = lambda: 1
        """How many of the slots are free for those who wait for their turn."""
        self.taken_from: frozenset[str] = frozenset()
        """The queues from which a slot takes runs by itself: those that the worker served when it started."""
        self.pid = os.getpid()
        self.has_own_settings = False
        """Whether somebody gave the settings, so that they are not read again."""
        self.shut_until = 0.0
        """Until when (`time.monotonic`) messages are retried later without a try, because Postgres was unavailable."""
        self.waits: dict[tuple[str, str], RetryAfter] | None = None
        """What handlers asked to wait for last, by pipeline and tenant, where a test looks; None: nobody does."""
        self.is_interactive = False
        """Whether an event may take as long as any other call."""
        self.events_rest_until = 0.0
        """Until when (`time.monotonic`) no event is sent, because Redis did not answer in time."""
        self.unpublished: Exception | None = None
        """Why a run of this process was not published; None: all were."""
        self._owner_known_until = 0.0
        self._owns_since_ms = 0
        self._broker_away_until = 0.0
        self._broker_slow_until = 0.0
        self._publishing = BoundedSemaphore(EVENT_THREADS)

    @property
    def most_in_flight(self) -> int:
        """How many runs may be queued by turns, and how many by reminders.

        So a first event that is queued behind them waits for about one run of each slot.
        """
        return (self.slots + 1) // 2

    @cached_property
    def gate(self) -> Gate:
        """The gate. Its scripts publish runs themselves where it shares its Redis with the broker."""
        return self.make_gate(Gate)

    @cached_property
    def redis(self) -> Redis:
        """The gate's client."""
        return redis_of(self.settings, interactive=self.is_interactive)

    @cached_property
    def interactive(self) -> Runtime:
        """The same, with clients of its own for Redis that wait no longer than a person does."""
        return _InteractiveRuntime(self)

    @cached_property
    def event_gate(self) -> Gate:
        """The gate for events: who saved something waits no longer for Redis than `taskbridge.gate.deadline` says."""
        return self.gate if self.is_interactive else self.make_gate(Gate, self.event_redis, self.publish_for_event)

    @cached_property
    def event_redis(self) -> Redis:
        """The client of `event_gate`."""
        return redis_of(self.settings, self.settings.notify_timeout)

    @cached_property
    def event_threads(self) -> EventThreads:
        """Threads in which events are sent whose producer is a coroutine; few, for none of them waits long."""
        from taskbridge.process.event_threads import EventThreads  # noqa: PLC0415 - not for who only looks

        return EventThreads(EVENT_THREADS, "taskbridge-events")

    @cached_property
    def asking_threads(self) -> EventThreads:
        """Threads for events of which Postgres knows the delay: where it is slow, no other event waits for it."""
        from taskbridge.process.event_threads import EventThreads  # noqa: PLC0415 - not for who only looks

        return EventThreads(EVENT_THREADS, "taskbridge-delays")

    def make_gate(self, kind: type[G], client: Redis | None = None, publish: Publish | None = None) -> G:
        """Return a gate of this class, on the Redis and with the keys of this process."""
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
        """What kombu puts before a queue's name in the gate's Redis; None where runs are published the ordinary way."""
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
        """Return the messages of a pipeline's source; of a pipeline that nobody declares, those under its name."""
        return Records(self.engine, self.source_of(pipeline))

    @cached_property
    def _cursors(self) -> dict[str, Cursors]:
        return {}

    @cached_property
    def paces(self) -> defaultdict[str, Pace]:
        """How long the calls of each pipeline's handler took lately, in this process."""
        return defaultdict(Pace)

    @cached_property
    def lateness(self) -> defaultdict[str, Histogram]:
        """How late this process's ticker found the deadlines of each pipeline."""
        return defaultdict(Histogram)

    @cached_property
    def resting(self) -> dict[str, float]:
        """The pipelines whose tick failed in this process, and until when (`time.monotonic`) they are left alone."""
        return {}

    @cached_property
    def turns_given(self) -> deque[float]:
        """When this process's ticker gave tenants their turn lately, in seconds of the monotonic clock."""
        return deque()

    @cached_property
    def orphaned(self) -> Counter[str]:
        """How many orphaned tenants of each pipeline the base rounds of this process gave a run."""
        return Counter()

    @cached_property
    def changes(self) -> Changes:
        """How far all records of each pipeline have been looked at."""
        return Changes(self.engine)

    def pending(self, pipeline: str) -> Iterator[str]:
        """Return the tenants with pending records, each once; whether they are due does not matter."""
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
        from taskbridge.process.event_loop import EventLoop  # noqa: PLC0415 - not for who only looks

        return EventLoop()

    @cached_property
    def eager(self) -> bool:
        """Whether Celery, and so an event, works inline (`task_always_eager`), as it is at the first event."""
        return bool(self.app.conf.task_always_eager) and not self.runs_by_hand

    def check(self, *, redis: bool = True) -> None:
        """Connect everything, so that a worker that could not work says so before it takes a message.

        Raises:
            TaskBridgeError: as `LightRuntime.check`, or a server cannot be used.
        """
        with translated_errors():
            super().check(redis=redis)

    def check_owner_once(self) -> None:
        """Raise ForeignGate if workers of another database use the gate; no other error, whatever a server answers.

        Once it belongs to this one, it is not asked again, and until then once a minute.
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
            # Which database this is cannot be asked everywhere: `pg_control_system` may be revoked, or be missing.
            if not isinstance(error, TaskBridgeError) and driver_error(error) is None:
                raise
        if foreign:
            raise ForeignGate(foreign, self.keys.owner)
        self._owner_known_until = time.monotonic() + OWNER_REST if foreign is None else math.inf

    def own_gate(self) -> None:
        """Take the gate for this deployment, or keep it; a worker does so as long as it runs.

        Raises:
            ForeignGate: another deployment has it, and its workers run or have left work, or ended lately.
        """
        other, began_ms = self.gate.own(*self.deployment, self._owns_since_ms, self.pipelines.names())
        if other:
            raise ForeignGate(other, self.keys.owner)
        self._owns_since_ms = began_ms

    def publish(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run the ordinary way.

        Where the broker cannot be reached, log that; the run's deadline publishes it again.
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
            # Celery would do the run at once. The test finds it without its message.
            return
        if time.monotonic() < self._broker_away_until:
            return
        ends = time.monotonic() + BROKER_TIMEOUT
        for last in (False, True):
            try:
                with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
                    self.app.tasks[task].apply_async(arguments, producer=producer, retry=False, **options)
            except Exception as error:
                # An open connection may lead to a server that another has replaced.
                self._drop_producers()
                if last or time.monotonic() >= ends:
                    log.warning(
                        "a run of %s is not published: the broker cannot be used (%s); its deadline publishes again",
                        pipeline,
                        type(error).__name__,
                    )
                    self._broker_away_until = time.monotonic() + BROKER_REST
                    self.unpublished = error
                    return
            else:
                return

    def publish_for_event(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run the ordinary way, and wait for it no longer than for an event; it goes on in its thread.

        Where one took longer, those that come within a second are not waited for: a request may notify several times.
        Where too many are under way, it is left to the run's deadline.
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

        # No process waits for this thread when it ends.
        thread = Thread(target=copy_context().run, args=(publish,), name="taskbridge-publishing", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending, which takes no new thread since Python 3.12, or the machine has none left.
            publish()
        try:
            ended.result(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            if seconds:
                self._broker_slow_until = time.monotonic() + BROKER_REST

    @cached_property
    def _producers(self) -> Any:
        """Connections to the broker with a time-out, which those of the app may lack."""
        from kombu.pools import ProducerPool  # noqa: PLC0415 - not for who only looks

        conf = self.app.conf
        options = dict(conf.broker_transport_options)
        connection = broker_connection(self.app, write=True, connect_timeout=BROKER_TIMEOUT, transport_options=options)
        if connection.transport.driver_type == "redis":
            options |= {name: min(options.get(name) or math.inf, BROKER_TIMEOUT) for name in _SOCKET_TIMEOUTS}
        # Else kombu waits for 2 s between two tries, also where the connection is refused.
        options |= {"max_retries": max(0, len(connection.alt) - 1), "interval_start": 0}
        connection.transport_options = options
        limit = conf.broker_pool_limit
        return ProducerPool(connection.Pool(limit), limit=limit, Producer=self.app.amqp.Producer)

    def delete_queues(self) -> None:
        """Delete the queues of runs with their messages, at the end of a test that may have published any."""
        if not self.publishes_in_gate and "_producers" not in vars(self):
            return
        from kombu import Exchange  # noqa: PLC0415 - as above
        from kombu import Queue as KombuQueue  # noqa: PLC0415

        with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
            for name in self.keys.queues:
                queue = KombuQueue(name, Exchange(name), routing_key=name).bind(producer.channel)
                # kombu deletes only what it has declared; the gate's scripts publish without that.
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
        """Close the sessions of Postgres that were opened; others are opened where they are needed."""
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
        """Drop what was inherited through a fork, without talking on the parent's connections."""
        if "engine" in self.__dict__:
            self.engine.dispose(close=False)
        kept = {name: self.__dict__[name] for name in ("has_own_settings", "slots", "worker", "is_interactive", "taken_from")}
        app, settings = self.app, self.settings
        self.__dict__.clear()
        Runtime.__init__(self, app, settings)
        self.__dict__.update(kept)


class _InteractiveRuntime(Runtime):
    """A runtime for people in a process that does other work too. Postgres is used by the pool of that."""

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

    The first call makes it, with `settings`, else with those of the environment; later ones return the same.
    """
    for follow in BEFORE_USE:
        follow()
    found = _RUNTIMES.get(app)
    if found is None:
        found = _RUNTIMES[app] = Runtime(app, settings or Settings.read())
        found.has_own_settings = settings is not None
    elif found.pid != os.getpid():
        # This process was forked without Python's hooks.
        found.forget()
    return found


@contextmanager
def new_runtimes() -> Iterator[None]:
    """Let every app of the process make a new runtime in the block, from the environment as it is by then.

    At the block's end these are closed, and the apps have those that they had before.
    """
    before = dict(_RUNTIMES)
    _RUNTIMES.clear()
    try:
        yield
    finally:
        for one in _RUNTIMES.values():
            one.close()
        _RUNTIMES.clear()
        _RUNTIMES.update(before)


def reset_runtimes() -> None:
    """Let each app read its settings again when it is next used, unless it was given settings of its own.

    Until then no app keeps a session of Postgres.
    """
    for app, one in list(_RUNTIMES.items()):
        if one.has_own_settings:
            one.close_sessions()
        else:
            one.close()
            del _RUNTIMES[app]


def runtimes() -> list[Runtime]:
    """Return the runtimes that this process has made."""
    return list(_RUNTIMES.values())


def keys_of(app: Celery) -> Keys:
    """Return the deployment's keys and queues; those of the default prefix where the settings cannot be read.

    That is reported where the settings are used. Raised here, it would keep the app's other tasks from being sent.
    """
    with suppress(TaskBridgeError):
        return runtime_of(app).keys
    return Keys()


def serves(app: Celery) -> bool:
    """Whether the worker of this process serves a queue whose name is one of ours."""
    return any(name.startswith(OURS) for name in app.amqp.queues.consume_from)


def _forget_all() -> None:
    for one in _RUNTIMES.values():
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
