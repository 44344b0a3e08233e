"""What operators and metrics ask of the gate: a round trip or two for each question, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis

from taskbridge.errors import Unavailable
from taskbridge.gate.keys import Keys, Queue
from taskbridge.gate.state import State

if TYPE_CHECKING:
    from taskbridge.declaring.policy import Limits, RateLimit

__all__ = [
    "OLDEST_REDIS",
    "CircuitStatus",
    "Hold",
    "Inspector",
    "Place",
    "Queued",
    "RunnerStatus",
    "Running",
    "Survey",
    "UsedUp",
]

OLDEST_REDIS: Final = (6, 2)
"""The first that knows `ZADD LT` (redis.io/commands/zadd)."""
NEXT_MESSAGES: Final = 20
"""Messages of each queue whose tenants are asked how long they wait."""
MOST_LOOKED_AT: Final = 1_000
"""Tenants that are looked at in one round trip."""
MOST_BEATING: Final = 200
"""Tenants of a pipeline that are asked whether a run of theirs is on, beside those whose deadlines come first."""
WAITS_FOR_TURN: Final = ("turn", "found")
"""What the field `held` of a tenant's runner says when it waits for its turn."""


class Hold(StrEnum):
    """What a tenant that is held waits for."""

    TURN = "turn"
    WAIT_QUEUE = "wait queue"
    """A free run slot of its pipeline, the circuit, or the end of a wait of the whole pipeline."""
    RATE = "rate"
    RETRY = "retry"
    """The end of its back-off; where an earlier version ended the run, perhaps what its handler asked for."""
    ASKED = "asked"
    """The time that its handler asked for (`RetryAfter`), whether or not its runs failed before."""
    PAUSED = "paused"
    """The end of its pause, or of its pipeline's."""


class CircuitStatus(NamedTuple):
    """A pipeline's circuit. Times are milliseconds of the Unix epoch by Redis's clock; None: not set.

    `opened` counts how often it opened, `probes` how many probes failed since it did.
    """

    open: bool
    until_ms: int | None
    probes: int
    opened: int
    opened_at_ms: int | None
    closed_at_ms: int | None
    waiting: int
    rests_until_ms: int | None = None
    """The downstream asked the whole pipeline to wait until then."""
    width: int | None = None
    """How many runs may be on since such a wait began; None: it makes no difference any more."""


class Survey(NamedTuple):
    """How a pipeline stands: the `tenants` with the earliest deadlines, and how many have a runner.

    `overdue_ms` is how long ago the earliest deadline passed, 0 if none has. `replaced` counts runs that died and were
    replaced, `republished` messages that were published again, both as far back as Redis remembers.
    `replaced_ms` is how long ago the last one was replaced, which was on the worker `replaced_on`; None: none was.
    """

    tenants: list[str]
    runners: int
    overdue_ms: int
    replaced: int
    republished: int
    circuit: CircuitStatus
    replaced_ms: int | None = None
    replaced_on: str = ""

    @property
    def overdue_seconds(self) -> float:
        """How long ago the earliest deadline passed, 0 if none has."""
        return self.overdue_ms / 1000


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """One tenant as the gate sees it. A reminder is none of its `events`.

    Times are milliseconds of the Unix epoch by Redis's clock; None: not set.
    """

    state: State
    token: str | None
    events: int
    runs: int
    held: bool
    waits_for_turn: bool
    began_ms: int | None
    deadline_ms: int | None
    lease_ends_ms: int | None
    hold: Hold | None = None
    """What it waits for; None: it is not held."""
    worker: str | None = None
    """The worker of the run that is on, or of the last one; None: no run of the runner has begun."""


class Place(NamedTuple):
    """The place of a tenant in its pipeline's wait queue and among those that wait for their turn, counted from 1.

    None: it is not there. `waiting` and `turns`: how many are; in the wait queue those of one pipeline, else of all.
    """

    in_wait_queue: int | None
    waiting: int
    for_turn: int | None
    turns: int


class UsedUp(NamedTuple):
    """A rate limit that is used up: the tenant's own, or else that of its pipeline.

    `until_ms`: when what was charged under it last may go, in milliseconds of the Unix epoch by Redis's clock.
    """

    limit: RateLimit
    is_own: bool
    until_ms: int


class Running(NamedTuple):
    """A run that is on: since so many `seconds`, on that `worker`; "": it gave no name."""

    tenant: str
    seconds: float
    worker: str


class Queued(NamedTuple):
    """Of some tenants of a pipeline, whose run message has been in the queue for the longest; no tenant: none is.

    `running`: the runs of theirs that are on, the longest one first.
    """

    tenant: str | None
    seconds: float
    running: Sequence[Running]


class Inspector:
    """The part of the gate that changes nothing: it says how tenants and pipelines stand.

    `queue_prefix` is what kombu puts before a queue's name (`global_keyprefix`); None: the queues lie in another
    server, the broker, or nobody said where.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, queue_prefix: str | None = None) -> None:
        self._client = client
        self._keys = keys
        self._queues = None if queue_prefix is None else {one: f"{queue_prefix}{keys.queue(one)}" for one in Queue}

    def circuit(self, pipeline: str) -> CircuitStatus:
        """Return how the pipeline's circuit stands."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.circuit(pipeline))
            pipe.zcard(self._keys.wait_queue(pipeline))
            return _circuit(*pipe.execute())

    def survey(self, pipelines: Sequence[str], most: int) -> dict[str, Survey]:
        """Return how pipelines stand, with up to `most` tenants of each, in one round trip that changes nothing."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self._keys.clock, "offset", "mark")
            for pipeline in pipelines:
                pipe.zrange(self._keys.due(pipeline), 0, most - 1, withscores=True)
                pipe.zcard(self._keys.due(pipeline))
                pipe.hgetall(self._keys.circuit(pipeline))
                pipe.zcard(self._keys.wait_queue(pipeline))
                pipe.hgetall(self._keys.counts(pipeline))
            time, clock, *replies = pipe.execute()
        now_ms = _now_ms(time, clock)
        return {name: _survey(now_ms, *replies[at * 5 : at * 5 + 5]) for at, name in enumerate(pipelines)}

    def now_ms(self) -> int:
        """Return the gate's time: milliseconds of the Unix epoch by Redis's clock, and never less than before."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self._keys.clock, "offset", "mark")
            return _now_ms(*pipe.execute())

    def look(self, pipeline: str, tenants: Sequence[str]) -> list[RunnerStatus]:
        """Return how `tenants` stand, in one round trip, changing nothing."""
        with self._client.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.hgetall(self._keys.runner(pipeline, tenant))
                pipe.zscore(self._keys.due(pipeline), tenant)
                pipe.get(self._keys.lease(pipeline, tenant))
                pipe.zscore(self._keys.fair_queue, f"{pipeline}:{tenant}")
            replies: list[Any] = pipe.execute()
        return [_status(*replies[at : at + 4]) for at in range(0, len(replies), 4)]

    def places(self, pipeline: str, tenants: Sequence[str]) -> list[Place]:
        """Return the places of `tenants` among those that wait, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(self._keys.wait_queue(pipeline))
            pipe.zcard(self._keys.fair_queue)
            for tenant in tenants:
                pipe.zrank(self._keys.wait_queue(pipeline), tenant)
                pipe.zrank(self._keys.fair_queue, f"{pipeline}:{tenant}")
            waiting, turns, *ranks = pipe.execute()
        return [
            Place(None if place is None else place + 1, waiting, None if turn is None else turn + 1, turns)
            for place, turn in zip(ranks[::2], ranks[1::2], strict=True)
        ]

    def used_up(self, pipeline: str, tenants: Sequence[str], whole: Limits, each: Limits) -> list[list[UsedUp]]:
        """Return which limits of the `whole` pipeline and of `each` tenant are used up, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self._keys.clock, "offset", "mark")
            pipe.mget(self._keys.pipeline_rate(pipeline), self._keys.pipeline_calls(pipeline))
            for tenant in tenants:
                pipe.mget(self._keys.tenant_rate(pipeline, tenant), self._keys.tenant_calls(pipeline, tenant))
            time, clock, of_all, *own = pipe.execute()
        now_ms = _now_ms(time, clock)
        shared = _used_up(now_ms, whole, of_all, is_own=False)
        return [shared + _used_up(now_ms, each, clocks, is_own=True) for clocks in own]

    def queued(self) -> int | None:
        """Return how many messages lie in the two queues of runs; None: they lie in another server, or nobody said."""
        if self._queues is None:
            return None
        with self._client.pipeline(transaction=False) as pipe:
            for queue in self._queues.values():
                pipe.llen(queue)
            return int(sum(pipe.execute()))

    def longest_queued(self, tenants: Mapping[str, Sequence[str]], ttl_ms: int | None = None) -> dict[str, Queued]:
        """Return whose run message waits for the longest, and which runs are on, in each pipeline.

        Of `tenants`, and of those whose messages are the next ones of the queues: who waits for long may be none of
        those whose deadlines come first, since each message that is published again has a later one. A message that was
        published again counts from the first time. With `ttl_ms`, by which a heartbeat moves the deadline of a run,
        also of some whose runs may be on: a run that is on for long need not be one of those either.
        """
        ends, beating = self._next_messages(), {} if ttl_ms is None else self._beating([*tenants], ttl_ms)
        tenants = {
            name: list(dict.fromkeys([*some, *ends.get(name, ()), *beating.get(name, ())]))
            for name, some in tenants.items()
        }
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self._keys.clock, "offset", "mark")
            for pipeline, some in tenants.items():
                for tenant in some:
                    pipe.hmget(self._keys.runner(pipeline, tenant), "state", "token", "began", "worker")
            time, clock, *replies = pipe.execute()
        now_ms, left = _now_ms(time, clock), iter(replies)
        return {name: _queued(now_ms, [(one, *next(left)) for one in some]) for name, some in tenants.items()}

    def _beating(self, pipelines: Sequence[str], ttl_ms: int) -> dict[str, list[str]]:
        """Return by pipeline whose deadlines lie as those of runs do that are on."""
        now_ms = self.now_ms()
        with self._client.pipeline(transaction=False) as pipe:
            for name in pipelines:
                pipe.zrevrangebyscore(self._keys.due(name), now_ms + ttl_ms, now_ms, start=0, num=MOST_BEATING)
            return dict(zip(pipelines, pipe.execute(), strict=True))

    def _next_messages(self) -> dict[str, list[str]]:
        """Return by pipeline whose messages are the next ones of each queue; none where another server has them."""
        found: dict[str, list[str]] = {}
        with self._client.pipeline(transaction=False) as pipe:
            for queue in (self._queues or {}).values():
                pipe.lrange(queue, -NEXT_MESSAGES, -1)
            texts = [text for some in pipe.execute() for text in some]
        for text in texts:
            # The queue may hold a message that is not as a script writes it.
            with suppress(ValueError, KeyError, TypeError):
                pipeline, tenant, _ = json.loads(json.loads(text)["body"])[0]
                found.setdefault(pipeline, []).append(tenant)
        return found

    def active(self, pipeline: str) -> list[str]:
        """Return the tenants that are not idle: those with a deadline."""
        tenants: Any = self._client.zrange(self._keys.due(pipeline), 0, -1)
        return list(tenants)

    def overdue(self, pipeline: str, limit: int, ms: int = 0) -> list[str]:
        """Return up to `limit` tenants whose deadlines passed `ms` or more milliseconds ago, the oldest first."""
        until = self.now_ms() - ms
        tenants: Any = self._client.zrangebyscore(self._keys.due(pipeline), "-inf", until, start=0, num=limit)
        return list(tenants)

    def paused(self, pipeline: str) -> list[str]:
        """Return the tenants of which a run found a pause, and that wait for its end."""
        tenants, found = self.active(pipeline), list[str]()
        for start in range(0, len(tenants), MOST_LOOKED_AT):
            some = tenants[start : start + MOST_LOOKED_AT]
            found += [
                tenant
                for tenant, status in zip(some, self.look(pipeline, some), strict=True)
                if status.hold is Hold.PAUSED
            ]
        return found

    def owner(self) -> tuple[str, str] | None:
        """Return the database whose deployment has the gate and how people call it, as `Gate.own` got both."""
        text: Any = self._client.get(self._keys.owner)
        if text is None:
            return None
        _, _, database, label = text.split(" ", 3)
        return database, label

    def check_version(self) -> None:
        """Raise Unavailable, with the remedy, where the server is older than Redis 6.2.

        A user who may not do INFO gets no answer, and works all the same.
        """
        try:
            info: Any = self._client.info("server")
        except redis.exceptions.NoPermissionError:
            self._client.ping()
            return
        found = str(info["redis_version"])
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST_REDIS:
            oldest = ".".join(map(str, OLDEST_REDIS))
            raise Unavailable(f"Redis {found} is too old: upgrade it to {oldest} or newer, or use Valkey")


def _now_ms(time: tuple[int, int], clock: list[str | None]) -> int:
    """Return what `clock_us` of `prelude.lua` does, in milliseconds."""
    offset, mark = (int(text or 0) for text in clock)
    seconds, microseconds = time
    return max(seconds * 1_000_000 + microseconds + offset, mark) // 1000


def _used_up(now_ms: int, limits: Limits, clocks: Sequence[str | None], *, is_own: bool) -> list[UsedUp]:
    """Return which limits are used up; each has its virtual clock, as `permit.lua` keeps it."""
    found = [
        UsedUp(limit, is_own, int((int(clock) - limit.most * limit.interval_us) / 1000))
        for limit, clock in zip(limits, clocks, strict=True)
        if limit is not None and clock is not None
    ]
    return [one for one in found if one.until_ms > now_ms]


def _circuit(fields: dict[str, str], waiting: int) -> CircuitStatus:
    until, opened_at, closed_at, *of_waits = (
        int(fields[name]) if name in fields else None for name in ("until", "opened_at", "closed_at", "rest", "width")
    )
    probes, opened = int(fields.get("probes", 0)), int(fields.get("opened", 0))
    return CircuitStatus(until is not None, until, probes, opened, opened_at, closed_at, waiting, *of_waits)


def _survey(
    now_ms: int,
    first: list[tuple[str, float]],
    runners: int,
    circuit: dict[str, str],
    waiting: int,
    counts: dict[str, str],
) -> Survey:
    return Survey(
        [tenant for tenant, _ in first],
        runners,
        max(0, now_ms - int(first[0][1])) if first else 0,
        int(counts.get("replaced", 0)),
        int(counts.get("republished", 0)),
        _circuit(circuit, waiting),
        max(0, now_ms - int(counts["replaced_at"])) if "replaced_at" in counts else None,
        counts.get("replaced_on", ""),
    )


def _queued(now_ms: int, runners: Sequence[tuple[str, str | None, str | None, str | None, str | None]]) -> Queued:
    queued = ((int(token[:16]), tenant) for tenant, state, token, *_ in runners if state == State.QUEUED and token)
    made_us, oldest = min(queued, default=(now_ms * 1000, None))
    running = sorted(
        (int(began), tenant, worker or "")
        for tenant, state, _, began, worker in runners
        if state == State.RUNNING and began
    )
    runs = [Running(tenant, max(0.0, (now_ms - began) / 1000), worker) for began, tenant, worker in running]
    return Queued(oldest, max(0.0, now_ms / 1000 - made_us / 1_000_000), runs)


def _status(runner: dict[str, str], deadline: float | None, lease_ends: str | None, turn: float | None) -> RunnerStatus:
    # Who came to the turns out of the wait queue is held as it was there.
    waits_for_turn = "held" in runner and (turn is not None or runner["held"] in WAITS_FOR_TURN)
    return RunnerStatus(
        state=State(runner.get("state", State.IDLE)),
        token=runner.get("token"),
        events=int(runner.get("events", 0)) - ("reminded" in runner),
        runs=int(runner.get("runs", 0)),
        held="held" in runner,
        waits_for_turn=waits_for_turn,
        began_ms=int(runner["began"]) if "began" in runner else None,
        deadline_ms=None if deadline is None else int(deadline),
        lease_ends_ms=None if lease_ends is None else int(lease_ends),
        hold=Hold.TURN if waits_for_turn else _hold(runner),
        worker=runner.get("worker"),
    )


def _hold(runner: dict[str, str]) -> Hold | None:
    if "held" not in runner:
        return None
    if runner["held"] == Hold.PAUSED:
        return Hold.PAUSED
    if "joined" in runner:
        return Hold.WAIT_QUEUE
    # Only a tenant that waits for a rate limit has paid for what it may deliver.
    if "permits" in runner:
        return Hold.RATE
    return Hold.ASKED if runner["held"] == Hold.ASKED else Hold.RETRY
