"""The one Python face of the gate: each method is one script, one round trip, and one answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Limits, Spacing
from taskbridge.errors import Unavailable
from taskbridge.gate.keys import Keys, Queue, beginning
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.gate.transitions import Answer, State
from taskbridge.gate.wire import Wire

__all__ = [
    "OLDEST_REDIS",
    "Begun",
    "Blame",
    "CircuitStatus",
    "Due",
    "Gate",
    "Hold",
    "Outcome",
    "Reminder",
    "RunnerStatus",
    "Settlement",
    "Survey",
    "Timing",
]

MOST_SENT: Final = 100
"""So many runs of a pipeline that deadlines published and that have not begun are enough; a ticker adds no more."""
REMINDED_AT_ONCE: Final = 100
"""So many tenants a script goes over."""
TICKER_HOLDS_MS: Final = 50
"""How long a ticker that has found work has it to itself; so long nobody takes over if it dies."""

OLDEST_REDIS: Final = (6, 2)
"""The first that knows `ZADD LT` (redis.io/commands/zadd)."""
WAITS_FOR_TURN: Final = ("turn", "found")
"""What the field `held` of a tenant's runner says when it waits for its turn."""


class Blame(StrEnum):
    """What a failed run says against; the value is what `circuit.lua` reads."""

    NOBODY = ""
    RECORD = "record"
    DOWNSTREAM = "downstream"
    PIPELINE = "pipeline"


class Outcome(StrEnum):
    """How a run ended; the value is what `settle.lua` reads.

    MORE: records are left, and it is the next tenant's turn. STOPPED: the worker stops in the middle of its turn.
    """

    MORE = "more"
    STOPPED = "stopped"
    DONE = "done"
    RETRY = "retry"
    STALE = "stale"


class Settlement(NamedTuple):
    """What a run tells the gate at its end, in the order in which `settle.lua` reads it.

    `took` is how many records the run took: where delays count from the last run, one that took none does not count.
    `handled` is how many of them the handler was given with success, which closes the circuit. With RETRY go
    `retry_ms`, whether the run `failed` or only waits, and what it blames; with `all_wait` the whole pipeline waits as
    long, and then begins with one run at a time. With STALE goes `owner`, the token that Postgres holds.
    """

    outcome: Outcome
    took: int = 1
    handled: int = 0
    failed: bool = True
    blame: Blame = Blame.NOBODY
    retry_ms: int = 0
    owner: str = ""
    all_wait: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Bounds of recovery, in whole milliseconds; see `taskbridge.settings`."""

    runner_ttl: int = 5_000
    republish: int = 5_000


class Begun(NamedTuple):
    """What a run learns when it begins.

    Counts of this burst (all its events, those since the last run, its runs with this one), how many runs before this
    one failed in a row, and in the burst's first run the milliseconds since its first event. `probe` is None unless the
    run probes an open circuit: then it says which of the tenant's records to try, counted from 0. `died`: the tenant's
    run before this one did not end, and was replaced.
    """

    events: int
    new_events: int
    runs: int
    failures: int
    age_ms: int
    probe: int | None = None
    died: bool = False


class Hold(StrEnum):
    """What a tenant that is held waits for."""

    TURN = "turn"
    WAIT_QUEUE = "wait queue"
    """A free run slot of its pipeline, the circuit, or the end of a wait of the whole pipeline."""
    RATE = "rate"
    RETRY = "retry"
    """The time until which it is held: a back-off, or what its handler asked for."""


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


class Due(NamedTuple):
    """Whom a ticker should start. Milliseconds until it should look again, and since the oldest deadline that passed.

    None: there is no deadline, or none has passed. `turns` is how many tenants, of all pipelines, wait for their turn.
    """

    tenants: list[str]
    next_ms: int | None
    late_ms: int | None
    turns: int = 0


class Reminder(NamedTuple):
    """A tenant with records that no run has looked at.

    `delay_ms` is the least time since its last run; `last_ms` when that was, in milliseconds of the Unix epoch, for a
    Redis that has forgotten it (None: there was none, or it does not matter).
    """

    tenant: str
    delay_ms: int
    last_ms: int | None = None


class TailHold(NamedTuple):
    """Whether this process looks after a pipeline's tail: 0, or the milliseconds until another's hold ends.

    `lost`: Redis lost its data, or came back with older data. `ends_ms`: when the hold ends, by the gate's clock.
    """

    wait_ms: int
    lost: bool
    ends_ms: int


class Survey(NamedTuple):
    """How a pipeline stands: the `tenants` with the earliest deadlines, and how many have a runner.

    `overdue_ms` is how long ago the earliest deadline passed, 0 if none has. `replaced` counts runs that died and were
    replaced, `republished` messages that were published again, both as far back as Redis remembers.
    """

    tenants: list[str]
    runners: int
    overdue_ms: int
    replaced: int
    republished: int
    circuit: CircuitStatus


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """One tenant as the gate sees it. Times are milliseconds of the Unix epoch by Redis's clock; None: not set."""

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


Publish = Callable[[Queue, str, str, str], None]
"""Publishes a run (queue, pipeline, tenant, token) where the scripts cannot do it themselves."""


class Gate:
    """The state machine of `taskbridge.gate.transitions` in Redis.

    Args:
        client: a redis-py client with `decode_responses=True`.
        keys: the deployment's keys.
        timing: bounds of recovery.
        publish: called after a script when a run must be published. None: the scripts push `message` themselves.
        message: the Lua text of `publish.lua` filled in by `taskbridge.gate.message`; needed without `publish`.
        queue_prefix: what kombu puts before a queue's name (`global_keyprefix`).
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        timing: Timing = Timing(),
        *,
        publish: Publish | None = None,
        message: str | None = None,
        queue_prefix: str = "",
    ) -> None:
        if (publish is None) == (message is None):
            raise TypeError("a gate takes either `publish` or `message`")
        self._client = client
        self._wire = Wire(client)
        self._ticker = _nonce()
        self._keys = keys
        self._begun_keys: dict[tuple[str, str, Queue | None], list[tuple[str, bool]]] = {}
        self._timing = timing
        self._publish = publish
        self._queue_prefix = queue_prefix
        publishing = read("publish_elsewhere.lua") if message is None else message
        self._scripts = {name: client.register_script(render(script, publishing)) for name, script in SCRIPTS.items()}

    def notify(self, pipeline: str, tenant: str, spacing: Spacing) -> Answer:
        """Count one event and start the tenant's runner if it has none. STARTED, DELAYED or ABSORBED."""
        reply = self._run("notify", pipeline, tenant, Queue.FIRST, *self._notify_args(pipeline, tenant, spacing))
        return self._published(reply, Queue.FIRST, pipeline, tenant)

    def notify_many(self, events: Sequence[tuple[str, str, Spacing]]) -> list[Answer]:
        """Notify (pipeline, tenant, spacing) each, in one round trip for each 500."""
        replies = self._wire.call(
            self._scripts["notify"],
            [
                (
                    self._keys_of("notify", pipeline, tenant, Queue.FIRST),
                    (*self._notify_args(pipeline, tenant, spacing), self._now()),
                )
                for pipeline, tenant, spacing in events
            ],
        )
        return [
            self._published(reply, Queue.FIRST, pipeline, tenant)
            for reply, (pipeline, tenant, _) in zip(replies, events, strict=True)
        ]

    def remind(
        self, pipeline: str, reminders: Sequence[Reminder], *, by_base: bool = False, most_reminded: int = 1
    ) -> list[Answer]:
        """Say that tenants have records that no run has handled. STARTED, POSTPONED, DELAYED or ABSORBED each.

        In one round trip; a script goes over 100 of them, so that nobody else waits long for Redis. `most_reminded` are
        published at once, less those of all pipelines that reminders published and that have not begun; the others wait
        for their turn, so that neither first events nor deadlines stand behind them.

        `by_base`: a base round found them. A run that is under way may be handling them, so it is not told; a tenant
        without one waits for its turn. Without `by_base` a run that is under way is followed by another.
        """
        beginnings = self._beginnings("remind", pipeline, Queue.FIRST)
        shared = [text for text, of_a_tenant in beginnings if not of_a_tenant]
        of_each = [text for text, of_a_tenant in beginnings if of_a_tenant]
        calls = []
        for start in range(0, len(reminders), REMINDED_AT_ONCE):
            some = reminders[start : start + REMINDED_AT_ONCE]
            keys = [text + tenant for tenant, _, _ in some for text in of_each]
            args: list[str | int] = [pipeline, self._timing.republish, most_reminded, int(by_base)]
            args += (_nonce(), self._now())
            for tenant, delay_ms, last_ms in some:
                args += (tenant, delay_ms, "" if last_ms is None else last_ms)
            calls.append(((*shared, *keys, self._keys.clock), args))
        replies = [reply for replies in self._wire.call(self._scripts["remind"], calls) for reply in replies]
        return [
            self._published(reply, Queue.FIRST, pipeline, reminder.tenant)
            for reply, reminder in zip(zip(replies[::2], replies[1::2], strict=True), reminders, strict=True)
        ]

    def begin(self, run: RunKey, *, most_runs: int = 0) -> Begun | Answer:
        """Take the runner for one run.

        REFUSED: the message is late or doubled, and nothing was changed. POSTPONED: the circuit is open, or `most_runs`
        (0: any number) are on; the tenant is in the wait queue.
        """
        times = (self._timing.runner_ttl, self._timing.republish)
        answer, *counts = self._run("begin", run.pipeline, run.tenant, None, *run, *times, most_runs)
        if answer != Answer.BEGUN:
            return Answer(answer)
        *counts, probe, died = counts
        return Begun(*counts)._replace(probe=None if probe < 0 else probe, died=bool(died))

    def beat(self, run: RunKey) -> bool:
        """Move the run's deadline on. False: another run took over."""
        (answer,) = self._run("beat", run.pipeline, run.tenant, None, run.tenant, run.token, self._timing.runner_ttl)
        return Answer(answer) is Answer.KEPT

    def settle(
        self, run: RunKey, end: Settlement, spacing: Spacing, *, most_handed: int = 1, most_runs: int = 0
    ) -> Answer:
        """End the run. CONTINUED, POSTPONED, LINGERING, FINISHED, HELD, REISSUED or LOST.

        A run that ends gives the next one its turn, unless `most_handed` messages of that kind are queued. `most_runs`
        is as in `begin`.
        """
        told = (int(value) if isinstance(value, bool) else value for value in end)
        times = (spacing.empty_tick, spacing.last_ttl, self._timing.republish)
        args = (*run, *told, *times, most_handed, most_runs, _nonce())
        reply = self._run("settle", run.pipeline, run.tenant, Queue.NEXT, *args)
        calls = reply[2:]
        answer = self._published(reply[:2], Queue.NEXT, run.pipeline, run.tenant)
        if len(calls) == 1:
            self.expire(run.pipeline, calls)
        elif calls:
            self.publish_turns(calls[1:])
        return answer

    def first_events(self) -> int:
        """Return how many first events wait for a worker; 0 where another server is the broker."""
        count: Any = self._client.llen(f"{self._queue_prefix}{self._keys.queue(Queue.FIRST)}")
        return int(count)

    def turns(self, limit: int) -> tuple[int, list[str]]:
        """Return how many tenants were given their turn and have not begun, and up to `limit` of those that are next.

        Each is text that `publish_turns` takes.
        """
        handed, *members = self._run("turn", "", "", None, limit)
        return handed, members

    def publish_turns(self, members: Sequence[str]) -> None:
        """Give those who wait for their turn theirs. Nothing happens to one that somebody else gave it meanwhile."""
        for member in members:
            pipeline, _, tenant = member.partition(":")
            (reply,) = self._expire(pipeline, [tenant], "turn")
            self._published(reply, Queue.NEXT, pipeline, tenant)

    def permit(self, run: RunKey, wanted: int, at_least: int, whole: Limits, each: Limits) -> tuple[int, int]:
        """Ask to deliver `wanted` records in one call under limits of the `whole` pipeline and of `each` tenant.

        Returns how many may go now. With 0 comes the number of milliseconds to wait until the call and up to `at_least`
        of them may: these are paid for, and given to the tenant's next run that asks. With `at_least` 0 all may go
        in any case, and are charged for.
        """
        all_limits = (whole.records, each.records, whole.calls, each.calls)
        limits = [part for limit in all_limits for part in ((limit.interval_us, limit.most) if limit else (0, 0))]
        permitted, wait_ms = self._run("permit", run.pipeline, run.tenant, None, run.token, wanted, at_least, *limits)
        return permitted, wait_ms

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

    def peek(self, pipeline: str, limit: int) -> tuple[list[str], int | None]:
        """Return up to `limit` tenants that are due, and the milliseconds until the next deadline (None: no other)."""
        wait_ms, *tenants = self._run("peek", pipeline, "", None, limit)
        return tenants, None if wait_ms < 0 else wait_ms

    def tick(self, pipeline: str, limit: int) -> Due:
        """Return up to `limit` tenants that this ticker should start, and when it should look again.

        Nobody, while another ticker is at work or enough of them are queued.
        """
        wait_ms, late_ms, turns, *tenants = self._run(
            "tick", pipeline, "", None, limit, MOST_SENT, self._ticker, TICKER_HOLDS_MS
        )
        return Due(tenants, None if wait_ms < 0 else wait_ms, None if late_ms < 0 else late_ms, turns)

    def expire(self, pipeline: str, tenants: Sequence[str], *, early: bool = False) -> list[Answer]:
        """Act on deadlines that passed, in one round trip.

        PUBLISHED, REPUBLISHED, REISSUED, POSTPONED, ENDED or NOT_DUE each.

        With `early` a tenant that waits, for whatever reason, is started before its deadline.
        """
        replies = self._expire(pipeline, tenants, "early" if early else "")
        return [
            self._published(reply, Queue.NEXT, pipeline, tenant) for reply, tenant in zip(replies, tenants, strict=True)
        ]

    def expire_together(self, pipeline: str, tenants: Sequence[str]) -> list[tuple[str, str]]:
        """Act on deadlines that passed, and leave it to the caller to publish: return the (tenant, token) of each run.

        A run whose message never comes is published again when its new deadline passes.
        """
        replies = self._expire(pipeline, tenants, "", together=True)
        return [(tenant, reply[1]) for reply, tenant in zip(replies, tenants, strict=True) if len(reply) == 2]

    def _expire(self, pipeline: str, tenants: Sequence[str], why: str, *, together: bool = False) -> list[list[Any]]:
        return self._wire.call(
            self._scripts["expire"],
            [
                (
                    self._keys_of("expire", pipeline, tenant, Queue.NEXT),
                    (pipeline, tenant, self._timing.republish, why, int(together), _nonce(), self._now()),
                )
                for tenant in tenants
            ],
        )

    def look(self, pipeline: str, tenants: Sequence[str]) -> list[RunnerStatus]:
        """Return how `tenants` stand, in one round trip, changing nothing."""
        with self._client.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.hgetall(self._keys.runner(pipeline, tenant))
                pipe.zscore(self._keys.due(pipeline), tenant)
                pipe.get(self._keys.lease(pipeline, tenant))
            replies: list[Any] = pipe.execute()
        return [_status(*replies[at : at + 3]) for at in range(0, len(replies), 3)]

    def active(self, pipeline: str) -> list[str]:
        """Return the tenants that are not idle: those with a deadline."""
        tenants: Any = self._client.zrange(self._keys.due(pipeline), 0, -1)
        return list(tenants)

    def remember_last(self, pipeline: str, starts: Sequence[tuple[str, int]], spacing: Spacing) -> None:
        """Keep when the last run of each tenant began, for as long as it can delay the next.

        `starts` are (tenant, milliseconds) each. A later start that Redis knows stays, and is kept as long.
        """
        self._wire.call(
            self._scripts["remember"],
            [
                (self._keys_of("remember", pipeline, tenant, None), (last_ms, spacing.last_ttl, self._now()))
                for tenant, last_ms in starts
            ],
        )

    def rebuilt_for(self, pipeline: str) -> int | None:
        """Return the longest delay (milliseconds) for which all last runs that matter are in Redis.

        None: they need not be, as after Redis lost its data, and once a day.
        """
        kept: Any = self._client.get(self._keys.rebuilt(pipeline))
        return None if kept is None else int(kept)

    def begin_rebuilding(self, pipeline: str) -> None:
        """Note that `mark_rebuilt` will come, unless Redis loses its data in between."""
        self._client.set(self._keys.rebuilt(pipeline), 0, ex=86_400)

    def mark_rebuilt(self, pipeline: str, longest_ms: int) -> None:
        """Note that all last runs that can matter under this longest delay are in Redis."""
        self._client.set(self._keys.rebuilt(pipeline), longest_ms, ex=86_400, xx=True)

    def hold_tail(self, pipeline: str, hold_ms: int, last: TailHold | None = None) -> TailHold:
        """Ask whether this process may look after a pipeline's tail for so many milliseconds; `last`: what it heard."""
        had_until = 0 if last is None else last.ends_ms
        wait_ms, lost, ends_ms = self._run("hold_tail", pipeline, "", None, self._ticker, hold_ms, had_until)
        return TailHold(wait_ms, bool(lost), ends_ms)

    def check_version(self) -> None:
        """Raise Unavailable, with the remedy, where the server is older than Redis 6.2."""
        info: Any = self._client.info("server")
        found = str(info["redis_version"])
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST_REDIS:
            oldest = ".".join(map(str, OLDEST_REDIS))
            raise Unavailable(f"Redis {found} is too old: upgrade it to {oldest} or newer, or use Valkey")

    def _notify_args(self, pipeline: str, tenant: str, spacing: Spacing) -> tuple[str | int, ...]:
        return (pipeline, tenant, spacing.delay, spacing.lease, self._timing.republish, _nonce())

    def _keys_of(self, name: str, pipeline: str, tenant: str, queue: Queue | None) -> list[str]:
        keys = [text + tenant if of_a_tenant else text for text, of_a_tenant in self._beginnings(name, pipeline, queue)]
        keys.append(self._keys.clock)
        return keys

    def _beginnings(self, name: str, pipeline: str, queue: Queue | None) -> list[tuple[str, bool]]:
        """Return the keys of a script, each without its tenant and whether one comes after it."""
        found = self._begun_keys.get((name, pipeline, queue))
        if found is None:
            found = self._begun_keys[name, pipeline, queue] = [
                (f"{self._queue_prefix}{self._keys.queue(of)}", False)
                if (of := {"queue": queue, "first": Queue.FIRST}.get(kind)) is not None
                else beginning(self._keys, kind, pipeline)
                for kind in (*SCRIPTS[name].keys, *SCRIPTS[name].keys_of_each)
            ]
        return found

    def _now(self) -> str:
        """Nothing: the scripts ask the server. Tests that move time override this."""
        return ""

    def _run(self, name: str, pipeline: str, tenant: str, queue: Queue | None, *args: str | float) -> list[Any]:
        keys = self._keys_of(name, pipeline, tenant, queue)
        reply: list[Any]
        (reply,) = self._wire.call(self._scripts[name], [(keys, (*args, self._now()))])
        return reply

    def _published(self, reply: Sequence[Any], queue: Queue, pipeline: str, tenant: str) -> Answer:
        """Turn a reply into its answer; a reply that carries a token is a run that must be published."""
        if self._publish is not None and len(reply) == 2 and reply[1]:
            self._publish(queue, pipeline, tenant, reply[1])
        return Answer(reply[0])


def _nonce() -> str:
    """Tell tokens of one microsecond apart, should a Redis whose clock stepped back make the same twice."""
    return os.urandom(3).hex()


def _now_ms(time: tuple[int, int], clock: list[str | None]) -> int:
    """Return what `clock_us` does, in milliseconds."""
    offset, mark = (int(text or 0) for text in clock)
    seconds, microseconds = time
    return max(seconds * 1_000_000 + microseconds + offset, mark) // 1000


def _circuit(fields: dict[str, str], waiting: int) -> CircuitStatus:
    until, opened_at, closed_at, rests_until = (
        int(fields[name]) if name in fields else None for name in ("until", "opened_at", "closed_at", "rest")
    )
    probes, opened = int(fields.get("probes", 0)), int(fields.get("opened", 0))
    return CircuitStatus(until is not None, until, probes, opened, opened_at, closed_at, waiting, rests_until)


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
    )


def _status(runner: dict[str, str], deadline: float | None, lease_ends: str | None) -> RunnerStatus:
    return RunnerStatus(
        state=State(runner.get("state", State.IDLE)),
        token=runner.get("token"),
        events=int(runner.get("events", 0)),
        runs=int(runner.get("runs", 0)),
        held="held" in runner,
        waits_for_turn=runner.get("held") in WAITS_FOR_TURN,
        began_ms=int(runner["began"]) if "began" in runner else None,
        deadline_ms=None if deadline is None else int(deadline),
        lease_ends_ms=None if lease_ends is None else int(lease_ends),
        hold=_hold(runner),
    )


def _hold(runner: dict[str, str]) -> Hold | None:
    if "held" not in runner:
        return None
    if runner["held"] in WAITS_FOR_TURN:
        return Hold.TURN
    if "joined" in runner:
        return Hold.WAIT_QUEUE
    # Only who waits for a rate limit has paid for what it may deliver.
    return Hold.RATE if "permits" in runner else Hold.RETRY
