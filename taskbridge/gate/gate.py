"""The gate as producers, runs and tickers call it; most methods are one script and one round trip.

What operators and metrics ask is in `taskbridge.gate.inspector`.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Limits, Spacing
from taskbridge.gate.constants import Constant
from taskbridge.gate.inspector import Inspector
from taskbridge.gate.keys import Keys, Queue, beginning
from taskbridge.gate.message import PROBE, RUN_TASK_TEXT
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.gate.state import Answer
from taskbridge.gate.values import Begun, DeadRun, Due, Message, Notified, Reminder, Settlement, PollingHold, Timing
from taskbridge.gate.wire import Call, Wire

__all__ = ["Gate"]

T = TypeVar("T")

MOST_DUE_IN_FLIGHT: Final = 100
"""Where so many runs of a pipeline are in flight that deadlines published, tickers publish no more."""
AT_ONCE: Final = 100
"""How many tenants one call of a script goes over, so that nobody else waits long for Redis."""
ANSWER_LASTS_MS: Final = 10_000
_ANSWERS: Final = {answer.value: answer for answer in Answer}
"""An enum's own look-up costs ten times as much, and a round of the tail makes a thousand."""
_OWN_ARGS: Final = ("nonce", "now_ms")
_LONG_NONCES: Final = frozenset({"begin", "take"})
"""Scripts that keep a nonce: two calls with the same one would do harm, so theirs are longer."""
_ENDINGS: Final = {
    name: [(8 if name in _LONG_NONCES else 3) if arg == "nonce" else 0 for arg in script.args if arg in _OWN_ARGS]
    for name, script in SCRIPTS.items()
}
"""Of each script the bytes of its nonce, and 0 for the time."""
TICKER_HOLDS_MS: Final = 50
"""How long other tickers leave a pipeline to the one that found work, even if that one dies."""

Publish = Callable[[Queue, str, str, str], None]
"""Publishes a run (queue, pipeline, tenant, token) where the scripts cannot do it themselves."""


class Gate(Inspector):
    """The state machine of `taskbridge.gate.state` in Redis.

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

    def notify(self, pipeline: str, tenant: str, spacing: Spacing) -> Answer:
        """Count one event and start the tenant's runner if it has none. STARTED, DELAYED or ABSORBED."""
        # What `notify_many` does for one event, by a shorter way: a producer waits for it.
        texts = self._key_texts("notify", pipeline, Queue.FIRST)
        keys = [f"{text}{tenant}" if of_a_tenant else text for text, of_a_tenant in texts]
        own = (tenant, spacing.delay, spacing.lease)
        call: Call = ((*keys, self._keys.clock), (pipeline, self._timing.republish, "", *self._ending("notify"), *own))
        (reply,) = self._wire.call(self._scripts["notify"], [call])
        return self._published(reply, Queue.FIRST, pipeline, tenant)

    def notify_many(self, events: Sequence[tuple[str, str, Spacing]]) -> list[Answer]:
        """Notify (pipeline, tenant, spacing) each, in one round trip; a script goes over 100 of a pipeline."""
        return [answer for answer, _ in self._notify_each(events, "")]

    def notify_traced(self, events: Sequence[tuple[str, str, Spacing]], traceparent: str) -> list[Notified]:
        """Notify as `notify_many`; `traceparent` is the sender's span. Says of each which run and which burst it is."""
        return [
            Notified(answer, *(told if isinstance(told, list) else (told or "", "")))
            for answer, told in self._notify_each(events, traceparent)
        ]

    def _notify_each(
        self, events: Sequence[tuple[str, str, Spacing]], traceparent: str
    ) -> Sequence[tuple[Answer, Any]]:
        tenants: dict[str, list[tuple[str | int, ...]]] = {}
        for pipeline, tenant, spacing in events:
            tenants.setdefault(pipeline, []).append((tenant, spacing.delay, spacing.lease))
        shared = (self._timing.republish, traceparent)
        found = self._for_each("notify", {name: (shared, some) for name, some in tenants.items()})
        return found if len(tenants) == 1 else _in_order([pipeline for pipeline, *_ in events], found)

    def remind(
        self,
        pipeline: str,
        reminders: Sequence[Reminder],
        *,
        by_reconciler: bool = False,
        most_in_flight: int = 1,
        keeps_last: bool = True,
    ) -> list[Answer]:
        """Say that tenants have records that no run has handled. STARTED, POSTPONED, DELAYED or ABSORBED each.

        In one round trip; a script goes over 100 of them. `most_in_flight` are published at once, less the runs
        of reminders that are in flight; the others wait for their turn, so that neither first events nor deadlines
        stand behind them.

        `by_reconciler`: a base round found them. A run that is under way may be handling them, so it is not told; a tenant
        without one waits for its turn. Without `by_reconciler` a run that is under way is followed by another.

        `keeps_last`: the pipeline's delays count from the last run, so Redis is asked for it.
        """
        told = [(tenant, delay, "" if last is None else last) for tenant, delay, last in reminders]
        shared = (self._timing.republish, most_in_flight, int(by_reconciler), int(keeps_last))
        return [answer for answer, _ in self._for_each("remind", {pipeline: (shared, told)})]

    def _for_each(
        self, name: str, work: Mapping[str, tuple[tuple[str | int, ...], Sequence[tuple[str | int, ...]]]]
    ) -> list[tuple[Answer, Any]]:
        """Run a script over many tenants of pipelines, that publishes to the queue of first events.

        Returns of each tenant the answer and what else it is told.

        Each pipeline comes with its arguments, and with those of each tenant, of which the first is its name.
        """
        calls: list[Call] = []
        for pipeline, (args, tenants) in work.items():
            texts = self._key_texts(name, pipeline, Queue.FIRST)
            shared = [text for text, of_a_tenant in texts if not of_a_tenant]
            own = [text for text, of_a_tenant in texts if of_a_tenant]
            for start in range(0, len(tenants), AT_ONCE):
                some = tenants[start : start + AT_ONCE]
                keys = [f"{text}{tenant}" for tenant, *_ in some for text in own]
                told = (pipeline, *args, *self._ending(name), *chain.from_iterable(some))
                calls.append(((*shared, *keys, self._keys.clock), told))
        replies = list(chain.from_iterable(self._wire.call(self._scripts[name], calls)))
        answers, rest = replies[::2], replies[1::2]
        if self._publish is not None:
            whose = [(pipeline, str(one[0])) for pipeline, (_, some) in work.items() for one in some]
            for reply, who in zip(zip(answers, rest, strict=True), whose, strict=True):
                self._published(reply, Queue.FIRST, *who)
        return list(zip(map(_ANSWERS.__getitem__, answers), rest, strict=True))

    def begin_many(self, runs: Sequence[tuple[RunKey, int]], worker: str = "") -> list[Begun | Answer]:
        """Take the runners for runs of different tenants, in one round trip; `worker` is the name of who asks.

        REFUSED: the message is late or doubled, and nothing was changed. POSTPONED: the tenant is in the wait queue,
        since the circuit is open, or since as many runs of the pipeline are on as stands beside the key (0: any
        number).
        """
        times = (self._timing.runner_ttl, self._timing.republish)
        begins = [(run.pipeline, run.tenant, (*run, *times, most_runs, worker)) for run, most_runs in runs]
        return [_begun(reply) for reply in self._call("begin", begins)]

    def decline(self, runs: Sequence[RunKey]) -> list[Answer]:
        """Give runs up, in one round trip, whose pipelines this worker does not declare. DECLINED or LOST each.

        The ticker of a worker that declares the pipeline publishes a run again. If there is none, nothing circulates.
        Whoever is next in the fair queue has the turns of runs that had one.
        """
        replies = self._call("decline", [(run.pipeline, run.tenant, (*run, self._timing.republish)) for run in runs])
        self.publish_waiting([*dict.fromkeys(member for _, *members in replies for member in members if member)])
        return [Answer(answer) for answer, *_ in replies]

    def take(self, most_first: int, most_next: int) -> tuple[list[Message], list[str]]:
        """Take up to so many run messages out of the queues, up to `most_next` in all.

        Returns with them, for the places that are left, who is next in the fair queue: text that `publish_waiting`
        takes. First events come before the others, but for each fourth place: that is a
        continuation's where one waits. Only where the scripts publish the messages themselves. A message that is not
        a run's ends it.
        """
        # A thread sends no second call before it has the answer to its first.
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

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put messages that `take` returned back into their places."""
        with self._client.pipeline(transaction=False) as pipe:
            for message in reversed(messages):
                pipe.rpush(f"{self._queue_prefix}{self._keys.queue(message.queue)}", message.text)
            pipe.execute()

    def beat(self, run: RunKey) -> bool:
        """Move the run's deadline on. False: another run took over."""
        (answer,) = self._run("beat", run.pipeline, run.tenant, None, run.tenant, run.token, self._timing.runner_ttl)
        return Answer(answer) is Answer.KEPT

    def settle_many(
        self, runs: Sequence[tuple[RunKey, Settlement, Spacing, int]], *, most_in_flight: int = 1
    ) -> list[Answer]:
        """End runs, each with its pipeline's spacing and most runs, in one round trip.

        CONTINUED, POSTPONED, LINGERING, FINISHED, HELD, REISSUED or LOST each. A run that ends publishes that of the
        next tenant in the fair queue, unless as many runs of that kind are in flight.
        """
        ends = []
        for run, end, spacing, most_runs in runs:
            told = (int(value) if isinstance(value, bool) else value for value in end)
            times = (spacing.empty_tick, spacing.last_ttl, self._timing.republish)
            ends.append((run.pipeline, run.tenant, (*run, *told, *times, most_in_flight, most_runs)))
        answers, waiting, calls_of_others = [], dict[str, None](), list[Callable[[], object]]()
        for (run, *_), reply in zip(runs, self._call("settle", ends, Queue.NEXT), strict=True):
            called = reply[2:]
            answers.append(self._published(reply[:2], Queue.NEXT, run.pipeline, run.tenant))
            if len(called) == 1:
                calls_of_others.append(partial(self.expire, run.pipeline, called))
            # Runs that end together are told of the same one.
            waiting |= dict.fromkeys(called[1:])
        if waiting:
            calls_of_others.append(partial(self.publish_waiting, [*waiting]))
        self._call_others(calls_of_others)
        return answers

    def _call_others(self, calls: list[Callable[[], object]]) -> None:
        """Start who comes after a run that ended.

        In eager mode that does their runs, of which each is followed by another: those begin here too, not within them.
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

    def first_events(self) -> int:
        """Return how many first events wait for a worker; 0 where another server is the broker."""
        count: Any = self._client.llen(f"{self._queue_prefix}{self._keys.queue(Queue.FIRST)}")
        return int(count)

    def fair_queue(self, limit: int) -> list[str]:
        """Return up to `limit` members of the fair queue, the next one first, as `publish_waiting` takes them."""
        members: Any = self._client.zrange(self._keys.fair_queue, 0, limit - 1) if limit > 0 else []
        return list(members)

    def publish_waiting(self, members: Sequence[str]) -> None:
        """Give tenants in the fair queue their turn, in one round trip.

        Nothing happens to one that somebody else gave it meanwhile.
        """
        runs = [(pipeline, tenant) for pipeline, _, tenant in (member.partition(":") for member in members)]
        for run, reply in zip(runs, self._expire(runs, "turn"), strict=True):
            self._published(reply, Queue.NEXT, *run)

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

    def tick(self, pipeline: str, limit: int) -> Due:
        """Return up to `limit` tenants that this ticker should start, and when it should look again.

        Nobody, while another ticker is at work or enough of them are in flight.
        """
        wait_ms, late_ms, waiting, *tenants = self._run(
            "tick", pipeline, "", None, limit, MOST_DUE_IN_FLIGHT, self._ticker, TICKER_HOLDS_MS
        )
        return Due(tenants, None if wait_ms < 0 else wait_ms, None if late_ms < 0 else late_ms, waiting)

    def expire(self, pipeline: str, tenants: Sequence[str], *, early: bool = False) -> list[Answer]:
        """Act on deadlines that passed, in one round trip.

        PUBLISHED, REPUBLISHED, REISSUED, POSTPONED, ENDED or NOT_DUE each.

        With `early` a tenant that waits, for whatever reason, is started before its deadline.
        """
        replies = self._expire([(pipeline, tenant) for tenant in tenants], "early" if early else "")
        return [
            self._published(reply, Queue.NEXT, pipeline, tenant) for reply, tenant in zip(replies, tenants, strict=True)
        ]

    def _expire(self, runs: Sequence[tuple[str, str]], why: str) -> list[Any]:
        shared = (self._timing.republish, why)
        return self._call("expire", [(*run, (*run, *shared)) for run in runs], Queue.NEXT)

    def remember_last(self, pipeline: str, starts: Sequence[tuple[str, int]], spacing: Spacing) -> None:
        """Keep when the last run of each tenant began, for as long as it can delay the next.

        `starts` are (tenant, milliseconds) each. A later start that Redis knows stays, and is kept as long.
        """
        self._call("remember", [(pipeline, tenant, (last_ms, spacing.last_ttl)) for tenant, last_ms in starts])

    def rebuilt_for(self, pipeline: str) -> int | None:
        """Return the longest delay (milliseconds) for which all last runs that matter are in Redis.

        None: they need not be, as after Redis lost its data, and once a day.
        """
        kept: Any = self._client.get(self._keys.rebuilt(pipeline))
        return None if kept is None else int(kept)

    def begin_rebuilding(self, pipeline: str) -> None:
        """Note that `mark_rebuilt` will come, unless Redis loses its data in between."""
        self._client.set(self._keys.rebuilt(pipeline), 0, px=int(Constant.DAY_MS))

    def mark_rebuilt(self, pipeline: str, longest_ms: int) -> None:
        """Note that all last runs that can matter under this longest delay are in Redis."""
        self._client.set(self._keys.rebuilt(pipeline), longest_ms, px=int(Constant.DAY_MS), xx=True)

    def probe(self, queue: Queue, token: str) -> str | None:
        """Publish a probe as runs are published; return its message if the script did, for `withdraw`."""
        (text,) = self._run("probe", "", "", queue, PROBE, PROBE, token)
        if self._publish is None:
            return str(text)
        self._publish(queue, PROBE, PROBE, token)
        return None

    def withdraw(self, queue: Queue, text: str) -> bool:
        """Take a probe's message out of its queue; False: a worker has taken it."""
        return bool(self._client.lrem(f"{self._queue_prefix}{self._keys.queue(queue)}", 1, text))

    def answer(self, token: str, worker: str) -> None:
        """Say which worker took a probe."""
        self._client.set(self._keys.probe(token), worker, px=ANSWER_LASTS_MS)

    def answered(self, token: str) -> str | None:
        """Return the worker that took a probe, once; None: none did yet."""
        worker: Any = self._client.getdel(self._keys.probe(token))
        return None if worker is None else str(worker)

    def own(self, database: str, label: str, began_ms: int = 0, pipelines: Iterable[str] = ()) -> tuple[str, int]:
        """Take the gate for the deployment of a database, or keep it.

        Args:
            database: identifies the database; without spaces.
            label: names it to people.
            began_ms: since when this process knows that its deployment has the gate; 0: it is starting.
            pipelines: what is looked at for work that an owner left which is away.

        Returns:
            The label of another deployment whose gate it is, else "", and since when the owner has it.
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
        """Ask whether this process may look after a pipeline's tail for so many milliseconds; `last`: what it heard."""
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
        """Return the keys of a script, each without its tenant and whether one comes after it."""
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
        """Return a script's last arguments, which the gate itself adds: a nonce and the time, if it takes them."""
        return tuple(self._nonce(size) if size else self._now() for size in _ENDINGS[name])

    def _nonce(self, size: int = 3) -> str:
        """Return what tells a call from all others, also from one of a Redis whose clock stepped back.

        It is the random part of the tokens that the call issues, so a script recognizes a call that is sent again
        because its reply was lost.
        """
        return os.urandom(size).hex()

    def _now(self) -> str:
        """Nothing: the scripts ask the server. Tests that move time override this."""
        return ""

    def _published(self, reply: Sequence[Any], queue: Queue, pipeline: str, tenant: str) -> Answer:
        """Turn a reply into its answer; a reply that carries a token is a run that must be published."""
        if self._publish is not None and len(reply) == 2 and isinstance(reply[1], str):
            self._publish(queue, pipeline, tenant, reply[1])
        return Answer(reply[0])


def _in_order(pipelines: Sequence[str], answers: Sequence[T]) -> list[T]:
    """Bring answers, which are in order within each pipeline, into the order of `pipelines`."""
    left: dict[str, Iterator[T]] = {}
    at = 0
    for name, count in Counter(pipelines).items():
        left[name] = iter(answers[at : at + count])
        at += count
    return [next(left[name]) for name in pipelines]


def _begun(reply: Sequence[Any]) -> Begun | Answer:
    answer, *counts = reply
    if answer != Answer.BEGUN:
        return Answer(answer)
    events, new_events, runs, failures, age_ms, probe, died, traceparent, found, burst = counts
    age, probed = None if age_ms < 0 else age_ms, None if probe < 0 else probe
    dead = DeadRun(*died.partition(" ")[::2]) if died else None
    return Begun(events, new_events, runs, failures, age, probed, dead, traceparent, bool(found), burst)
