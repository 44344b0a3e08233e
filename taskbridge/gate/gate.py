"""The gate for producers, runs and tickers; most methods are one script and one round trip.

The queries of operators and metrics are in `taskbridge.gate.inspector`.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.common.server_errors import is_refused
from taskbridge.declaring.policy import Limits, Spacing
from taskbridge.gate.constants import Constant
from taskbridge.gate.inspector import Inspector, incompatible
from taskbridge.gate.keys import Keys, Queue, beginning
from taskbridge.gate.message import PROBE, RUN_TASK_TEXT
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.gate.state import Answer
from taskbridge.gate.values import Begun, DeadRun, Due, Message, Notified, PollingHold, Reminder, Settlement, Timing
from taskbridge.gate.wire import Call, Wire

__all__ = ["Gate"]

T = TypeVar("T")

MOST_DUE_IN_FLIGHT: Final = 100
"""Tickers publish no more runs of a pipeline while this many published by deadlines are in flight."""
AT_ONCE: Final = 100
"""How many tenants one script call processes, so that no other client waits long for Redis."""
ANSWER_LASTS_MS: Final = 10_000
_ANSWERS: Final = {answer.value: answer for answer in Answer}
"""Ten times as fast as an enum's own lookup; a pass of the change poller needs a thousand."""
_NOT_PERMITTED: Final = re.compile("NoPermissionError|ACL failure|user executing the script")
"""Errors of Redis for a user who may not send a command, also within a script."""
_OWN_ARGS: Final = ("nonce", "now_ms")
_LONG_NONCES: Final = frozenset({"begin", "take"})
"""Scripts that store a nonce: two calls with the same one would do harm, so theirs are longer."""
_ENDINGS: Final = {
    name: [(8 if name in _LONG_NONCES else 3) if arg == "nonce" else 0 for arg in script.args if arg in _OWN_ARGS]
    for name, script in SCRIPTS.items()
}
"""By script, the size of its nonce in bytes, and 0 for the time."""
TICKER_HOLDS_MS: Final = 50
"""How long other tickers leave a pipeline to the ticker that found work, even if that one dies."""

Publish = Callable[[Queue, str, str, str], None]
"""Publishes a run (queue, pipeline, tenant, token) if the scripts cannot."""


class Gate(Inspector):
    """The state machine of `taskbridge.gate.state` in Redis.

    Args:
        client: a redis-py client with `decode_responses=True`.
        keys: the deployment's keys.
        timing: recovery times.
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
        super().__init__(client, keys, queue_prefix=None if message is None else queue_prefix)
        self._wire = Wire(client)
        self._ticker = self._nonce()
        self._texts: dict[tuple[str, str, Queue | None], list[tuple[str, bool]]] = {}
        self._timing = timing
        self._publish = publish
        self._calling = threading.local()
        self._queue_prefix = queue_prefix
        publishing = read("publish_elsewhere.lua") if message is None else message
        self._scripts = {name: client.register_script(render(script, publishing)) for name, script in SCRIPTS.items()}

    def check_scripts(self) -> None:
        """Check that the server runs scripts as Redis does; this is skipped if it refuses writes, or this user's.

        Raises:
            ConfigurationError: it does not.
        """
        try:
            (passed,) = self._run("check", self._nonce(), "", None)
        except redis.ResponseError as error:
            if is_refused(error) or _NOT_PERMITTED.search(f"{type(error).__name__} {error}"):
                return
            raise incompatible(self._client, error) from None
        if not passed:
            raise incompatible(self._client, "its Lua gives other results")

    def notify(self, pipeline: str, tenant: str, spacing: Spacing) -> Answer:
        """Count one event and start the tenant's runner if it has none; return STARTED, DELAYED or ABSORBED."""
        # A faster version of `notify_many` for one event, because a producer waits for it.
        texts = self._key_texts("notify", pipeline, Queue.FIRST)
        keys = [f"{text}{tenant}" if of_a_tenant else text for text, of_a_tenant in texts]
        own = (tenant, spacing.delay, spacing.lease)
        call: Call = ((*keys, self._keys.clock), (pipeline, self._timing.republish, "", *self._ending("notify"), *own))
        (reply,) = self._wire.call(self._scripts["notify"], [call])
        return self._published(reply, Queue.FIRST, pipeline, tenant)

    def notify_many(self, events: Sequence[tuple[str, str, Spacing]]) -> list[Answer]:
        """Notify (pipeline, tenant, spacing) each, in one round trip; one script call takes 100 of a pipeline."""
        if len(events) == 1:
            return [self.notify(*events[0])]
        return [answer for answer, _ in self._notify_each(events, "")]

    def notify_traced(self, events: Sequence[tuple[str, str, Spacing]], traceparent: str) -> list[Notified]:
        """Notify as `notify_many`, with the sender's span as `traceparent`; return also the run and burst of each."""
        return [
            Notified(answer, *(runner if isinstance(runner, list) else (runner or "", "")))
            for answer, runner in self._notify_each(events, traceparent)
        ]

    def _notify_each(
        self, events: Sequence[tuple[str, str, Spacing]], traceparent: str
    ) -> Sequence[tuple[Answer, Any]]:
        tenants: dict[str, list[tuple[str | int, ...]]] = {}
        for pipeline, tenant, spacing in events:
            tenants.setdefault(pipeline, []).append((tenant, spacing.delay, spacing.lease))
        shared = (self._timing.republish, traceparent)
        answers = self._for_each("notify", {name: (shared, of_pipeline) for name, of_pipeline in tenants.items()})
        return answers if len(tenants) == 1 else _in_order([pipeline for pipeline, *_ in events], answers)

    def remind(
        self,
        pipeline: str,
        reminders: Sequence[Reminder],
        *,
        by_reconciler: bool = False,
        most_in_flight: int = 1,
        keeps_last: bool = True,
    ) -> list[Answer]:
        """Remind tenants of records that no run has handled; return STARTED, POSTPONED, DELAYED or ABSORBED for each.

        This takes one round trip; one script call takes 100 tenants. `most_in_flight` runs are published at once, minus
        the runs of reminders that are in flight; the other tenants wait for their turn, so that neither first events
        nor deadlines queue behind them.

        `by_reconciler`: the reconciler found them. A run in progress may be handling them, so it is left alone; a
        tenant without a run waits for its turn. Without `by_reconciler`, a run in progress is followed by another.

        `keeps_last`: the pipeline's delays count from the last run, so Redis is asked for it.
        """
        tenants = [(tenant, delay, "" if last is None else last) for tenant, delay, last in reminders]
        shared = (self._timing.republish, most_in_flight, int(by_reconciler), int(keeps_last))
        return [answer for answer, _ in self._for_each("remind", {pipeline: (shared, tenants)})]

    def _for_each(
        self, name: str, work: Mapping[str, tuple[tuple[str | int, ...], Sequence[tuple[str | int, ...]]]]
    ) -> list[tuple[Answer, Any]]:
        """Run a script that publishes to the queue of first events for many tenants of several pipelines.

        `work` has, by pipeline, its arguments and those of each tenant, which begin with the tenant's name. Returns for
        each tenant the answer and the second value of the script's reply.
        """
        calls: list[Call] = []
        for pipeline, (args, tenants) in work.items():
            texts = self._key_texts(name, pipeline, Queue.FIRST)
            shared = [text for text, of_a_tenant in texts if not of_a_tenant]
            own = [text for text, of_a_tenant in texts if of_a_tenant]
            for start in range(0, len(tenants), AT_ONCE):
                part = tenants[start : start + AT_ONCE]
                keys = [f"{text}{tenant}" for tenant, *_ in part for text in own]
                values = (pipeline, *args, *self._ending(name), *chain.from_iterable(part))
                calls.append(((*shared, *keys, self._keys.clock), values))
        replies = list(chain.from_iterable(self._wire.call(self._scripts[name], calls)))
        answers, rest = replies[::2], replies[1::2]
        if self._publish is not None:
            runs = [(pipeline, str(tenant)) for pipeline, (_, tenants) in work.items() for tenant, *_ in tenants]
            for reply, run in zip(zip(answers, rest, strict=True), runs, strict=True):
                self._published(reply, Queue.FIRST, *run)
        return list(zip(map(_ANSWERS.__getitem__, answers), rest, strict=True))

    def begin_many(self, runs: Sequence[tuple[RunKey, int]], worker: str = "") -> list[Begun | Answer]:
        """Begin runs of different tenants, in one round trip; `worker` is the name of the caller.

        `runs` has for each run the cap on its pipeline's runs (0: none). REFUSED: the message is late or duplicated,
        and nothing was changed. POSTPONED: the tenant is in the wait queue, because the circuit is open or because the
        cap is reached.
        """
        times = (self._timing.runner_ttl, self._timing.republish)
        begins = [(run.pipeline, run.tenant, (*run, *times, most_runs, worker)) for run, most_runs in runs]
        return [_begun(reply) for reply in self._call("begin", begins)]

    def decline(self, runs: Sequence[RunKey]) -> list[Answer]:
        """Give up runs whose pipelines this worker does not declare, in one round trip; return DECLINED or LOST each.

        The ticker of a worker that declares the pipeline publishes the run again. If there is none, nothing circulates.
        If a run had a turn, the next tenant in the fair queue gets it.
        """
        replies = self._call("decline", [(run.pipeline, run.tenant, (*run, self._timing.republish)) for run in runs])
        self.publish_waiting([*dict.fromkeys(member for _, *members in replies for member in members if member)])
        return [Answer(answer) for answer, *_ in replies]

    def take(self, most_first: int, most_next: int) -> tuple[list[Message], list[str]]:
        """Take up to `most_first` first events, and up to `most_next` messages in all, out of the queues of runs.

        Returns the messages and, for the remaining room, the next members of the fair queue, as `publish_waiting` takes
        them. First events come before the others, except that every fourth message is a continuation if one waits. Use
        it only if the scripts publish the messages themselves. It stops at a message that is not a run.
        """
        # A thread sends no second call before it has the reply to its first.
        caller = f"{self._ticker}.{os.getpid()}.{threading.get_ident()}"
        *texts_of, waiting = self._run("take", "", caller, None, most_first, most_next, RUN_TASK_TEXT)
        firsts, nexts = (
            [Message(queue, text, RunKey(*json.loads(json.loads(text)["body"])[0])) for text in texts]
            for queue, texts in zip(Queue, texts_of, strict=True)
        )
        row = int(Constant.FIRSTS_IN_A_ROW)
        merged: list[Message] = []
        while firsts or nexts:
            merged += [*firsts[:row], *nexts[:1]]
            firsts, nexts = firsts[row:], nexts[1:]
        return merged, waiting

    def has_waiting_first_event(self) -> bool:
        """Whether a first event waits in its queue for a slot. False if the broker is another server."""
        if self._publish is not None:
            return False
        try:
            return bool(self._client.llen(f"{self._queue_prefix}{self._keys.queue(Queue.FIRST)}"))
        except redis.RedisError:
            # Whoever asks has records to handle, and learns soon enough that Redis is unavailable.
            return False

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put messages that `take` returned back at the front of their queues."""
        with self._client.pipeline(transaction=False) as pipe:
            for message in reversed(messages):
                pipe.rpush(f"{self._queue_prefix}{self._keys.queue(message.queue)}", message.text)
            pipe.execute()

    def beat(self, run: RunKey) -> bool:
        """Extend the run's deadline. False: another run took over."""
        (answer,) = self._run("beat", run.pipeline, run.tenant, None, run.tenant, run.token, self._timing.runner_ttl)
        return Answer(answer) is Answer.KEPT

    def settle_many(
        self, runs: Sequence[tuple[RunKey, Settlement, Spacing, int]], *, most_in_flight: int = 1
    ) -> list[Answer]:
        """End runs, each with the spacing and the cap on runs of its pipeline, in one round trip.

        Returns CONTINUED, POSTPONED, LINGERING, FINISHED, HELD, REISSUED or LOST for each. A run that ends publishes a
        run of the next tenant in the fair queue, unless `most_in_flight` of that kind are in flight.
        """
        ends = []
        for run, settlement, spacing, most_runs in runs:
            values = (int(value) if isinstance(value, bool) else value for value in settlement)
            times = (spacing.empty_tick, spacing.last_ttl, self._timing.republish)
            ends.append((run.pipeline, run.tenant, (*run, *values, *times, most_in_flight, most_runs)))
        answers, waiting, calls_of_others = [], dict[str, None](), list[Callable[[], object]]()
        for (run, *_), reply in zip(runs, self._call("settle", ends, Queue.NEXT), strict=True):
            called = reply[2:]
            answers.append(self._published(reply[:2], Queue.NEXT, run.pipeline, run.tenant))
            if len(called) == 1:
                calls_of_others.append(partial(self.expire, run.pipeline, called))
            # Runs that end together may name the same one.
            waiting |= dict.fromkeys(called[1:])
        if waiting:
            calls_of_others.append(partial(self.publish_waiting, [*waiting]))
        self._call_others(calls_of_others)
        return answers

    def _call_others(self, calls: list[Callable[[], object]]) -> None:
        """Start the runs that follow a run that ended.

        In eager mode this executes them, and each may be followed by others: these are started here too, not nested.
        """
        outer: deque[Callable[[], object]] | None = getattr(self._calling, "calls", None)
        if outer is not None:
            outer.extend(calls)
            return
        waiting = self._calling.calls = deque(calls)
        try:
            while waiting:
                waiting.popleft()()
        finally:
            del self._calling.calls

    def fair_queue(self, limit: int) -> list[str]:
        """Return up to `limit` members of the fair queue, the next one first, as `publish_waiting` takes them."""
        members: Any = self._client.zrange(self._keys.fair_queue, 0, limit - 1) if limit > 0 else []
        return list(members)

    def publish_waiting(self, members: Sequence[str]) -> None:
        """Give members of the fair queue their turn, in one round trip; those that have had it already are skipped."""
        runs = [(pipeline, tenant) for pipeline, _, tenant in (member.partition(":") for member in members)]
        for run, reply in zip(runs, self._expire(runs, "turn"), strict=True):
            self._published(reply, Queue.NEXT, *run)

    def permit(self, run: RunKey, wanted: int, at_least: int, whole: Limits, each: Limits) -> tuple[int, int]:
        """Ask to deliver `wanted` records in one call under the limits of the `whole` pipeline and of `each` tenant.

        Returns how many are allowed now. If that is 0, the second value is the wait in milliseconds until the call and
        up to `at_least` records are allowed: these are charged already, and granted to the tenant's next run that asks.
        With `at_least` 0 all are allowed in any case, and charged.
        """
        all_limits = (whole.records, each.records, whole.calls, each.calls)
        limits = [part for limit in all_limits for part in ((limit.interval_us, limit.most) if limit else (0, 0))]
        permitted, wait_ms = self._run("permit", run.pipeline, run.tenant, None, run.token, wanted, at_least, *limits)
        return permitted, wait_ms

    def tick(self, pipeline: str, limit: int) -> Due:
        """Return up to `limit` tenants that this ticker should start, and when to tick again.

        Returns no tenant while another ticker is active or enough runs are in flight.
        """
        wait_ms, late_ms, waiting, *tenants = self._run(
            "tick", pipeline, "", None, limit, MOST_DUE_IN_FLIGHT, self._ticker, TICKER_HOLDS_MS
        )
        return Due(tenants, None if wait_ms < 0 else wait_ms, None if late_ms < 0 else late_ms, waiting)

    def expire(self, pipeline: str, tenants: Sequence[str], *, early: bool = False) -> list[Answer]:
        """Act on deadlines that have passed, in one round trip.

        Returns PUBLISHED, REPUBLISHED, REISSUED, POSTPONED, ENDED or NOT_DUE for each. With `early`, a waiting tenant
        is started before its deadline, whatever it waits for.
        """
        replies = self._expire([(pipeline, tenant) for tenant in tenants], "early" if early else "")
        return [
            self._published(reply, Queue.NEXT, pipeline, tenant) for reply, tenant in zip(replies, tenants, strict=True)
        ]

    def _expire(self, runs: Sequence[tuple[str, str]], why: str) -> list[Any]:
        shared = (self._timing.republish, why)
        return self._call("expire", [(*run, (*run, *shared)) for run in runs], Queue.NEXT)

    def remember_last(self, pipeline: str, starts: Sequence[tuple[str, int]], spacing: Spacing) -> None:
        """Store when the last run of each tenant began, for as long as it can delay the next.

        `starts` are pairs (tenant, milliseconds). A later start that Redis knows is kept instead.
        """
        self._call("remember", [(pipeline, tenant, (last_ms, spacing.last_ttl)) for tenant, last_ms in starts])

    def rebuilt_for(self, pipeline: str) -> int | None:
        """Return the longest delay (milliseconds) for which all relevant last runs are in Redis.

        None: some may be missing, as after Redis lost its data; this also expires once a day.
        """
        kept: Any = self._client.get(self._keys.rebuilt(pipeline))
        return None if kept is None else int(kept)

    def begin_rebuilding(self, pipeline: str) -> None:
        """Prepare for `mark_rebuilt`, which has no effect if Redis loses its data in between."""
        self._client.set(self._keys.rebuilt(pipeline), 0, px=int(Constant.DAY_MS))

    def mark_rebuilt(self, pipeline: str, longest_ms: int) -> None:
        """Note that all last runs that are relevant with this longest delay are in Redis."""
        self._client.set(self._keys.rebuilt(pipeline), longest_ms, px=int(Constant.DAY_MS), xx=True)

    def probe(self, queue: Queue, token: str) -> str | None:
        """Publish a probe the way runs are published; return its message for `withdraw` if the script published it."""
        (text,) = self._run("probe", "", "", queue, PROBE, PROBE, token)
        if self._publish is None:
            return str(text)
        self._publish(queue, PROBE, PROBE, token)
        return None

    def withdraw(self, queue: Queue, text: str) -> bool:
        """Take a probe's message out of its queue; False: a worker has taken it."""
        return bool(self._client.lrem(f"{self._queue_prefix}{self._keys.queue(queue)}", 1, text))

    def answer(self, token: str, worker: str) -> None:
        """Store which worker took a probe."""
        self._client.set(self._keys.probe(token), worker, px=ANSWER_LASTS_MS)

    def answered(self, token: str) -> str | None:
        """Return (once) the worker that took a probe; None: none yet."""
        worker: Any = self._client.getdel(self._keys.probe(token))
        return None if worker is None else str(worker)

    def own(self, database: str, label: str, began_ms: int = 0, pipelines: Iterable[str] = ()) -> tuple[str, int]:
        """Take the gate for the deployment of a database, or keep it.

        Args:
            database: identifies the database; without spaces.
            label: a readable name of it.
            began_ms: since when this process knows that its deployment owns the gate; 0: it is starting.
            pipelines: where to look for work left by an owner without workers.

        Returns:
            The label of another deployment if that owns the gate, else ""; and since when the gate is owned.
        """
        other, began, is_away = self._run("own", "", "", None, database, label, began_ms, 0)
        if other and is_away and not self._has_work(pipelines):
            other, began, _ = self._run("own", "", "", None, database, label, began_ms, 1)
        return other, began

    def _has_work(self, pipelines: Iterable[str]) -> bool:
        """Whether there are deadlines, or messages in the queues."""
        with self._client.pipeline(transaction=False) as pipe:
            for pipeline in pipelines:
                pipe.zcard(self._keys.due(pipeline))
            for queue in self._keys.queues:
                pipe.llen(f"{self._queue_prefix}{queue}")
            return any(pipe.execute())

    def hold_polling(self, pipeline: str, hold_ms: int, last: PollingHold | None = None) -> PollingHold:
        """Ask for the hold of a pipeline's change poller for so many milliseconds; `last`: the previous answer."""
        had_until = 0 if last is None else last.ends_ms
        wait_ms, lost, ends_ms = self._run("hold_polling", pipeline, "", None, self._ticker, hold_ms, had_until)
        return PollingHold(wait_ms, bool(lost), ends_ms)

    def _run(self, name: str, pipeline: str, tenant: str, queue: Queue | None, *args: str | float) -> Any:
        """Run a script once and return its reply."""
        (reply,) = self._call(name, [(pipeline, tenant, args)], queue)
        return reply

    def _call(
        self, name: str, calls: Iterable[tuple[str, str, tuple[str | float, ...]]], queue: Queue | None = None
    ) -> list[Any]:
        """Run a script once for each (pipeline, tenant, arguments), in one round trip; return the replies."""
        made: list[Call] = []
        for pipeline, tenant, args in calls:
            texts = self._key_texts(name, pipeline, queue)
            keys = [text + tenant if of_a_tenant else text for text, of_a_tenant in texts]
            made.append(((*keys, self._keys.clock), (*args, *self._ending(name))))
        return self._wire.call(self._scripts[name], made)

    def _key_texts(self, name: str, pipeline: str, queue: Queue | None) -> list[tuple[str, bool]]:
        """Return the keys of a script, each without its tenant, and whether a tenant is appended to it."""
        texts = self._texts.get((name, pipeline, queue))
        if texts is None:
            texts = self._texts[name, pipeline, queue] = [
                (f"{self._queue_prefix}{self._keys.queue(of)}", False)
                if (of := {"queue": queue, "first": Queue.FIRST, "next": Queue.NEXT}.get(kind)) is not None
                else beginning(self._keys, kind, pipeline)
                for kind in (*SCRIPTS[name].keys, *SCRIPTS[name].keys_of_each)
            ]
        return texts

    def _ending(self, name: str) -> tuple[str, ...]:
        """Return a script's last arguments: a nonce and the time, if it takes them."""
        return tuple(self._nonce(size) if size else self._now() for size in _ENDINGS[name])

    def _nonce(self, size: int = 3) -> str:
        """Return a value unique to a call, even if Redis's clock stepped back.

        It is the random part of the tokens that the call issues, so a script recognizes a call that is repeated because
        its reply was lost.
        """
        return os.urandom(size).hex()

    def _now(self) -> str:
        """Return "": the scripts ask the server. Tests that move time override this."""
        return ""

    def _published(self, reply: Sequence[Any], queue: Queue, pipeline: str, tenant: str) -> Answer:
        """Turn a reply into its answer. A reply with a token is a run that must be published."""
        if self._publish is not None and len(reply) == 2 and isinstance(reply[1], str):
            self._publish(queue, pipeline, tenant, reply[1])
        return Answer(reply[0])


def _in_order(pipelines: Sequence[str], answers: Sequence[T]) -> list[T]:
    """Bring answers, which are in order within each pipeline, into the order of `pipelines`."""
    remaining: dict[str, Iterator[T]] = {}
    at = 0
    for name, count in Counter(pipelines).items():
        remaining[name] = iter(answers[at : at + count])
        at += count
    return [next(remaining[name]) for name in pipelines]


def _begun(reply: Sequence[Any]) -> Begun | Answer:
    answer, *counts = reply
    if answer != Answer.BEGUN:
        return Answer(answer)
    events, new_events, runs, failures, age_ms, probe, died, traceparent, found, burst = counts
    age, probed = None if age_ms < 0 else age_ms, None if probe < 0 else probe
    dead = DeadRun(*died.partition(" ")[::2]) if died else None
    return Begun(events, new_events, runs, failures, age, probed, dead, traceparent, bool(found), burst)
