"""Notes of a worker's handler calls, in a list of Redis that the measuring process reads; and what follows from them.

Events and calls are stamped with the clock of the one machine on which a benchmark runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import redis

__all__ = ["Call", "Delays", "Event", "delays", "forget_calls", "hang_once", "note_call", "take_as_told", "taken_calls"]

CALLS: Final = "bench-calls"
LONGER_THAN_ANY_CAP: Final = 7200


class Event(NamedTuple):
    """An event at the time `at`, after the commit of record `number`."""

    number: str
    at: float


class Call(NamedTuple):
    """A handler's call with the records `numbers`, in the worker whose process group is `group`.

    `started` is its first line, `ended` its last; a call that is noted while it runs ends when it starts.
    """

    tenant: str
    numbers: Sequence[str]
    started: float
    ended: float
    group: int


class Delays(NamedTuple):
    """Milliseconds from the first event to its handler, and from the last to the end of the call that held it.

    None: no call held the event's record.
    """

    first: float | None
    last: float | None


def delays(events: Sequence[Event], calls: Sequence[Call]) -> Delays:
    """Return the delays of one tenant's burst."""
    first = min((call.started for call in calls if events[0].number in call.numbers), default=None)
    last = min((call.ended for call in calls if events[-1].number in call.numbers), default=None)
    return Delays(
        None if first is None else (first - events[0].at) * 1000,
        None if last is None else (last - events[-1].at) * 1000,
    )


def take_as_told(client: redis.Redis, tenant: str, documents: Sequence[Any]) -> None:
    """Handle a batch: take the seconds that its first document tells, and note the call."""
    started = time.time()
    time.sleep(documents[0]["seconds"])
    note_call(client, Call(tenant, [document["number"] for document in documents], started, time.time(), os.getpgrp()))


def hang_once(client: redis.Redis, tenant: str, documents: Sequence[Any]) -> None:
    """Note the call when it starts, and do not return from a tenant's first."""
    now = time.time()
    note_call(client, Call(tenant, [document["number"] for document in documents], now, now, os.getpgrp()))
    if client.set(f"bench-hung:{tenant}", "1", nx=True):
        time.sleep(LONGER_THAN_ANY_CAP)


def note_call(client: redis.Redis, call: Call) -> None:
    """Append a call."""
    client.rpush(CALLS, json.dumps(call))


def taken_calls(client: redis.Redis) -> list[Call]:
    """Return the calls since `forget_calls`, as they were noted."""
    return [Call(*json.loads(text)) for text in cast("list[str]", client.lrange(CALLS, 0, -1))]


def forget_calls(client: redis.Redis) -> None:
    """Drop the notes."""
    client.delete(CALLS)
