"""Notify: from an event to a published run, in the producer's own process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

import redis
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.common.names import check_tenant, check_tenants
from taskbridge.common.seldom import Seldom
from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.pipeline import INVOICES, Pipeline
from taskbridge.errors import Unavailable
from taskbridge.gate import Answer, Gate, Spacing, hurry
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producing.traces import send_many, send_one

__all__ = [
    "Event",
    "Events",
    "anotify",
    "anotify_quietly",
    "merged",
    "notify",
    "notify_many",
    "notify_quietly",
    "start",
]

log = logging.getLogger(__name__)

EAGER = Spacing(delay=0)
"""Where tasks run inline no ticker acts on deadlines, so each event makes a run, which ends when nothing is new."""
AT_ONCE: Final = 500
"""Events of one round trip."""
REST: Final = 1.0
"""Seconds after a Redis that hung in which no quiet event is tried: a request may send several, and waits for one."""

Event = tuple[str, str]
"""Pipeline and tenant."""
Events = Mapping[Event, int | None]
"""Events with the delays of their records in milliseconds, in pipelines with criteria. None: Postgres is asked."""


def notify(app: Celery, tenant: str, pipeline: str = INVOICES, delay_ms: int | None = None) -> Answer:
    """Tell the tenant's runner that there are new records, and start it if there is none.

    One round trip to Redis, whatever the tenant's state. When this returns, the first event's run is published. In a
    pipeline with criteria `delay_ms` is the new record's delay; without it Postgres is asked for the smallest of those
    that wait.

    Raises:
        InvalidName: the tenant is not allowed.
        UnknownPipeline: no loaded module declares the pipeline.
        Unavailable: Redis cannot be used, or gave no answer for as long as `notify_timeout`. The records are safe:
            workers find them all the same.
    """
    runtime = runtime_of(app)
    check_tenant(tenant)
    with translated_errors():
        declared = runtime.pipelines[pipeline]
        if runtime.eager:
            return _inline(runtime, pipeline, tenant)
        if delay_ms is None:
            delay_ms = _delays(runtime, declared, [tenant]).get(tenant)
        spacing = _spacing(declared, delay_ms)
        with hurry(runtime.settings.notify_timeout):
            return send_one(runtime.event_gate, pipeline, tenant, spacing)


def notify_many(app: Celery, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
    """Notify many tenants, in one round trip to Redis for each 500; a tenant may stand in the list several times.

    Raises: as `notify`. Nothing is sent when a tenant is not allowed.
    """
    runtime = runtime_of(app)
    checked = check_tenants(tenants)
    with translated_errors():
        declared = runtime.pipelines[pipeline]
        if runtime.eager:
            return [send_one(runtime.gate, pipeline, tenant, EAGER) for tenant in checked]
        delays = _delays(runtime, declared, set(checked))
        spacings = {tenant: _spacing(declared, delays.get(tenant)) for tenant in set(checked)}
        return _sent(runtime, [(pipeline, tenant, spacings[tenant]) for tenant in checked])


def notify_quietly(app: Celery, events: Events) -> list[Answer] | None:
    """Notify for who has committed already: where Redis cannot be used, say so in the log and return None."""
    try:
        return _send(runtime_of(app), events)
    except SoftTimeLimitExceeded:
        # A task that notifies is told that its time is over.
        raise
    except Exception as error:
        if runtime_of(app).eager:
            raise
        _say(events, error)
        return None


async def anotify(app: Celery, events: Events, timeout: float | None = None) -> list[Answer]:
    """Notify in a thread, so that the event loop goes on; wait for it for `timeout` seconds.

    Raises:
        UnknownPipeline: no loaded module declares one of the pipelines.
        Unavailable: Redis cannot be used, or too many other events wait for a thread.
        TimeoutError: it gave no answer in time; whether it took the events is unknown.
    """
    runtime = runtime_of(app)

    async def send() -> list[Answer]:
        answers, asking = await runtime.event_threads.run(partial(_send_known, runtime, events), len(events))
        if asking:
            found = await runtime.asking_threads.run(partial(_send, runtime, asking), len(asking))
            answers |= zip(asking, found, strict=True)
        return [answers[event] for event in events]

    return await asyncio.wait_for(send(), None if runtime.eager else timeout)


async def anotify_quietly(app: Celery, events: Events, said: Seldom | None = None) -> list[Answer] | None:
    """Notify as `notify_quietly` in a thread, so that the event loop goes on; wait for it no longer than that would.

    With `said` the log has one line a minute about events that were not sent.
    """
    runtime = runtime_of(app)
    rounds = -(-len(events) // AT_ONCE)
    try:
        return await anotify(app, events, runtime.settings.notify_timeout * rounds)
    except Exception as error:
        if runtime.eager:
            raise
        if said is None or said.counted("events"):
            _say(events, error)
        return None


def merged(delay: int | None, other: int | None) -> int | None:
    """Return the delay of two events of one tenant."""
    return None if delay is None or other is None else min(delay, other)


def _send_known(runtime: Runtime, events: Events) -> tuple[dict[Event, Answer], Events]:
    """Send the events that need nothing of Postgres; return their answers, and the others."""
    asking = {} if runtime.eager else {one: None for one, delay_ms in events.items() if _asks(runtime, one, delay_ms)}
    known = {one: delay_ms for one, delay_ms in events.items() if one not in asking}
    return dict(zip(known, _send(runtime, known), strict=True)), asking


def _asks(runtime: Runtime, event: Event, delay_ms: int | None) -> bool:
    return delay_ms is None and runtime.pipelines[event[0]].criteria is not None


def _send(runtime: Runtime, events: Events) -> list[Answer]:
    if runtime.eager:
        return [_inline(runtime, *event) for event in events]
    if time.monotonic() < runtime.events_rest_until:
        raise Unavailable("Redis did not answer in time a moment ago")
    with translated_errors():
        known = _with_delays(runtime, events)
        try:
            return _sent(
                runtime,
                [
                    (pipeline, tenant, _spacing(runtime.pipelines[pipeline], delay_ms))
                    for (pipeline, tenant), delay_ms in known.items()
                ],
            )
        except redis.TimeoutError:
            runtime.events_rest_until = time.monotonic() + REST
            raise


def _sent(runtime: Runtime, events: Iterable[tuple[str, str, Spacing]]) -> list[Answer]:
    """Send events in round trips, each of which has its time."""
    left, answers = iter(events), list[Answer]()
    while some := list(islice(left, AT_ONCE)):
        with hurry(runtime.settings.notify_timeout):
            answers += send_many(runtime.event_gate, some)
    return answers


def _inline(runtime: Runtime, pipeline: str, tenant: str) -> Answer:
    # No ticker acts on the deadline of a tenant that waits after a failure, or gives it its turn, so this does.
    runtime.gate.expire(pipeline, [tenant])
    runtime.gate.publish_turns([f"{pipeline}:{tenant}"])
    return send_one(runtime.gate, pipeline, tenant, EAGER)


def _say(events: Events, error: Exception) -> None:
    """Say that events were not sent; no sender may fail by it, for its transaction is committed."""
    (pipeline, tenant), *others = events
    whose = f"tenant {tenant!r} of {pipeline}" + (f" and {len(others)} others" if others else "")
    if isinstance(error, (Unavailable, TimeoutError)):
        why = str(error) or "Redis does not answer in time"
        log.warning("no event for %s: %s; a worker finds the records all the same", whose, why)
    else:
        log.error("no event for %s; a worker finds the records all the same", whose, exc_info=error)


def start(app: Celery, tenants: Sequence[str], pipeline: str = INVOICES, gate: Gate | None = None) -> None:
    """Notify the tenants, and let those that are held, by a back-off or a pause that is over, go on at once.

    `gate`: that of a person who waits; None: the app's own, which waits longer.

    Raises: as `notify`.
    """
    asked = runtime_of(app).gate if gate is None else gate
    notify_many(app, tenants, pipeline)
    with translated_errors():
        runners = zip(tenants, asked.look(pipeline, tenants), strict=True)
        held = [tenant for tenant, runner in runners if runner.held]
        if held:
            asked.expire(pipeline, held, early=True)


def _with_delays(runtime: Runtime, events: Events) -> Events:
    """Return the events in their order, each with the delay that Postgres gives where it has to be asked."""
    known, asking = dict(events), defaultdict[str, list[str]](list)
    for event, delay_ms in events.items():
        if _asks(runtime, event, delay_ms):
            asking[event[0]].append(event[1])
    for pipeline, tenants in asking.items():
        found = _delays(runtime, runtime.pipelines[pipeline], tenants)
        known.update(((pipeline, tenant), delay_ms) for tenant, delay_ms in found.items())
    return known


def _delays(runtime: Runtime, pipeline: Pipeline, tenants: Collection[str]) -> dict[str, int]:
    """Return the smallest delay of what waits for each tenant, if the pipeline has criteria: Postgres is asked once."""
    if pipeline.criteria is None:
        return {}
    return runtime.tenants_of(pipeline.name).delays(pipeline.name, tenants, pipeline.criteria.smallest_ms)


def _spacing(pipeline: Pipeline, delay_ms: int | None) -> Spacing:
    """Return how a tenant's next run is spaced; `delay_ms` is the smallest delay of what waits; None: none is known."""
    if pipeline.criteria is None or delay_ms is None:
        return pipeline.policy.spacing
    return pipeline.criteria.spacing_for(delay_ms)
