"""Queries on the gate for operators and metrics: one or two round trips each, read-only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis

from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.gate.keys import Keys, Queue
from taskbridge.gate.state import State
from taskbridge.gate.wire import variable_of

if TYPE_CHECKING:
    pass

__all__ = [
    "OLDEST_REDIS",
    "CircuitStatus",
    "Hold",
    "Inspector",
    "Queued",
    "Ranks",
    "RunnerStatus",
    "Running",
    "Survey",
    "incompatible",
]

OLDEST_REDIS: Final = (6, 2)
"""The first version with `ZADD LT` (redis.io/commands/zadd)."""
NEXT_MESSAGES: Final = 20
"""How many messages at the front of each queue are examined for how long their tenants have waited."""
MOST_LOOKED_AT: Final = 1_000
"""Tenants per round trip."""
MOST_BEATING: Final = 200
"""How many tenants of a pipeline are checked for a run in progress, besides those whose deadlines come first."""
WAITS_FOR_TURN: Final = ("turn", "found")
"""Values of the field `held` of a runner that waits for its turn."""


class Hold(StrEnum):
    """What a tenant that is held waits for."""

    TURN = "turn"
    WAIT_QUEUE = "wait queue"
    """A free run slot of its pipeline, the circuit, or the end of a wait of the whole pipeline."""
    RATE = "rate"
    RETRY = "retry"
    """The end of its back-off; if an earlier version ended the run, perhaps the time that its handler asked for."""
    ASKED = "asked"
    """The end of the time that its handler asked for (`RetryAfter`), whether or not runs failed before."""
    PAUSED = "paused"
    """The end of its pause, or of its pipeline's."""


class CircuitStatus(NamedTuple):
    """A pipeline's circuit. Times are milliseconds since the Unix epoch by Redis's clock; None: not set.

    `opened` counts how often it opened, `probes` how many probes have failed since the last time.
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
    """How many runs may be in progress after such a wait; None: no longer limited by it."""


class Survey(NamedTuple):
    """The state of a pipeline: the `tenants` with the earliest deadlines, and how many have a runner.

    `overdue_ms`: how long ago the earliest deadline passed, 0 if none has. `replaced`: how many runs died and were
    replaced, and `republished`: how many messages were published again, both as far back as Redis remembers.
    `replaced_ms`: how long ago the last run was replaced (None: none was), and `replaced_on`: its worker.
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
    """The state of a tenant in the gate. Reminders do not count as `events`.

    Times are milliseconds since the Unix epoch by Redis's clock; None: not set.
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
    """The worker of the current run, or of the last one; None: no run of this runner has begun."""


class Ranks(NamedTuple):
    """The rank of a tenant in its pipeline's wait queue and in the fair queue, counted from 1; None: it is not in it.

    `waiting` and `turns`: the lengths of these queues. The fair queue is shared by all pipelines.
    """

    in_wait_queue: int | None
    waiting: int
    for_turn: int | None
    turns: int


class Running(NamedTuple):
    """A run in progress: for how many `seconds`, and on which `worker` ("": unnamed)."""

    tenant: str
    seconds: float
    worker: str


class Queued(NamedTuple):
    """The tenant whose run message has been in the queue for the longest time, and how long; no tenant: none is queued.

    `running`: the runs in progress, the longest one first.
    """

    tenant: str | None
    seconds: float
    running: Sequence[Running]


class Inspector:
    """The read-only part of the gate: the state of tenants and pipelines.

    `queue_prefix` is what kombu puts before a queue's name (`global_keyprefix`); None: the broker is another server, or
    unknown.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, queue_prefix: str | None = None) -> None:
        self._client = client
        self._keys = keys
        names = {queue: f"{queue_prefix}{keys.queue(queue)}" for queue in Queue}
        self._queues = None if queue_prefix is None else names

    def circuit(self, pipeline: str) -> CircuitStatus:
        """Return the state of the pipeline's circuit."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(self._keys.circuit(pipeline))
            pipe.zcard(self._keys.wait_queue(pipeline))
            return _circuit(*pipe.execute())

    def survey(self, pipelines: Sequence[str], most: int) -> dict[str, Survey]:
        """Return the state of pipelines, with up to `most` tenants of each, in one round trip."""
        with self._with_clock() as pipe:
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
        """Return the gate's time: milliseconds since the Unix epoch by Redis's clock; it never goes back."""
        with self._with_clock() as pipe:
            return _now_ms(*pipe.execute())

    @contextmanager
    def _with_clock(self) -> Iterator[Any]:
        """Return a pipeline whose first two replies are the arguments of `_now_ms`."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.hmget(self._keys.clock, "offset", "mark")
            yield pipe

    def look(self, pipeline: str, tenants: Sequence[str]) -> list[RunnerStatus]:
        """Return the state of `tenants`, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.hgetall(self._keys.runner(pipeline, tenant))
                pipe.zscore(self._keys.due(pipeline), tenant)
                pipe.get(self._keys.lease(pipeline, tenant))
                pipe.zscore(self._keys.fair_queue, f"{pipeline}:{tenant}")
            replies: list[Any] = pipe.execute()
        return [_status(*replies[at : at + 4]) for at in range(0, len(replies), 4)]

    def ranks(self, pipeline: str, tenants: Sequence[str]) -> list[Ranks]:
        """Return the ranks of `tenants` in the wait queue and the fair queue, in one round trip."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(self._keys.wait_queue(pipeline))
            pipe.zcard(self._keys.fair_queue)
            for tenant in tenants:
                pipe.zrank(self._keys.wait_queue(pipeline), tenant)
                pipe.zrank(self._keys.fair_queue, f"{pipeline}:{tenant}")
            waiting, turns, *ranks = pipe.execute()
        return [
            Ranks(None if rank is None else rank + 1, waiting, None if turn is None else turn + 1, turns)
            for rank, turn in zip(ranks[::2], ranks[1::2], strict=True)
        ]

    def queued(self) -> int | None:
        """Return how many messages are in the two queues of runs; None: the broker is another server, or unknown."""
        waiting = self.waiting()
        return None if self._queues is None else waiting["first"] + waiting["next"]

    def waiting(self) -> dict[str, int]:
        """Return how many runs wait for a worker slot: messages by queue, and tenants in the fair queue ("fair").

        The two queues are left out if the broker is another server, or unknown.
        """
        queues = self._queues or {}
        with self._client.pipeline(transaction=False) as pipe:
            for key in queues.values():
                pipe.llen(key)
            pipe.zcard(self._keys.fair_queue)
            names = [*(queue.name.lower() for queue in queues), "fair"]
            return dict(zip(names, pipe.execute(), strict=True))

    def longest_queued(self, tenants: Mapping[str, Sequence[str]], ttl_ms: int | None = None) -> dict[str, Queued]:
        """Return the longest-waiting run message and the runs in progress of each pipeline.

        This examines `tenants`, and those whose messages come next in the queues: the longest-waiting tenant may not be
        among those with the earliest deadlines, since a message that is published again gets a later deadline. Such a
        message counts from the first time. With `ttl_ms`, by which a heartbeat extends a run's deadline, this also
        examines some tenants that may have a run in progress, since a long run need not be among those either.
        """
        fronts, beating = self._next_messages(), {} if ttl_ms is None else self._beating([*tenants], ttl_ms)
        tenants = {
            name: list(dict.fromkeys([*of_pipeline, *fronts.get(name, ()), *beating.get(name, ())]))
            for name, of_pipeline in tenants.items()
        }
        with self._with_clock() as pipe:
            for pipeline, of_pipeline in tenants.items():
                for tenant in of_pipeline:
                    pipe.hmget(self._keys.runner(pipeline, tenant), "state", "token", "began", "worker")
            time, clock, *replies = pipe.execute()
        now_ms, runners = _now_ms(time, clock), iter(replies)
        return {
            name: _queued(now_ms, [(tenant, *next(runners)) for tenant in of_pipeline])
            for name, of_pipeline in tenants.items()
        }

    def _beating(self, pipelines: Sequence[str], ttl_ms: int) -> dict[str, list[str]]:
        """Return, by pipeline, tenants whose deadlines are in the range of those of runs in progress."""
        now_ms = self.now_ms()
        with self._client.pipeline(transaction=False) as pipe:
            for name in pipelines:
                pipe.zrevrangebyscore(self._keys.due(name), now_ms + ttl_ms, now_ms, start=0, num=MOST_BEATING)
            return dict(zip(pipelines, pipe.execute(), strict=True))

    def _next_messages(self) -> dict[str, list[str]]:
        """Return, by pipeline, tenants whose messages come next in a queue; none if the broker is another server."""
        tenants: dict[str, list[str]] = {}
        with self._client.pipeline(transaction=False) as pipe:
            for queue in (self._queues or {}).values():
                pipe.lrange(queue, -NEXT_MESSAGES, -1)
            texts = [text for messages in pipe.execute() for text in messages]
        for text in texts:
            # The queue may contain messages that no script has written.
            with suppress(ValueError, KeyError, TypeError):
                pipeline, tenant, _ = json.loads(json.loads(text)["body"])[0]
                tenants.setdefault(pipeline, []).append(tenant)
        return tenants

    def active(self, pipeline: str) -> list[str]:
        """Return the tenants that are not idle: those with a deadline."""
        tenants: Any = self._client.zrange(self._keys.due(pipeline), 0, -1)
        return list(tenants)

    def overdue(self, pipeline: str, limit: int) -> list[str]:
        """Return up to `limit` tenants whose deadlines have passed, the oldest first."""
        tenants: Any = self._client.zrangebyscore(self._keys.due(pipeline), "-inf", self.now_ms(), start=0, num=limit)
        return list(tenants)

    def paused(self, pipeline: str) -> list[str]:
        """Return the tenants that wait for the end of a pause after a run has found it."""
        tenants, paused = self.active(pipeline), list[str]()
        for start in range(0, len(tenants), MOST_LOOKED_AT):
            part = tenants[start : start + MOST_LOOKED_AT]
            paused += [
                tenant
                for tenant, status in zip(part, self.look(pipeline, part), strict=True)
                if status.hold is Hold.PAUSED
            ]
        return paused

    def owner(self) -> tuple[str, str] | None:
        """Return the database whose deployment owns the gate, and its label, as passed to `Gate.own`."""
        text: Any = self._client.get(self._keys.owner)
        if text is None:
            return None
        _, _, database, label = text.split(" ", 3)
        return database, label

    def check_server(self) -> None:
        """Check that the server can hold a gate; its version is skipped for users without permission for INFO.

        Raises:
            Unavailable: it is older than Redis 6.2.
            ConfigurationError: it is not compatible with Redis, or it is a Redis Cluster and the prefix is no hash tag
                or the broker is the same cluster.
        """
        try:
            info: Any = self._client.info("server")
        except redis.exceptions.NoPermissionError:
            self._client.ping()
            return
        except redis.ResponseError as error:
            if "unknown command" not in str(error):
                raise
            raise incompatible(self._client, error) from None
        version = str(info.get("redis_version", "0.0"))
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
            raise Unavailable(f"Redis {version} is too old: upgrade it to {_oldest()} or newer, or use Valkey")
        # The second is the name in Valkey.
        if "cluster" not in (info.get("redis_mode"), info.get("server_mode")):
            return
        if not self._keys.is_hash_tag:
            raise ConfigurationError(
                f"{variable_of(self._client)} names a Redis Cluster, which keeps all keys of a gate on one node only "
                "if their prefix is a hash tag",
                "set TASKBRIDGE_KEY_PREFIX to a name in braces, such as {shop}",
            )
        if self._queues is not None:
            raise ConfigurationError(
                "the broker cannot be a Redis Cluster, because kombu supports none",
                "set TASKBRIDGE_BROKER_URL to another server",
            )


def incompatible(client: redis.Redis, reason: object) -> ConfigurationError:
    """Return the error for a server that lacks something that Redis has."""
    return ConfigurationError(
        f"the server of {variable_of(client)} is not compatible with Redis ({reason})",
        f"use Redis {_oldest()} or newer, or Valkey",
    )


def _oldest() -> str:
    return ".".join(map(str, OLDEST_REDIS))


def _now_ms(time: tuple[int, int], clock: list[str | None]) -> int:
    """Return the same time as `clock_us` in `prelude.lua`, in milliseconds."""
    offset, mark = (int(text or 0) for text in clock)
    seconds, microseconds = time
    return max(seconds * 1_000_000 + microseconds + offset, mark) // 1000


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
    # A tenant that came from the wait queue to the fair queue keeps its hold.
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
    # Only a tenant that waits for a rate limit was charged in advance.
    if "permits" in runner:
        return Hold.RATE
    return Hold.ASKED if runner["held"] == Hold.ASKED else Hold.RETRY
