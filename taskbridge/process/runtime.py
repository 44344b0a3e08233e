"""The runtime of a process: its gate, cursors and connections, created on first use.

A forked child creates its own: connections are not shared across a fork.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from redis import RedisError

# Their names are imported on first use: a process that only reads needs neither scripts nor cursors.
import taskbridge.gate
import taskbridge.store
from taskbridge.common.histogram import Histogram
from taskbridge.common.sentinel import stay
from taskbridge.common.server_errors import REDIS_AWAY, note_address, translated_errors
from taskbridge.declaring.pipeline import DECLARED, Pipeline, Pipelines
from taskbridge.errors import ConfigurationError, ForeignGate, TaskBridgeError, Unavailable
from taskbridge.gate.inspector import Inspector
from taskbridge.gate.keys import OURS, Keys
from taskbridge.handlers.journal import JOURNAL
from taskbridge.process.connections import CHECKED_FIRST, redis_of
from taskbridge.process.heartbeat import Heartbeat
from taskbridge.process.pace import Paces
from taskbridge.settings import Settings, redis_variable
from taskbridge.store.db import check_version, connect, driver_error, parameters_of

if TYPE_CHECKING:
    from celery import Celery
    from redis import Redis
    from sqlalchemy import Engine

    from taskbridge.gate import Gate
    from taskbridge.gate.gate import Publish
    from taskbridge.process.event_loop import EventLoop
    from taskbridge.process.publisher import Publisher
    from taskbridge.store import Changes, Cursors, Pauses, Quarantine, Records, Tenants

__all__ = [
    "ALSO_CHECKED",
    "BEFORE_USE",
    "Runtime",
    "keys_of",
    "new_runtimes",
    "reset_runtimes",
    "runtime_of",
    "runtimes",
    "serves",
]

G = TypeVar("G", bound="Gate")
T = TypeVar("T")

EVENT_THREADS: Final = 8
MOST_WAITING: Final = 10_000
"""How many calls that send events may wait in one process, or be in progress; more are refused."""
OWNER_REST: Final = 60.0
"""Seconds after which a producer checks again who owns the gate, if it had no owner."""
ALSO_CHECKED: Final[list[Callable[[Settings], None]]] = []
"""Further checks before a process starts work, such as those of a framework; each raises an error if it fails."""
BEFORE_USE: Final[list[Callable[[], None]]] = []
"""Called before the runtime of an app is used: a framework may have changed the source of the settings."""


class Runtime:
    """The connections and pipelines of one process.

    Args:
        settings: the settings of this process.
        app: the app that publishes and does the runs. None: this process does neither, and does not load Celery.
    """

    runs_by_hand: bool = False
    """Whether a test does the runs itself, so that they wait for it even if Celery runs tasks inline."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self.settings = settings
        self._app = app
        self.pid = os.getpid()
        self.has_own_settings = False
        """Whether the settings were passed in, so that they are not read again."""
        self.is_interactive = app is None
        """Whether a person waits for its calls. Events may then take as long as any other call."""
        self.slots = 1
        """How many runs the worker of this process can do at a time."""
        self.worker = ""
        """The name of the worker of this process; empty outside of a worker."""
        self.idle_slots: Callable[[], int] = lambda: 1
        """Returns how many slots are free for tenants in the fair queue."""
        self.busy_slots: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns how many slots of the worker of this process are busy, and how many there are."""
        self.serves: frozenset[str] = frozenset()
        """The queues that the worker of this process served when it started."""
        self.taken_from: frozenset[str] = frozenset()
        """Those of them from which a slot takes runs itself."""
        self.paces: defaultdict[str, Paces] = defaultdict(Paces)
        """How long recent calls of each pipeline's handler took in this process."""
        self.lateness: defaultdict[str, Histogram] = defaultdict(Histogram)
        """How late this process's ticker found the deadlines of each pipeline."""
        self.resting: dict[str, float] = {}
        """The pipelines whose tick failed in this process, and until when (`time.monotonic`) they are skipped."""
        self.turns_given: deque[float] = deque()
        """When this process's ticker recently gave tenants their turn, in seconds of the monotonic clock."""
        self.progress: dict[str, float] = {}
        """When each thread of this process's worker last made progress, by its name (`time.monotonic`)."""
        self.orphaned: Counter[str] = Counter()
        """How many orphaned tenants of each pipeline got a run from the reconciler of this process."""
        self.shut_until = 0.0
        """Until when (`time.monotonic`) messages are retried later without an attempt: Postgres was unavailable."""
        self.events_rest_until = 0.0
        """Until when (`time.monotonic`) no event is sent, because Redis did not answer in time."""
        self.unsent: set[Future[Any]] = set()
        """The calls in threads that send events."""
        self._main: Runtime | None = None
        """The runtime of this process's own Redis; None: this is it."""
        self._by_url: dict[str, Runtime] = {}
        self._known: tuple[tuple[bool, list[Pipeline]], dict[Runtime, list[str]]] | None = None
        """What `by_redis` returned last, and for which pipelines: all of them are asked for several times per run."""
        self._registered: dict[str, str] = {}
        self._cursors: dict[str, Cursors] = {}
        self._owner_known_until = 0.0
        self._owns_since_ms = 0

    @property
    def app(self) -> Celery:
        """The app, without which a process can neither notify nor run."""
        if self._app is None:
            raise RuntimeError("this runtime has no app")
        return self._app

    def note_progress(self) -> None:
        """Note that the current thread, one of the worker's own, makes progress: it succeeds or fails, and goes on."""
        self.progress[threading.current_thread().name] = time.monotonic()

    @property
    def takes_first_events(self) -> bool:
        """Whether this worker serves the queue of first events."""
        return self.keys.queues[0] in self.serves

    @property
    def takes_first_events_only(self) -> bool:
        """Whether this worker serves the queue of first events and not that of continuations."""
        return self.takes_first_events and self.keys.queues[1] not in self.serves

    @property
    def most_in_flight(self) -> int:
        """How many runs of turns, and how many of reminders, may be queued.

        So a first event that is queued behind them waits for about one run per slot.
        """
        return (self.slots + 1) // 2

    @cached_property
    def pipelines(self) -> Pipelines:
        """The pipelines declared by the modules of TASKBRIDGE_PIPELINES; by default, the journal for `invoices`.

        If there are other pipelines, the journal is left out: it would take invoices meant for a handler of another
        process.

        Raises:
            ConfigurationError: a module cannot be imported, or none of them declares a pipeline.
        """
        modules = self.settings.pipelines
        DECLARED.load(modules)
        if not modules:
            return DECLARED.beside(JOURNAL)
        if not DECLARED.names():
            raise ConfigurationError(
                f"TASKBRIDGE_PIPELINES names {', '.join(modules)}, but no pipeline is declared there: "
                "decorate a handler with `@taskbridge.pipeline`, or leave the variable out for the built-in journal"
            )
        return DECLARED

    def on(self, pipeline: str) -> Runtime:
        """Return the runtime of the Redis that a pipeline is on: this one, or another of the same app and database.

        In a test that does the runs itself, and with eager tasks, all pipelines are on one Redis.

        Raises:
            UnknownPipeline: no loaded module declares it.
            ConfigurationError: the URL of its Redis is not set.
        """
        settings, name = self.settings, self.pipelines[pipeline].redis
        if name == settings.redis or self.runs_by_hand or (self._app is not None and self.eager):
            return self
        url = settings.url_of(name)
        if url == settings.gate_url:
            return self
        if url not in self._by_url:
            self._by_url[settings.gate_url] = self
            other = Runtime(replace(settings, redis=name), self._app)
            other._main, other._by_url = self, self._by_url
            other.pipelines, other.is_interactive = self.pipelines, self.is_interactive
            # Another thread may have been first.
            self._by_url.setdefault(url, other)
        return self._by_url[url]

    def by_redis(self) -> dict[Runtime, list[str]]:
        """Return this runtime and those of the other Redis servers, each with the names of its pipelines, sorted.

        Raises:
            ConfigurationError: the URL of a pipeline's Redis is not set.
        """
        declared = self.runs_by_hand, [*self.pipelines]
        if self._known is None or self._known[0] != declared:
            found: dict[Runtime, list[str]] = {self: []}
            for name in self.pipelines.names():
                found.setdefault(self.on(name), []).append(name)
            self._known = declared, found
        return self._known[1]

    def names(self) -> list[str]:
        """Return the names of the pipelines on this Redis, sorted; raises as `by_redis`."""
        return self.by_redis()[self]

    @property
    def broker(self) -> dict[str, Any]:
        """Options of a connection to the broker of this Redis; empty: it is the app's own."""
        if self._main is None and not self.settings.redis:
            return {}
        broker, options = {"url": self.settings.broker}, self.settings.broker_options
        return broker | ({"transport_options": options, "failover_strategy": stay} if options else {})

    @property
    def keys(self) -> Keys:
        """The deployment's keys and queues."""
        return Keys(self.settings.key_prefix)

    @cached_property
    def redis(self) -> Redis:
        """The client of `gate`."""
        return redis_of(self.settings, interactive=self.is_interactive)

    @cached_property
    def event_redis(self) -> Redis:
        """The client of `event_gate`."""
        return redis_of(self.settings, self.settings.notify_timeout)

    @cached_property
    def interactive_redis(self) -> Redis:
        """The client of `interactive_gate`."""
        return redis_of(self.settings, interactive=True)

    @cached_property
    def gate(self) -> Gate:
        """The gate. Its scripts publish runs themselves if it shares its Redis with the broker."""
        return self.make_gate(taskbridge.gate.Gate)

    @cached_property
    def event_gate(self) -> Gate:
        """The gate for events: producers wait for Redis no longer than `taskbridge.gate.deadline` allows."""
        if self.is_interactive:
            return self.gate
        return self.make_gate(taskbridge.gate.Gate, self.event_redis, self.publisher.publish_for_event)

    @cached_property
    def interactive_gate(self) -> Gate:
        """The gate for interactive use, in a process that does other work too."""
        return self.gate if self.is_interactive else self.make_gate(taskbridge.gate.Gate, self.interactive_redis)

    @property
    def inspector(self) -> Inspector:
        """The gate's queries, for interactive use; without an app, it does not know the broker's queues."""
        return Inspector(self.redis, self.keys) if self._app is None else self.interactive_gate

    def make_gate(self, kind: type[G], client: Redis | None = None, publish: Publish | None = None) -> G:
        """Return a gate of this class, with the Redis and the keys of this process."""
        from taskbridge.gate.message import lua_message  # noqa: PLC0415 - not needed to read

        settings, prefix = self.settings, self._queue_prefix
        return kind(
            client or self.redis,
            self.keys,
            taskbridge.gate.Timing(round(settings.runner_ttl * 1000), round(settings.republish_after * 1000)),
            message=None if prefix is None else lua_message(self.app, prefix),
            publish=(publish or self.publisher.publish) if prefix is None else None,
            queue_prefix=prefix or "",
        )

    @property
    def publishes_in_gate(self) -> bool:
        """Whether the gate's scripts publish runs themselves: its Redis is the broker, and the app accepts JSON."""
        return self._queue_prefix is not None

    @property
    def _queue_prefix(self) -> str | None:
        """What kombu puts before a queue's name in the gate's Redis; None if runs are published the ordinary way."""
        from taskbridge.gate import message  # noqa: PLC0415 - not needed to read

        if self.eager or message.serializer_of(self.app) != "json":
            return None
        return message.shared_prefix(self.app, self.settings.gate_url, self.keys.queues, **self.broker)

    @cached_property
    def publisher(self) -> Publisher:
        """What publishes runs if the gate's scripts do not."""
        from taskbridge.process.publisher import Publisher  # noqa: PLC0415 - not needed to read

        timeout = self.settings.notify_timeout
        return Publisher(self.app, self.keys, timeout, self.broker, runs_by_hand=self.runs_by_hand)

    @cached_property
    def eager(self) -> bool:
        """Whether Celery, and so an event, runs inline (`task_always_eager`); evaluated at the first event."""
        return bool(self.app.conf.task_always_eager) and not self.runs_by_hand

    @cached_property
    def engine(self) -> Engine:
        """The pool of connections to Postgres."""
        if self._main is not None:
            return self._main.engine
        settings = self.settings
        if not settings.postgres_url:
            raise ConfigurationError("TASKBRIDGE_POSTGRES_URL is not set: set it, or start `taskbridge up`")
        for check in CHECKED_FIRST:
            check(settings)
        parameters = parameters_of(settings.postgres_url)
        note_address("Postgres", parameters.get("host") or "localhost", parameters.get("port") or "5432")
        return connect(settings.postgres_url, settings.schema, statement_timeout=settings.statement_timeout)

    def source_of(self, pipeline: str) -> str:
        """Return the source that a pipeline reads; for an undeclared pipeline, its name."""
        return self.pipelines[pipeline].source if pipeline in self.pipelines.names() else pipeline

    def tenants_of(self, pipeline: str) -> Tenants:
        """Return the tenants of the source that a pipeline reads.

        Raises:
            UnknownPipeline: no loaded module declares it.
        """
        return taskbridge.store.Tenants(self.engine, self.pipelines[pipeline].source)

    def quarantine_of(self, pipeline: str) -> Quarantine:
        """Return the quarantine of the source that a pipeline reads; raises as `tenants_of`."""
        return taskbridge.store.Quarantine(self.engine, self.pipelines[pipeline].source)

    def cursors_of(self, pipeline: str) -> Cursors:
        """Return the cursors over the source that a pipeline reads.

        Raises:
            UnknownPipeline: no loaded module declares it.
        """
        source, settings = self.pipelines[pipeline].source, self.settings
        if source not in self._cursors:
            self._cursors[source] = taskbridge.store.Cursors(
                self.engine,
                source,
                runner_ttl=settings.runner_ttl,
                transaction_timeout=settings.transaction_timeout,
            )
        return self._cursors[source]

    def records_of(self, pipeline: str) -> Records:
        """Return the messages of a pipeline's source; for an undeclared pipeline, those under its name."""
        return taskbridge.store.Records(self.engine, self.source_of(pipeline))

    @cached_property
    def pauses(self) -> Pauses:
        """The pauses of tenants and pipelines."""
        return taskbridge.store.Pauses(self.engine)

    @cached_property
    def changes(self) -> Changes:
        """The changes that poller and reconciler of each pipeline have not seen yet."""
        listens_at, settings = None, self.settings
        if settings.listen_url:
            listens_at = connect(settings.listen_url, settings.schema, statement_timeout=settings.statement_timeout)
        return taskbridge.store.Changes(self.engine, listens_at=listens_at)

    def pending(self, pipeline: str) -> Iterator[str]:
        """Return the tenants with pending records, each once, whether or not they are due."""
        declared = self.pipelines[pipeline]
        self.register(declared)
        return self.changes.pending(pipeline, declared.source)

    def register(self, pipeline: Pipeline) -> None:
        """Register the pipeline in the database, once per process.

        Raises:
            InvalidPolicy: it has read another source so far.
        """
        if self._registered.get(pipeline.name) != pipeline.source:
            taskbridge.store.register_pipeline(self.engine, pipeline.name, pipeline.source, pipeline.start)
            self._registered[pipeline.name] = pipeline.source

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
    def event_threads(self) -> ThreadPoolExecutor:
        """Threads that send the events of coroutines; a few are enough, since none of them waits long."""
        return ThreadPoolExecutor(EVENT_THREADS, "taskbridge-events")

    @cached_property
    def asking_threads(self) -> ThreadPoolExecutor:
        """Threads for events that need their delay from Postgres, so that no other event waits for Postgres."""
        return ThreadPoolExecutor(EVENT_THREADS, "taskbridge-delays")

    def send_in(self, threads: ThreadPoolExecutor, send: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function that sends events in one of these threads, without waiting for it.

        Raises:
            Unavailable: too many others are waiting.
        """
        if len(self.unsent) >= MOST_WAITING:
            raise Unavailable("too many events are waiting to be sent")
        sending = threads.submit(copy_context().run, send, *arguments)
        self.unsent.add(sending)
        sending.add_done_callback(self.unsent.discard)
        return sending

    def check(self, *, redis: bool = True) -> None:
        """Use every server and every pipeline once, so that a process that could not work fails at its start.

        Of several Redis servers, only this one is checked; with `redis=False` none, for commands that do not need it.

        Raises:
            TaskBridgeError: a pipeline module cannot be imported, a server cannot be used or is too old, the schema is
                not that of this version, the database was restored into another cluster, or the gate belongs to another
                deployment.
        """
        with translated_errors():
            self.names()
            for check in ALSO_CHECKED:
                check(self.settings)
            check_version(self.engine)
            taskbridge.store.check_schema(self.engine)
            taskbridge.store.check_cluster(self.engine)
            if redis:
                self.check_gate()
            for name in self.pipelines.names():
                self.register(self.pipelines[name])

    @cached_property
    def deployment(self) -> tuple[str, str]:
        """A unique identifier of this deployment's database, and a readable name."""
        database, name = taskbridge.store.deployment(self.engine)
        parameters = parameters_of(self.settings.postgres_url)
        return database, f"{name}, at {parameters.get('host') or 'localhost'}:{parameters.get('port') or 5432}"

    def check_gate(self) -> None:
        """Check that this Redis can hold a gate, and that workers of no other database use it.

        Raises:
            redis.RedisError: it does not answer.
            TaskBridgeError: it is too old, or the gate belongs to another deployment.
        """
        self.inspector.check_server()
        self.check_owner()

    def check_gates(self) -> dict[Runtime, RedisError]:
        """Check the gates of all Redis servers side by side, and return the errors of the servers that do not answer.

        Raises:
            TaskBridgeError: as `check_gate`.
        """
        runtimes = [*self.by_redis()]
        with ThreadPoolExecutor(len(runtimes), "taskbridge-gates") as threads:
            errors = threads.map(Runtime._away, runtimes)
        return {runtime: error for runtime, error in zip(runtimes, errors, strict=True) if error is not None}

    def _away(self) -> RedisError | None:
        """Check the gate; return the error if the server does not answer. One that refuses is left to what needs it."""
        try:
            self.check_gate()
        except REDIS_AWAY as error:
            return error
        except RedisError:
            pass
        return None

    def check_owner(self) -> None:
        """Raise ForeignGate if workers of another database use the gate."""
        self._refuse_foreign(self.inspector)

    def check_owner_once(self) -> None:
        """Raise ForeignGate if workers of another database use the gate; errors of the servers are ignored.

        Once the gate belongs to this database, it is not checked again; until then it is checked once a minute.
        """
        if self.eager or time.monotonic() < self._owner_known_until:
            return
        runtimes = [self]
        # A URL that is missing is reported where it is needed.
        with suppress(TaskBridgeError):
            runtimes = [*self.by_redis()] if self.settings.redis_urls else runtimes
        owned = [each._is_owned() for each in runtimes]
        self._owner_known_until = math.inf if all(owned) else time.monotonic() + OWNER_REST

    def _is_owned(self) -> bool:
        """Return whether the gate is known to belong to this database; raise ForeignGate if it is another's."""
        try:
            with translated_errors(), taskbridge.gate.deadline(self.settings.notify_timeout):
                return self._refuse_foreign(Inspector(self.event_redis, self.keys))
        except ForeignGate:
            raise
        except Exception as error:
            # The database cannot always be identified: `pg_control_system` may be revoked or missing.
            if not isinstance(error, TaskBridgeError) and driver_error(error) is None:
                raise
            return False

    def _refuse_foreign(self, inspector: Inspector) -> bool:
        """Return whether the gate has an owner, which is this database; raise ForeignGate if it is another one."""
        owner = inspector.owner()
        if owner is not None and owner[0] != self.deployment[0]:
            raise self._foreign(owner[1])
        return owner is not None

    def own_gate(self) -> None:
        """Take the gate for this deployment, or keep it; a worker repeats this as long as it runs.

        Raises:
            ForeignGate: another deployment owns it, and its workers are running, ended recently or have left work.
        """
        other, began_ms = self.gate.own(*self.deployment, self._owns_since_ms, self.names())
        if other:
            raise self._foreign(other)
        self._owns_since_ms = began_ms

    def _foreign(self, owner: str) -> ForeignGate:
        return ForeignGate(owner, self.keys.owner, redis_variable(self.settings.redis))

    def release_gate(self) -> dict[str, TaskBridgeError]:
        """Let any deployment take the gates; a deployment with running workers takes them back.

        Return the errors of the servers that are unavailable, by the names of the servers.
        """
        errors = {}
        for name in ("", *self.settings.redis_urls):
            settings = replace(self.settings, redis=name)
            try:
                with translated_errors(), redis_of(settings, interactive=self.is_interactive) as client:
                    client.delete(self.keys.owner)
            except TaskBridgeError as error:
                errors[name] = error
        return errors

    def close_sessions(self) -> None:
        """Close the open Postgres sessions; new ones are opened when needed."""
        if "changes" in vars(self):
            self.changes.close()
        if "engine" in vars(self):
            self.engine.dispose()

    def close(self) -> None:
        """Close the connections that were opened, also to the other Redis servers."""
        for other in {*self._by_url.values()} - {self} if self._main is None else ():
            other.close()
        self.close_sessions()
        opened = vars(self)
        for name in {"redis", "event_redis", "interactive_redis", "publisher"} & opened.keys():
            opened[name].close()
        for name in {"event_threads", "asking_threads"} & opened.keys():
            opened[name].shutdown(wait=False)

    def forget(self) -> None:
        """Drop what was inherited through a fork, without using the parent's connections."""
        if "engine" in vars(self):
            self.engine.dispose(close=False)
        names = ("has_own_settings", "slots", "worker", "is_interactive", "serves", "taken_from")
        kept = {name: vars(self)[name] for name in names}
        settings, app = self.settings, self._app
        vars(self).clear()
        Runtime.__init__(self, settings, app)
        vars(self).update(kept)


_RUNTIMES: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()


def runtime_of(app: Celery, settings: Settings | None = None) -> Runtime:
    """Return this process's runtime of `app`.

    The first call creates it with `settings`, or with those of the environment; later calls return the same one.
    """
    for hook in BEFORE_USE:
        hook()
    runtime = _RUNTIMES.get(app)
    if runtime is None:
        runtime = _RUNTIMES[app] = Runtime(settings or Settings.read(), app)
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
