"""The real gate and the reference model see the same events; after each they must stand alike.

Time is injected: a day ahead of the real clock, so that no key with a TTL goes by itself. When such keys go is a rule
of its own (`redis_expires_keys`), so both are tried: a lease or a last run that has passed but is still there, and one
that is gone. The scripts compare the values, and must not care.

Every command sees its own microsecond, as on a real server; so does each tenant of a command for many.

Here no pipeline has a cap on its runs, no circuit opens and no pipeline waits; `test_admission.py` has these.
"""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import (
    Answer,
    Begun,
    Blame,
    Keys,
    Outcome,
    Queue,
    Reminder,
    RunnerStatus,
    Settlement,
    State,
    Timing,
)
from taskbridge.gate.constants import Constant
from taskbridge.testing.clock import InjectedClock
from tests.runs import begin, settle
from verification.model.reference import (
    PUBLISHING,
    AnyRow,
    Beat,
    Begin,
    Deadline,
    Decline,
    Event,
    FairQueue,
    Notify,
    Remind,
    Settle,
    Shared,
    Tenant,
    step,
)
from verification.model.transitions import TRANSITIONS, Condition

TEXTS = ("state", "token", "held", "queue", "worker", "died", "burst", "nonce", "reply")
"""The fields of a runner that are no numbers."""
EXAMPLES = int(os.environ.get("TASKBRIDGE_TEST_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 10,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
)

TIMING = Timing(runner_ttl=5_000, republish=4_000)
DAY_US = 86_400_000_000

BURSTS = Spacing(delay=200, lease=1_200)
EMPTY_TICKS = Spacing(delay=200, lease=1_200, empty_tick=200)
NO_LEASE = Spacing(delay=200)
RULES = Spacing(delay=0, last_ttl=300_000)
BOTH = Spacing(delay=200, lease=1_200, last_ttl=60_000)
SPACINGS = {"both": BOTH, "bursts": BURSTS, "ticks": EMPTY_TICKS, "no_lease": NO_LEASE, "rules": RULES}

Subject = tuple[str, str]
Published = tuple[Queue, str, str, str]
SUBJECTS: tuple[Subject, ...] = tuple((pipeline, tenant) for pipeline in SPACINGS for tenant in ("acme", "a:b {c}"))
FOREIGN = 1

# An index into the few subjects of one example, so that each has a long life.
WHICH = (0, 0, 0, 1, 2)
OUTCOMES = (Outcome.DONE, Outcome.DONE, *Outcome)
# Mostly the token that counts, else how many issues ago it was, or one of nobody.
TOKEN_AGES = (0, 0, 0, 0, 0, 0, 1, 2, None)
SPANS = (0, 7, 50, 200, 700, 1_500, 5_000, 60_000, 400_000)
LASTS = ("all its spacing", "nearly its spacing")
BOOLEANS = (False, True)
DRAWS: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("which", "first", "second", "third"), WHICH),
    **dict.fromkeys(("age", "late"), TOKEN_AGES),
    **dict.fromkeys(("by_reconciler", "early", "all_wait", "failed", "more"), BOOLEANS),
    **dict.fromkeys(("took", "handled"), (1, 0)),
    # How long ago a reminder's record was: None, it does not say.
    "ago": (None, -3_600_000, 0, 100, 30_000),
    # Of the oldest message of first events: None, there is none; else microseconds after the tenant's token.
    "ahead": (None, -1, 0, 1),
    "blame": (Blame.NOBODY, Blame.DOWNSTREAM, Blame.DOWNSTREAM, Blame.RECORD, Blame.PIPELINE),
    "calls_for": ([(0, 0)], [(0, 1_000), (0, 0), (1, 0)], [(2, 0), (1, 60_000), (0, 0), (1, 0)]),
    "delay": (0, 1_000, 60_000, 300_000),
    "ends": (None, *Outcome),
    "events": ([], [0], [1_000, 0]),
    "lasts": (*SPANS, *LASTS),
    "lead": (1, 1_000, 10**9),
    "lost": ("hash", "deadline", "lease", "last", "all", "everybody's"),
    "moment_at": range(8),
    "ms": SPANS,
    "order": ([0, 0], [0, 1], [1, 0, 2], [2, 1, 0, 0], [3, 0, 1, 2]),
    "outcome": OUTCOMES,
    "retry": (0, 500, 3_000, 30_000, 300_000),
    "shared": ("running", "wait queue", "circuit", "turns"),
}
"""What an argument of a rule may be, by its name."""
LEAST_WALKS, MOST_WALKS, STEPS = 20, 60, 50
"""Walks go on until each row of the table was taken."""


def drawn(method: Callable[..., None]) -> Any:
    """Return a rule whose arguments are drawn by their names."""
    drawing: Any = rule
    names = [*inspect.signature(method).parameters][1:]
    return drawing(**{name: st.sampled_from(DRAWS[name]) for name in names})(method)


class RepeatingGate(InjectedClock):
    """Sends each call again while it has a nonce."""

    nonce: str | None = None

    def _nonce(self, size: int = 3) -> str:
        return self.nonce or super()._nonce(size)


class GateAndModel(RuleBasedStateMachine):
    """Events for several tenants of several pipelines. The clock moves forward only."""

    clock_steps_back = False
    everybody: tuple[Subject, ...] = SUBJECTS
    most_runs = 0

    def __init__(self, client: redis.Redis, keys: Keys, rows: set[AnyRow]) -> None:
        super().__init__()
        self.client = client
        self.rows = rows
        self.keys = keys
        self.published: list[Published] = []
        self.gate = RepeatingGate(client, keys, TIMING, publish=lambda *message: self.published.append(message))
        # A whole second, so that an example is the same whenever it runs.
        self.gate.start_at(int(self.client.time()[0]) * 1_000_000 + DAY_US)
        self.model: dict[Subject, Tenant] = {subject: Tenant() for subject in self.everybody}
        self.fair_queue = FairQueue()
        self.shared: dict[str, Shared] = {}
        self._share()
        self.tokens: dict[Subject, list[str]] = defaultdict(list)
        self.holding: dict[Subject, set[str]] = defaultdict(set)
        self.begun: dict[str, Begun] = {}
        self.damaged: set[Subject] = set()

    def _share(self) -> None:
        self.fair_queue = FairQueue()
        self.shared = {
            pipeline: Shared(most_runs=self.most_runs, pipeline=pipeline, fair_queue=self.fair_queue)
            for pipeline, _ in self.everybody
        }

    def teardown(self) -> None:
        self._delete({*self._present(), self.keys.queue(Queue.FIRST)})

    @initialize(data=st.data())
    def choose_subjects(self, data: st.DataObject) -> None:
        self.start(lambda values: data.draw(st.sampled_from(values)))

    def start(self, one_of: Callable[[Sequence[Any]], Any]) -> None:
        self.active = self.choose(one_of)
        self._share()

    def choose(self, one_of: Callable[[Sequence[Any]], Any]) -> list[Subject]:
        return [one_of(self.everybody) for _ in range(4)]

    # Events

    @drawn
    def notify(self, which: int, delay: int) -> None:
        subject = self.active[which]
        spacing = self._spacing(subject, delay)
        answer = self.gate.notify(*subject, spacing)
        self._agree(subject, Notify(self.gate.nonce), answer, spacing)

    @drawn
    def remind(self, which: int, delay: int, ago: int | None, by_reconciler: bool) -> None:
        subject = self.active[which]
        spacing = self._spacing(subject, delay)
        last = None if ago is None else self.gate.us // 1000 - ago
        (answer,) = self.gate.remind(
            subject[0], [Reminder(subject[1], spacing.delay, last)], by_reconciler=by_reconciler
        )
        self._agree(subject, Remind(last, by_reconciler, self.gate.nonce), answer, spacing)

    @drawn
    def remind_many(self, order: list[int], delay: int, by_reconciler: bool) -> None:
        """In one command, in which each has its own microsecond."""
        pipeline = self.active[order[0]][0]
        several = [subject for subject in (self.active[one] for one in order) if subject[0] == pipeline]
        spacing = self._spacing(several[0], delay)
        reminders = [Reminder(tenant, spacing.delay) for _, tenant in several]
        answers = self.gate.remind(pipeline, reminders, by_reconciler=by_reconciler)
        (us,), published = self._taken(1)
        for at, (subject, answer) in enumerate(zip(several, answers, strict=True)):
            self._step(subject, Remind(None, by_reconciler), answer, spacing, us + at, published)
        self.gate.us += len(several)
        assert published == []
        self._look()

    @drawn
    def notify_many(self, calls_for: list[tuple[int, int]]) -> None:
        """In one command for each pipeline, in which each event has its own microsecond."""
        active = [(self.active[which], delay) for which, delay in calls_for]
        calls = [(subject, self._spacing(subject, delay)) for subject, delay in active]
        answers = self.gate.notify_many([(*subject, spacing) for subject, spacing in calls])
        pipelines = list(dict.fromkeys(subject[0] for subject, _ in calls))
        given, published = self._taken(len(pipelines))
        for pipeline, us in zip(pipelines, given, strict=True):
            of_one = [(*call, answer) for call, answer in zip(calls, answers, strict=True) if call[0][0] == pipeline]
            for at, (subject, spacing, answer) in enumerate(of_one):
                self._step(subject, Notify(), answer, spacing, us + at, published)
        self.gate.us += len(calls)
        assert published == []
        self._look()

    @drawn
    def begin(self, which: int, age: int | None) -> None:
        subject = self.active[which]
        token = self._token(subject, age)
        before, shared = self.model[subject], self.shared[subject[0]]
        begun = begin(self.gate, RunKey(*subject, token), most_runs=shared.most_runs)
        now_ms = self.gate.us // 1000
        event = Begin(_number(token), self.gate.nonce)
        if isinstance(begun, Begun) and event.call is not None and before.beginner == event.call:
            assert begun == self.begun[token]
        elif isinstance(begun, Begun):
            assert token not in self.holding[subject], "two runs hold one token"
            self.begun[token] = begun
            self.holding[subject].add(token)
            assert begun._replace(died=None)[:-1] == (
                before.told,
                before.told - before.swept,
                before.runs + 1,
                before.failures,
                None if before.first is None else max(0, now_ms - before.first),
                shared.circuit.record,
                None,
                "",
                before.reminded and before.told == before.swept,
            )
            assert _number(begun.burst) == (_number(token) if before.burst is None else before.burst)
            assert (begun.died is not None) is before.died
        self._agree(subject, event, begun if isinstance(begun, Answer) else Answer.BEGUN)

    @drawn
    def decline(self, which: int, age: int | None) -> None:
        subject = self.active[which]
        token = self._token(subject, age)
        (answer,) = self.gate.decline([RunKey(*subject, token)])
        self._agree(subject, Decline(_number(token)), answer)

    @drawn
    def beat(self, which: int, age: int | None) -> None:
        subject = self.active[which]
        token = self._token(subject, age)
        kept = self.gate.beat(RunKey(*subject, token))
        self._agree(subject, Beat(_number(token)), Answer.KEPT if kept else Answer.LOST)

    @drawn
    def a_settle_comes(self, which: int, age: int | None, outcome: Outcome, retry: int, lead: int, took: int) -> None:
        self.settle(which, age, outcome, lead, retry_ms=retry, took=took)

    def settle(self, which: int, age: int | None, outcome: Outcome, lead: int = 1, **how: Any) -> None:
        subject = self.active[which]
        token, spacing = self._token(subject, age), SPACINGS[subject[0]]
        # Where the clock never steps back, a later runner's token is at most a moment ahead.
        owner = f"{_number(token) + (lead if self.clock_steps_back else 1):016d}-ffffffffffff"
        # Drawn with what else a run says that may have counted a death.
        end = Settlement(outcome, owner=owner, counted=how.get("retry_ms", 0) > 0, **how)
        most_runs = self.shared[subject[0]].most_runs
        answer = settle(self.gate, RunKey(*subject, token), end, spacing, most_runs=most_runs)
        if answer is not Answer.LOST:
            self.holding[subject].discard(token)
        self._agree(subject, Settle(_number(token), end, self.gate.nonce), answer, spacing)

    @drawn
    def a_run(
        self, which: int, lasts: int | str, events: list[int], late: int | None, outcome: Outcome, retry: int
    ) -> None:
        """A run from its event to settle, with more events, a beat and another run's late commands in between."""
        self._begin_a_run(which)
        for delay in events:
            self.notify(which, delay)
        if late != 0:
            self.beat(which, late)
            self.settle(which, late, outcome, retry_ms=retry)
            self.expire(which)
        if events:
            self.beat(which, 0)
        if isinstance(lasts, int):
            self.time_passes(lasts)
        else:
            self.time_passes_to_the_moment_when_something_changes(which, 7, int(lasts != LASTS[0]), 0)
        self.settle(which, 0, outcome, retry_ms=retry)
        if late is None:
            for foreign in Outcome:
                self.settle(which, None, foreign, retry_ms=retry)
            self.notify(which, 1_000)

    @drawn
    def replies_are_lost(self, which: int, ms: int) -> None:
        """Each call is sent again after a while."""
        for starts in ("remind", "notify"):
            self._begin_a_run(which)
            self.settle(which, 0, Outcome.DONE)
            self.time_passes(BURSTS.delay)
            self._lose_the_reply(which, starts, ms)
        self._lose_the_reply(which, "begin", ms)
        for outcome in Outcome:
            self._begin_a_run(which)
            self.notify(which, 0)
            self.time_passes(BURSTS.delay)
            self._lose_the_reply(which, "settle", ms, outcome)
        self._lose_the_reply(which, "expire", ms)
        self._lose_the_reply(which, "publish_waiting", ms)

    def _lose_the_reply(self, which: int, verb: str, ms: int, outcome: Outcome = Outcome.DONE) -> None:
        subject = self.active[which]
        token = self._token(subject, 0)
        calls: dict[str, Callable[[], None]] = {
            "notify": lambda: self.notify(which, 0),
            "remind": lambda: self.remind(which, 0, None, by_reconciler=False),
            "begin": lambda: self.begin(which, self._age(subject, token)),
            "settle": lambda: self.settle(which, self._age(subject, token), outcome),
            "expire": lambda: self._expire(which, early=True),
            "publish_waiting": lambda: self.it_is_given_its_turn(which),
        }
        self.gate.nonce = os.urandom(8).hex()
        calls[verb]()
        self.time_passes(ms)
        calls[verb]()
        self.gate.nonce = None

    @drawn
    def a_paused_tenant_is_notified_and_then_reminded(self, which: int, by_reconciler: bool) -> None:
        """A reminder says that the pause is over."""
        self._begin_a_run(which)
        self.settle(which, 0, Outcome.PAUSED)
        self.notify(which, 0)
        self.remind(which, 0, None, by_reconciler=by_reconciler)

    def _begin_a_run(self, which: int) -> None:
        self._wait_for_a_run(which)
        if self.model[self.active[which]].state is State.IDLE:
            self.notify(which, 0)
        self.begin(which, 0)

    def _wait_for_a_run(self, which: int) -> None:
        if self.model[self.active[which]].state is State.WAITING:
            self.the_deadline_passes(which)

    @drawn
    def first_events_wait(self, which: int, ahead: int | None) -> None:
        """Another's message is the oldest in their queue, or this tenant's own, or none is there."""
        queue, token = self.keys.queue(Queue.FIRST), self.model[self.active[which]].token
        self.fair_queue.head = None if ahead is None or token is None else token + ahead
        self.client.delete(queue)
        if self.fair_queue.head is not None:
            self.client.lpush(queue, f'{{"headers": {{"id": "{FOREIGN:016d}-abcdef.{self.fair_queue.head:016d}"}}}}')

    @drawn
    def expire(self, which: int) -> None:
        self._expire(which, early=False)

    @drawn
    def an_operator_starts_it(self, which: int) -> None:
        self._expire(which, early=True)

    def _expire(self, which: int, *, early: bool) -> None:
        subject = self.active[which]
        (answer,) = self.gate.expire(subject[0], [subject[1]], early=early)
        self._agree(subject, Deadline(early, call=self.gate.nonce), answer)

    @drawn
    def it_is_given_its_turn(self, which: int) -> None:
        subject = self.active[which]
        self.gate.publish_waiting([":".join(subject)])
        (us,), published = self._taken(1)
        event = Deadline(turn=True, call=self.gate.nonce)
        self._step(subject, event, None, SPACINGS[subject[0]], us, published)
        assert published == []
        self._look()

    @drawn
    def a_ticker_asks_whose_turn_it_is(self) -> None:
        assert self.gate.fair_queue(100) == [":".join(subject) for subject in self.fair_queue.order()]

    @drawn
    def the_deadline_passes(self, which: int) -> None:
        deadline = self.model[self.active[which]].deadline
        if deadline is not None:
            self.gate.us = max(self.gate.us, deadline * 1000 - 1)
        self.expire(which)

    @drawn
    def expire_what_is_due(self, which: int) -> None:
        pipeline = self.active[which][0]
        due, now_ms = self.gate.overdue(pipeline, 100), self.gate.us // 1000
        deadlines = {
            tenant: model.deadline
            for (name, tenant), model in self.model.items()
            if name == pipeline and model.deadline is not None
        }
        assert set(due) == {tenant for tenant, deadline in deadlines.items() if deadline <= now_ms}
        assert sorted(self.gate.active(pipeline)) == sorted(deadlines)
        answers = self.gate.expire(pipeline, due)
        given, published = self._taken(len(due))
        for tenant, answer, us in zip(due, answers, given, strict=True):
            self._step((pipeline, tenant), Deadline(), answer, SPACINGS[pipeline], us, published)
        assert published == []
        self._look()

    # Time

    @drawn
    def time_passes(self, ms: int) -> None:
        self.gate.us += ms * 1000

    @drawn
    def time_passes_to_the_moment_when_something_changes(
        self, which: int, moment_at: int, early: int, delay: int
    ) -> None:
        subject = self.active[which]
        model = self.model[subject]
        spacing = self._spacing(subject, delay).delay
        times = (
            model.deadline,
            model.deadline,
            model.lease_end,
            model.last_end,
            model.last and model.last + spacing,
            model.earliest,
            model.last_earliest,
            model.began and model.began + (spacing if model.delay is None else model.delay),
        )
        moment = times[moment_at]
        # The next command sees the first microsecond of that moment, or the last one before it.
        if moment is not None and moment * 1000 - 1 - early > self.gate.us:
            self.gate.us = moment * 1000 - 1 - early

    @drawn
    def redis_expires_keys(self) -> None:
        now = self.gate.us // 1000
        for subject, model in list(self.model.items()):
            if model.lease_end is not None and model.lease_end <= now:
                self.client.delete(self.keys.lease(*subject))
                self.model[subject] = replace(self.model[subject], lease_end=None)
            if model.last_end is not None and model.last_end <= now:
                self.client.delete(self.keys.last(*subject))
                self.model[subject] = replace(self.model[subject], last=None, last_end=None, last_earliest=None)
        self._look()

    # The comparison

    def _agree(self, subject: Subject, event: Event, answer: Answer, spacing: Spacing | None = None) -> None:
        spacing = spacing or SPACINGS[subject[0]]
        expires = isinstance(event, Deadline)
        given, published = self._taken(1 if expires else 2)
        self._step(subject, event, answer, spacing, given[0], published)
        called, turn = self.shared[subject[0]].called, self.shared[subject[0]].turn
        if called is not None:
            # A settle that keeps its slot for a tenant in the wait queue publishes that tenant's run as well.
            event = Deadline(call=self.gate.nonce)
            self._step((subject[0], called), event, None, spacing, given[1], published)
        elif turn is not None:
            event = Deadline(turn=True, call=self.gate.nonce)
            self._step(turn, event, None, SPACINGS[turn[0]], given[1], published)
        else:
            assert len(given) == 1, "a second round trip, and nobody was called"
        assert published == []
        self._look()

    def _taken(self, commands: int) -> tuple[list[int], list[Published]]:
        """Return when each command was run, by the injected clock, and what was published since the last look."""
        given, published = self.gate.given, self.published
        self.gate.given, self.published = [], []
        # Commands are told the time again where Redis had to be given the scripts first.
        return given[-commands:], published

    def _step(
        self,
        subject: Subject,
        event: Event,
        answer: Answer | None,
        spacing: Spacing,
        us: int,
        published: list[Published],
    ) -> None:
        """Take the model's step, and take the run that it publishes, if it does, from `published`.

        Without `answer` any will do: nobody was told.
        """
        (pipeline, name), before = subject, self.model[subject]
        shared = self.shared[pipeline]
        neighbours = {tenant: model for (of, tenant), model in self.model.items() if of == pipeline}
        shared.due = {tenant: model.deadline for tenant, model in neighbours.items() if model.deadline is not None}
        after, expected = step(before, event, us, spacing, TIMING, self.rows, name, shared)
        assert answer in (expected, None), (subject, event, before)
        for tenant, model in neighbours.items():
            self.model[pipeline, tenant] = replace(model, deadline=shared.due.get(tenant))
        self.model[subject] = after
        # Who lost its runner while it was in the wait queue may yet be called.
        if after.state is State.IDLE and after.deadline is None and name not in shared.wait_queue:
            self.damaged.discard(subject)
        if expected in PUBLISHING:
            queue, *of, token = published.pop(0)
            assert tuple(of) == subject
            assert queue is (Queue.FIRST if isinstance(event, Notify | Remind) else Queue.NEXT)
            assert _number(token) == after.token

    def _look(self) -> None:
        """Compare all. It is done after each command, so it takes as few round trips as it can."""
        subjects = sorted(set(self.active))
        with self.client.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.keys(f"{self.keys.prefix}:*")
            pipe.hgetall(self.keys.virtual_time)
            pipe.zrange(self.keys.in_flight, 0, -1, withscores=True)
            for pipeline in self.shared:
                pipe.zrange(self.keys.in_flight_due(pipeline), 0, -1, withscores=True)
            for subject in subjects:
                pipe.hgetall(self.keys.runner(*subject))
                pipe.pttl(self.keys.lease(*subject))
                pipe.pttl(self.keys.last(*subject))
            (seconds, micros), present, virtual_time, in_flight, *replies = pipe.execute()
        due, replies = replies[: len(self.shared)], replies[len(self.shared) :]
        if self.fair_queue.waiting:
            assert {name: int(tag) for name, tag in virtual_time.items()} == self.fair_queue.virtual_time
        now_ms = seconds * 1000 + micros // 1000
        statuses = self._statuses(subjects)
        for at, subject in enumerate(subjects):
            fields, *left = replies[3 * at : 3 * at + 3]
            self._look_at(subject, self.model[subject], statuses[subject], fields, [now_ms + span for span in left])
        # What is queued goes when somebody counts it.
        counts = {
            self.keys.in_flight,
            self.keys.virtual_time,
            *(make(name) for name in self.shared for make in (self.keys.counts, self.keys.in_flight_due)),
        }
        self._look_at_queued(in_flight)
        for members, shared in zip(due, self.shared.values(), strict=True):
            assert dict(members) == shared.in_flight_due
        assert set(present) - counts == self._expected_keys()

    def _statuses(self, subjects: Sequence[Subject]) -> dict[Subject, RunnerStatus]:
        tenants: dict[str, list[str]] = defaultdict(list)
        for pipeline, tenant in subjects:
            tenants[pipeline].append(tenant)
        return {
            (pipeline, tenant): status
            for pipeline, names in tenants.items()
            for tenant, status in zip(names, self.gate.look(pipeline, names), strict=True)
        }

    def _look_at_queued(self, members: Sequence[tuple[str, float]]) -> None:
        now_ms = self.gate.us // 1000
        in_flight = {member: divmod(int(score), Constant.BEHIND) for member, score in members}
        assert {member: (kind == 1, lost) for member, (kind, lost) in in_flight.items() if lost > now_ms} == {
            ":".join(subject): (by_reminder, lost)
            for subject, (by_reminder, lost) in self.fair_queue.in_flight.items()
            if lost > now_ms
        }

    def _look_at(
        self, subject: Subject, model: Tenant, found: RunnerStatus, fields: dict[str, str], ends: list[int]
    ) -> None:
        assert found.state is model.state
        assert found.deadline_ms == model.deadline
        assert found.lease_ends_ms == model.lease_end
        assert found.held is model.held
        assert found.waits_for_turn is (model.turn or (model.held and subject in self.fair_queue.waiting))
        assert (found.events, found.runs) == (model.told, model.runs)
        if model.state is not State.IDLE:
            self._look_at_hash(fields, model)
        self._look_at_token(subject, found.token, model)
        for end, expected in zip(ends, (model.lease_end, model.last_end), strict=True):
            # A key that may outlive its tenant's work goes by itself, when its value says.
            assert expected is None or abs(end - expected) <= 100
        if subject not in self.damaged:
            assert (model.state is State.IDLE) == (found.deadline_ms is None)
            current_run_is_there = found.token in self.holding[subject]
            assert (model.state is State.RUNNING) == current_run_is_there

    def _look_at_hash(self, fields: dict[str, str], model: Tenant) -> None:
        """The fields that `look` does not show, but that decide what comes next."""
        found = {name: int(value) for name, value in fields.items() if name not in TEXTS}
        expected = {
            "events": model.events,
            "swept": model.swept,
            "runs": model.runs,
            "first": model.first,
            "delay": model.delay,
            "began": model.began,
            "before": model.before,
            "earliest": model.earliest,
            "joined": model.joined,
            "reminded": int(model.reminded) or None,
            "lease": model.lease,
            "failures": model.failures or None,
            "patience": model.republish if model.state is State.QUEUED else None,
        }
        assert ("died" in fields) is model.died
        assert (_number(fields["burst"]) if "burst" in fields else None) == model.burst
        assert fields.get("queue") == ("first" if model.first_queue else None)
        if model.state is not State.QUEUED:
            found.pop("patience", None)
        assert found == {name: value for name, value in expected.items() if value is not None}

    def _look_at_token(self, subject: Subject, token: str | None, model: Tenant) -> None:
        seen = self.tokens[subject]
        if token is None:
            assert model.token is None, "a runner has a token from its first run on"
            return
        assert _number(token) == model.token
        if token in seen:
            assert token == seen[-1], "an old token is the current one again"
            return
        # A runner's first token is the clock's; those after it in its life grow whatever the clock does.
        if seen and (model.runs or not self.clock_steps_back):
            assert token > seen[-1], "tokens do not grow"
        seen.append(token)

    def _present(self) -> set[str]:
        found: Any = self.client.keys(f"{self.keys.prefix}:*")
        return set(found)

    def _expected_keys(self) -> set[str]:
        expected = set()
        for subject, model in self.model.items():
            if model.state is not State.IDLE:
                expected.add(self.keys.runner(*subject))
            if model.deadline is not None:
                expected.add(self.keys.due(subject[0]))
            if model.lease_end is not None:
                expected.add(self.keys.lease(*subject))
            if model.last_end is not None:
                expected.add(self.keys.last(*subject))
        if self.fair_queue.waiting:
            expected.add(self.keys.fair_queue)
        return expected

    def _delete(self, keys: set[str]) -> None:
        if keys:
            self.client.delete(*keys)

    def _spacing(self, subject: Subject, delay: int) -> Spacing:
        spacing = SPACINGS[subject[0]]
        return replace(spacing, delay=delay) if spacing is RULES else spacing

    def _age(self, subject: Subject, token: str) -> int | None:
        """Return the age by which `_token` returns the token."""
        seen = self.tokens[subject]
        return len(seen) - 1 - seen.index(token) if token in seen else None

    def _token(self, subject: Subject, age: int | None) -> str:
        seen = self.tokens[subject]
        if age is None or age >= len(seen):
            return f"{FOREIGN:016d}-000000000000"
        return seen[-1 - age]


class LossyGateAndModel(GateAndModel):
    """The same, and Redis loses keys."""

    @drawn
    def part_of_redis_is_lost(self, which: int, lost: str) -> None:
        if lost == "everybody's":
            self._lose_redis()
            return
        subject = self.active[which]
        model = self.model[subject]
        if lost in ("hash", "all"):
            self.client.delete(self.keys.runner(*subject))
            model = Tenant(
                deadline=model.deadline,
                lease_end=model.lease_end,
                last=model.last,
                last_end=model.last_end,
                last_earliest=model.last_earliest,
            )
            self.holding[subject].clear()
        if lost in ("deadline", "all"):
            self.client.zrem(self.keys.due(subject[0]), subject[1])
            model = replace(model, deadline=None)
        if lost in ("lease", "all"):
            self.client.delete(self.keys.lease(*subject))
            model = replace(model, lease_end=None)
        if lost in ("last", "all"):
            self.client.delete(self.keys.last(*subject))
            model = replace(model, last=None, last_end=None, last_earliest=None)
        self.model[subject] = model
        self.damaged.add(subject)
        self._look()

    def _lose_redis(self) -> None:
        self._delete({*self._present(), self.keys.queue(Queue.FIRST)})
        self.model = {subject: Tenant() for subject in self.everybody}
        self._share()
        self.holding.clear()
        self.damaged.clear()
        self._look()


class LossyGateAndModelWithAClockThatStepsBack(LossyGateAndModel):
    """The same, and a failover may put a Redis in charge whose clock is behind."""

    clock_steps_back = True

    @drawn
    def the_clock_steps_back(self, ms: int) -> None:
        # What counts as lost by now may be forgotten, and would count again.
        lost = self.gate.us // 1000 - Constant.GRACE_MS
        for lowest in (0, int(Constant.BEHIND)):
            self.client.zremrangebyscore(self.keys.in_flight, lowest, lowest + lost)
        in_flight = self.fair_queue.in_flight
        for subject in [one for one, (_, until) in in_flight.items() if until <= lost]:
            del in_flight[subject]
        self.gate.us -= ms * 1000

    @drawn
    def a_run_dies_whose_token_is_ahead_of_the_clock(self, which: int, ms: int) -> None:
        self.the_clock_steps_back(ms)
        self.begin(which, 0)
        self.the_deadline_passes(which)


class GateAndModelWithTurns(GateAndModel):
    """The same, and runs that have more to do at the same time."""

    @drawn
    def two_runs_have_more_to_do(self, first: int, second: int) -> None:
        """The second waits for its turn, and its deadline passes before that comes."""
        for which in (first, second):
            self._begin_a_run(which)
        for which in (first, second):
            self.settle(which, 0, Outcome.MORE)
        self.the_deadline_passes(second)

    @drawn
    def an_event_comes_in_a_run_while_others_wait_for_their_turn(self, first: int, second: int, third: int) -> None:
        for which in (third, first, second):
            self._begin_a_run(which)
        self.notify(third, 0)
        for which in (first, second):
            self.settle(which, 0, Outcome.MORE)
        self.time_passes(BURSTS.delay)
        self.settle(third, 0, Outcome.DONE)

    @drawn
    def a_run_ends_or_dies(self, which: int, ends: Outcome | None) -> None:
        """In each way, so that it does not depend on what else is drawn."""
        self._begin_a_run(which)
        for of_another in Outcome:
            self.settle(which, None, of_another, retry_ms=500)
        self.decline(which, None)
        if ends is None:
            self.the_deadline_passes(which)
        else:
            self.settle(which, 0, ends, retry_ms=500)
        self.beat(which, None)

    @drawn
    def a_key_comes_again_after_its_run(self, which: int, delay: int) -> None:
        self.a_run_ends_or_dies(which, Outcome.DONE)
        for of_another in Outcome:
            self.settle(which, None, of_another, retry_ms=500)
        self.beat(which, None)
        self.notify(which, delay)


def _number(token: str) -> int:
    """The microsecond that a token stands for: what orders tokens. The rest only tells two of one microsecond apart."""
    return int(token[:16])


def walk(machine: GateAndModel, draw: Random, moves: Collection[str] = ()) -> None:
    """Draw one course of all rules, or of those with these names.

    Hypothesis is no choice where each row must be taken: even when it is told to be deterministic, it draws constants
    of all modules that the process has imported by then.
    """
    rules = {one.function.__name__: one for one in machine.rules}
    names = sorted(moves or rules)
    machine.start(draw.choice)
    for _ in range(STEPS):
        chosen = rules[draw.choice(names)]
        chosen.function(machine, **{name: draw.choice(DRAWS[name]) for name in sorted(chosen.arguments)})
    machine.teardown()


def _run(machine: Callable[[], GateAndModel], chosen: settings = SETTINGS) -> None:
    run_state_machine_as_test(cast(type[GateAndModel], machine), settings=chosen)


def test_the_gate_does_what_the_table_says(redis_client: redis.Redis, keys: Keys) -> None:
    rows: set[AnyRow] = set()
    draw = Random(1)  # noqa: S311

    elsewhere = {row for row in TRANSITIONS if {Condition.NO_SLOT, Condition.OTHERS_IN_QUEUE} & set(row.when)}
    for number in range(MOST_WALKS):
        if number >= LEAST_WALKS and set(TRANSITIONS) - elsewhere <= rows:
            break
        walk(GateAndModelWithTurns(redis_client, keys, rows), draw)

    assert set(TRANSITIONS) - elsewhere - rows == set(), "these rows were never taken, so nothing was shown about them"


@pytest.mark.slow
def test_gate_and_model_agree_in_all_that_is_drawn(redis_client: redis.Redis, keys: Keys) -> None:
    _run(partial(GateAndModelWithTurns, redis_client, keys, set()))


@pytest.mark.parametrize("machine", [LossyGateAndModel, LossyGateAndModelWithAClockThatStepsBack])
def test_a_gate_that_lost_keys_or_time_goes_on_from_what_is_left(
    redis_client: redis.Redis, keys: Keys, machine: type[LossyGateAndModel]
) -> None:
    _run(partial(machine, redis_client, keys, set()), settings(SETTINGS, max_examples=EXAMPLES or 5))
