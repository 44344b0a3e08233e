"""Events: from a producer's call to a published run, in the producer's own process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.common import tracing
from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.names import check_tenant, check_tenants
from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import TaskBridgeError, Unavailable
from taskbridge.gate import Answer, Gate, Spacing, deadline
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.traces import send_traced

__all__ = [
    "Event",
    "Events",
    "asend",
    "events_of",
    "logged",
    "merge",
    "notify",
    "notify_many",
    "send",
    "send_committed",
    "start",
]

log = logging.getLogger(__name__)

EAGER: Final = Spacing(delay=0)
"""With eager tasks no ticker acts on deadlines, so each event starts a run, which ends when nothing is new."""
AT_ONCE: Final = 500
"""Events per round trip."""
REST: Final = 1.0
"""Seconds after a Redis timeout in which no event is sent, so that a request that sends several waits only once."""
NO_ANSWER: Final = "Redis does not answer in time"

Event = tuple[str, str]
"""Pipeline and tenant."""
Events = Mapping[Event, int | None]
"""Events with the delays of their records in milliseconds, in pipelines with criteria. None: Postgres is asked."""


def notify(app: Celery, tenant: str, pipeline: str = INVOICES, delay_ms: int | None = None) -> Answer:
    """Tell the tenant's runner that there are new records; start a runner if there is none.

    This takes one round trip to Redis, whatever the tenant's state. When it returns, the first event's run is
    published. In a pipeline with criteria, `delay_ms` is the new record's delay; without it Postgres is asked for the
    smallest delay of the waiting records.

    Raises: as `Bridge.notify_many`.
    """
    return send(runtime_of(app), [((pipeline, check_tenant(tenant)), delay_ms)])[0]


def notify_many(app: Celery, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
    """Do what `Bridge.notify_many` does."""
    runtime = runtime_of(app)
    return send(runtime, events_of(runtime, tenants, pipeline))


def events_of(runtime: Runtime, tenants: Iterable[str], pipeline: str) -> list[tuple[Event, int | None]]:
    """Return one event for each tenant.

    Raises: InvalidName, UnknownPipeline as `Bridge.notify_many`.
    """
    checked = check_tenants(tenants)
    name = runtime.pipelines[pipeline].name
    return [((name, tenant), None) for tenant in checked]


def send(runtime: Runtime, events: Sequence[tuple[Event, int | None]]) -> list[Answer]:
    """Send events, each with its delay, and return the gate's answers. All other functions use this one.

    Raises: as `Bridge.notify_many`.
    """
    if runtime.eager:
        return [_inline(runtime, *event) for event, _ in events]
    runtimes = {pipeline: runtime.on(pipeline) for pipeline in {event[0] for event, _ in events}}
    if len({*runtimes.values()}) == 1:
        return _send(next(iter(runtimes.values())), events)
    of_redis = defaultdict[Runtime, list[int]](list)
    for position, (event, _) in enumerate(events):
        of_redis[runtimes[event[0]]].append(position)
    answers: dict[int, Answer] = {}
    failure: TaskBridgeError | None = None
    for each, positions in of_redis.items():
        try:
            answers.update(zip(positions, _send(each, [events[at] for at in positions]), strict=True))
        except TaskBridgeError as error:
            # The events of the other Redis servers are sent.
            failure = error
    if failure is not None:
        raise failure
    return [answers[at] for at in range(len(events))]


def _send(runtime: Runtime, events: Sequence[tuple[Event, int | None]]) -> list[Answer]:
    """Send events of pipelines on one Redis."""
    if time.monotonic() < runtime.events_rest_until:
        raise Unavailable(NO_ANSWER, f"sending resumes within {REST:g} s; workers find the records without an event")
    answers: list[Answer] = []
    with translated_errors():
        gate, spaced = runtime.event_gate, _spaced(runtime, events)
        try:
            for start in range(0, len(spaced), AT_ONCE):
                part = spaced[start : start + AT_ONCE]
                with deadline(runtime.settings.notify_timeout):
                    answers += send_traced(gate, part) if tracing.loaded_api() else gate.notify_many(part)
        except redis.TimeoutError:
            runtime.events_rest_until = time.monotonic() + REST
            raise
    return answers


async def asend(runtime: Runtime, events: Sequence[tuple[Event, int | None]]) -> list[Answer]:
    """Send events in threads, so that the event loop is not blocked, and wait no longer than `send` waits for Redis.

    Events that need their delay from Postgres have threads of their own, so that no other event waits for Postgres.

    Raises: as `Bridge.notify_many`; Unavailable also if too many other events wait for a thread.
    """
    answers: dict[int, Answer] = {}

    async def send_each() -> None:
        for asks, threads in ((False, runtime.event_threads), (True, runtime.asking_threads)):
            positions = [at for at, event in enumerate(events) if _asks(runtime, *event) is asks]
            if positions:
                sending = runtime.send_in(threads, send, runtime, [events[at] for at in positions])
                sent = await asyncio.wrap_future(sending)
                answers.update(zip(positions, sent, strict=True))

    round_trips = -(-len(events) // AT_ONCE)
    try:
        await asyncio.wait_for(send_each(), None if runtime.eager else runtime.settings.notify_timeout * round_trips)
    except TimeoutError as error:
        raise Unavailable("Redis, or Postgres if it was asked for a delay, is too slow") from error
    return [answers[at] for at in range(len(events))]


def send_committed(app: Celery, events: Events) -> None:
    """Send the events of a committed transaction; failures are only logged."""
    runtime = runtime_of(app)
    with logged(runtime, events):
        send(runtime, [*events.items()])


@contextmanager
def logged(runtime: Runtime, events: Iterable[Event], throttle: LogThrottle | None = None) -> Iterator[None]:
    """Log a warning instead of raising if events are not sent: the caller's records are committed.

    With `throttle`, at most one line is logged per minute.
    """
    try:
        yield
    except SoftTimeLimitExceeded:
        # It is meant for the caller's task.
        raise
    except Exception as error:
        if runtime.eager:
            raise
        if throttle is not None and not throttle.counted("events"):
            return
        (pipeline, tenant), *others = events
        recipients = f"tenant {tenant!r} of {pipeline}" + (f" and {len(others)} others" if others else "")
        if isinstance(error, Unavailable):
            log.warning("no event for %s: %s; a worker finds the records without it", recipients, error)
        else:
            log.error("no event for %s; a worker finds the records without it", recipients, exc_info=error)


def merge(into: dict[Event, int | None], events: Events) -> None:
    """Add events; if there are two for one tenant, the smaller delay counts."""
    for event, delay in events.items():
        other = into.get(event, delay)
        into[event] = None if delay is None or other is None else min(delay, other)


def start(app: Celery, tenants: Sequence[str], pipeline: str = INVOICES, gate: Gate | None = None) -> None:
    """Notify the tenants, and end the wait of those held by a back-off or by a pause that has ended.

    `gate`: an interactive one; None: the app's own, which waits longer for Redis.

    Raises: as `Bridge.notify_many`.
    """
    gate = gate or runtime_of(app).on(pipeline).gate
    notify_many(app, tenants, pipeline)
    with translated_errors():
        runners = zip(tenants, gate.look(pipeline, tenants), strict=True)
        if held := [tenant for tenant, runner in runners if runner.held]:
            gate.expire(pipeline, held, early=True)


def _inline(runtime: Runtime, pipeline: str, tenant: str) -> Answer:
    # There is no ticker to end a tenant's wait after a failure, or to give it its turn.
    with translated_errors():
        name = runtime.pipelines[pipeline].name
        runtime.gate.expire(name, [tenant])
        runtime.gate.publish_waiting([f"{name}:{tenant}"])
        return send_traced(runtime.gate, [(name, tenant, EAGER)])[0]


def _asks(runtime: Runtime, event: Event, delay_ms: int | None) -> bool:
    """Whether Postgres has to be asked for the delay of an event."""
    return delay_ms is None and not runtime.eager and runtime.pipelines[event[0]].criteria is not None


def _spaced(runtime: Runtime, events: Sequence[tuple[Event, int | None]]) -> list[tuple[str, str, Spacing]]:
    """Return pipeline, tenant and spacing of each event, with one query per pipeline with criteria."""
    without_delay = defaultdict[str, set[str]](set)
    for event, delay_ms in events:
        if _asks(runtime, event, delay_ms):
            without_delay[event[0]].add(event[1])
    delays: dict[Event, int] = {}
    for pipeline, tenants in without_delay.items():
        criteria = runtime.pipelines[pipeline].criteria
        smallest = runtime.tenants_of(pipeline).delays(pipeline, tenants, criteria.smallest_ms) if criteria else {}
        delays |= {(pipeline, tenant): delay_ms for tenant, delay_ms in smallest.items()}
    spaced = []
    for event, given_ms in events:
        declared = runtime.pipelines[event[0]]
        delay_ms = delays.get(event) if given_ms is None else given_ms
        if declared.criteria is None or delay_ms is None:
            spaced.append((*event, declared.policy.spacing))
        else:
            spaced.append((*event, declared.criteria.spacing_for(delay_ms)))
    return spaced
