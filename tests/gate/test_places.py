"""Cap, line, circuit and waits of all: gate and reference model see the same runs; after each they must stand alike.

Beside the comparison stand a few rules that look at the gate alone: never more runs than the cap while none is
overdue, one probe at a time, and an end to all waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Keys, Outcome, State
from taskbridge.gate.transitions import TRANSITIONS, Condition, Row
from tests.gate.test_gate_agrees_with_model import (
    EXAMPLES,
    SETTINGS,
    GateAndModel,
    LossyGateAndModel,
    Published,
    Subject,
)
from tests.model.reference import Circuit, Event, Shared

PIPELINES = ("bursts", "no_lease", "rules")
TENANTS = ("acme", "b", "c", "d")

ROUNDS = 200
"""Deadlines that pass before all is idle; the circuit's and the line's waits double, so that is long."""

FEWER = settings(SETTINGS, max_examples=EXAMPLES or 80, stateful_step_count=40)
"""These examples are longer than the others: a quiet end alone is a hundred events."""

tenants = st.integers(0, len(TENANTS) - 1)
blames = st.sampled_from((Blame.DOWNSTREAM, Blame.DOWNSTREAM, Blame.RECORD, Blame.PIPELINE))


class Places(GateAndModel):
    """Tenants of one pipeline, whose runs fail, and which has a cap on its runs."""

    everybody = tuple((pipeline, tenant) for pipeline in PIPELINES for tenant in TENANTS)
    loses_keys = False

    def choose(self, data: st.DataObject) -> list[Subject]:
        self.most_runs = data.draw(st.sampled_from((1, 2, 0)))
        self.overdue: set[Subject] = set()
        self.probing: set[Subject] = set()
        pipeline = data.draw(st.sampled_from(PIPELINES))
        return [(pipeline, tenant) for tenant in TENANTS]

    @rule(which=tenants)
    def a_run_begins(self, which: int) -> None:
        for _ in range(3):
            self._go_on(which)

    @rule(
        which=tenants,
        outcome=st.sampled_from((Outcome.MORE, Outcome.DONE, Outcome.RETRY, Outcome.STALE)),
        handled=st.sampled_from((0, 1)),
        failed=st.booleans(),
        blame=st.one_of(st.just(Blame.NOBODY), blames),
        retry=st.sampled_from((500, 3_000, 300_000)),
        all_wait=st.booleans(),
    )
    def a_run_ends(
        self,
        which: int,
        outcome: Outcome,
        handled: int,
        failed: bool,
        blame: Blame,
        retry: int,
        all_wait: bool = False,
    ) -> None:
        if self.model[self.active[which]].state is State.RUNNING:
            self.settle(which, 0, outcome, retry, 1, handled, handled, failed, blame, all_wait)

    @rule(order=st.lists(tenants, min_size=1, max_size=4), retry=st.sampled_from((0, 500, 300_000)))
    def a_run_is_told_that_all_wait(self, order: list[int], retry: int) -> None:
        first, *others = order
        self.a_run_begins(first)
        self.tenants_come_at_once(others, 0)
        self.a_run_ends(first, Outcome.RETRY, 0, False, Blame.NOBODY, retry, all_wait=True)

    @rule(order=st.permutations(range(len(TENANTS))), retry=st.sampled_from((0, 500)))
    def a_pipeline_that_waited_works_off_its_line(self, order: list[int], retry: int) -> None:
        self.a_run_is_told_that_all_wait(order, retry)
        for which in order:
            self.a_run_begins(which)
            self.a_run_ends(which, Outcome.DONE, 1, False, Blame.NOBODY, 0)

    @rule(order=st.lists(tenants, min_size=1, max_size=6))
    def runs_are_on_together_and_handle_all(self, order: list[int]) -> None:
        for which in order:
            self.a_run_begins(which)
        for which in order:
            self.a_run_ends(which, Outcome.DONE, 1, False, Blame.NOBODY, 0)

    @rule(order=st.lists(tenants, min_size=1, max_size=6), blame=blames, retry=st.sampled_from((500, 300_000)))
    def runs_fail(self, order: list[int], blame: Blame, retry: int) -> None:
        for which in order:
            self.a_run_begins(which)
            self.a_run_ends(which, Outcome.RETRY, 0, True, blame, retry)

    @rule(order=st.lists(tenants, min_size=2, max_size=4), delay=st.sampled_from((0, 1_000)))
    def tenants_come_at_once(self, order: list[int], delay: int) -> None:
        for which in order:
            self.notify(which, delay)
        for which in order:
            self.begin(which, 0)

    @rule(which=tenants, events=st.integers(0, 1))
    def a_run_has_more_to_do(self, which: int, events: int) -> None:
        self.a_run_begins(which)
        for _ in range(events):
            self.notify(which, 0)
        self.a_run_ends(which, Outcome.DONE if events else Outcome.MORE, 1, False, Blame.NOBODY, 0)

    @rule(first=tenants, second=tenants, outcome=st.sampled_from((Outcome.DONE, Outcome.MORE)))
    def a_run_with_more_to_do_ends_while_another_stands_in_line(
        self, first: int, second: int, outcome: Outcome
    ) -> None:
        self.a_run_begins(first)
        self.a_run_begins(second)
        self.notify(first, 0)
        self.time_passes(300)
        self.a_run_ends(first, outcome, 1, False, Blame.NOBODY, 0)

    @rule()
    def a_quiet_end(self) -> None:
        """Runs that are on die; those that follow handle all; nothing new comes. All must become idle."""
        for _ in range(ROUNDS):
            for which, subject in enumerate(self.active):
                if subject in self.turns.waiting:
                    # As a worker with a free slot does.
                    self.it_is_given_its_turn(which)
                if self.model[subject].state is State.QUEUED:
                    self.begin(which, 0)
                    self.a_run_ends(which, Outcome.DONE, 1, False, Blame.NOBODY, 0)
            deadlines = [self.model[subject].deadline for subject in self.active]
            ahead = [deadline for deadline in deadlines if deadline is not None]
            if not ahead:
                break
            self.gate.us = max(self.gate.us, min(ahead) * 1000 - 1)
            for which, deadline in enumerate(deadlines):
                if deadline is not None and deadline <= min(ahead):
                    self.expire(which)
        assert {self.model[subject].state for subject in self.active} == {State.IDLE}
        assert self.client.zcard(self.keys.line(self.active[0][0])) == 0
        assert self.client.zcard(self.keys.turns) == 0
        for key in self._present():
            assert self.client.pttl(key) > 0, f"{key} stays for ever"

    def _go_on(self, which: int) -> None:
        state = self.model[self.active[which]].state
        if state is State.IDLE:
            self.notify(which, 0)
        elif state is State.WAITING:
            self.the_deadline_passes(which)
        elif state is State.QUEUED:
            self.begin(which, 0)

    # The comparison

    def _step(
        self,
        subject: Subject,
        event: Event,
        answer: Answer | None,
        spacing: Spacing,
        us: int,
        published: list[Published],
    ) -> None:
        self.overdue |= {
            other
            for other in self.active
            if self.model[other].state is State.RUNNING and (self.model[other].deadline or 0) <= us // 1000
        }
        super()._step(subject, event, answer, spacing, us, published)
        if self.model[subject].state is not State.RUNNING:
            self.overdue.discard(subject)
            self.probing.discard(subject)
        elif answer is Answer.BEGUN and self.shared[subject[0]].circuit.record is not None:
            self.probing.add(subject)

    def _look(self) -> None:
        super()._look()
        pipeline = self.active[0][0]
        self._look_at_shared(pipeline, self.shared[pipeline])
        if not self.loses_keys:
            on = {subject for subject in self.active if self.model[subject].state is State.RUNNING} - self.overdue
            assert not self.most_runs or len(on) <= self.most_runs
            assert self.overdue or not self.most_runs or len(self._taken_places(pipeline)) <= self.most_runs
            assert len(on & self.probing) <= 1
            waiting = {subject[1] for subject in self.active if self.model[subject].deadline is not None}
            assert set(self.shared[pipeline].line) <= waiting, "whoever stands in line has a deadline"

    def _taken_places(self, pipeline: str) -> list[str]:
        """Return who has a place or has one kept for it, as `begin` counts them."""
        found: Any = self.client.zrangebyscore(self.keys.running(pipeline), self.gate.us // 1000, "+inf")
        return list(found)

    def _look_at_shared(self, pipeline: str, shared: Shared) -> None:
        keys = (self.keys.running(pipeline), self.keys.line(pipeline), self.keys.circuit(pipeline))
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zrange(keys[0], 0, -1, withscores=True)
            pipe.zrange(keys[1], 0, -1, withscores=True)
            pipe.hgetall(keys[2])
            for key in keys:
                pipe.pttl(key)
            running, line, circuit, *left = pipe.execute()
        assert dict(running) == shared.running
        assert dict(line) == shared.line
        assert circuit == _fields(shared.circuit)
        assert -1 not in left, "a key without a time to live"

    def _expected_keys(self) -> set[str]:
        expected = super()._expected_keys()
        for pipeline, shared in self.shared.items():
            if shared.running:
                expected.add(self.keys.running(pipeline))
            if shared.line:
                expected.add(self.keys.line(pipeline))
            if _fields(shared.circuit):
                expected.add(self.keys.circuit(pipeline))
        return expected


class LossyPlaces(LossyGateAndModel, Places):
    """The same, and Redis loses keys."""

    loses_keys = True

    @rule(lost=st.sampled_from(("running", "line", "circuit", "turns")))
    def what_all_share_is_lost(self, lost: str) -> None:
        pipeline = self.active[0][0]
        shared = self.shared[pipeline]
        if lost == "running":
            self.client.delete(self.keys.running(pipeline))
            shared.running = {}
        elif lost == "line":
            self.client.delete(self.keys.line(pipeline))
            shared.line = {}
        elif lost == "turns":
            self.client.delete(self.keys.turns, self.keys.handed, self.keys.sent(pipeline))
            shared.turns.waiting.clear()
            shared.turns.handed.clear()
            shared.sent.clear()
        else:
            self.client.delete(self.keys.circuit(pipeline))
            shared.circuit = Circuit()
        self._look()

    @rule()
    def a_quiet_end(self) -> None:
        for which in range(len(self.active)):
            # Who lost its deadline gets another by a reminder.
            self.remind(which, 0, None, by_base=True)
        super().a_quiet_end()


def _fields(circuit: Circuit) -> dict[str, str]:
    """Return the circuit as `circuit.lua` stores it."""
    tenants_that_failed = dict(zip(("first", "second"), circuit.failed, strict=False))
    numbers: dict[str, Any] = {
        "until": circuit.until,
        "wait": circuit.wait or None,
        "probe": circuit.probe,
        "probes": circuit.probes or None,
        "walk": int(circuit.walk) or None,
        "failures": circuit.failures or None,
        "agreed": int(circuit.agreed) or None,
        "opened": circuit.opened or None,
        "opened_at": circuit.opened_at,
        "closed_at": circuit.closed_at,
        "rest": circuit.rest,
        "width": circuit.width,
    }
    if circuit.says is not None:
        tenants_that_failed["says"] = circuit.says
    return tenants_that_failed | {name: str(value) for name, value in numbers.items() if value is not None}


def _run(machine: Callable[[], GateAndModel]) -> None:
    run_state_machine_as_test(cast(type[GateAndModel], machine), settings=FEWER)


def test_places_line_and_circuit_do_what_the_table_says(redis_client: redis.Redis, keys: Keys) -> None:
    rows: set[Row] = set()

    _run(partial(Places, redis_client, keys, rows))

    expected = {row for row in TRANSITIONS if {Condition.NO_PLACE, Condition.OTHERS_IN_LINE} & set(row.when)}
    assert expected - rows == set(), "these rows were never taken, so nothing was shown about them"


def test_whoever_stands_in_line_while_keys_get_lost_comes_to_an_end(redis_client: redis.Redis, keys: Keys) -> None:
    _run(partial(LossyPlaces, redis_client, keys, set()))
