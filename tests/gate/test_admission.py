"""Circuit, run slots and wait queue: gate and reference model see the same runs; after each they must stand alike.

Beside the comparison stand a few rules that look at the gate alone: never more runs than the cap while none is
overdue, one probe at a time, and an end to all waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, cast

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Keys, Outcome, State
from tests.gate.test_gate_agrees_with_model import (
    DRAWS,
    EXAMPLES,
    LEAST_WALKS,
    MOST_WALKS,
    SETTINGS,
    GateAndModel,
    LossyGateAndModel,
    Published,
    Subject,
    walk,
)
from tests.model import admission
from tests.model.admission import CIRCUIT, SLOTS, WAIT_QUEUE
from tests.model.reference import AnyRow, Circuit, Event, Shared
from tests.model.transitions import TRANSITIONS, Condition

PIPELINES = ("bursts", "no_lease", "rules")
TENANTS = ("acme", "b", "c", "d")

ROUNDS = 200
"""Deadlines that pass before all is idle; the waits of the circuit and of the wait queue double, so that is long."""

FEWER = settings(SETTINGS, max_examples=(EXAMPLES or 10) // 2, stateful_step_count=40)
"""These examples are longer than the others: a quiet end alone is a hundred events."""

tenants = st.integers(0, len(TENANTS) - 1)
BLAMES = (Blame.DOWNSTREAM, Blame.DOWNSTREAM, Blame.RECORD, Blame.PIPELINE)
blames = st.sampled_from(BLAMES)


class Admission(GateAndModel):
    """Tenants of one pipeline, whose runs fail, and which has a cap on its runs."""

    everybody = tuple((pipeline, tenant) for pipeline in PIPELINES for tenant in TENANTS)
    loses_keys = False
    draws = DRAWS | {
        "all_wait": (False, True),
        "blame": (Blame.NOBODY, *BLAMES),
        "failed": (False, True),
        "handled": (0, 1),
        "more": (0, 1),
        "order": ([0, 1], [1, 0, 2], [2, 1, 0, 3], [3, 0, 1, 2]),
    }

    def __init__(self, client: redis.Redis, keys: Keys, rows: set[AnyRow]) -> None:
        super().__init__(client, keys, rows)
        self.overdue: set[Subject] = set()
        self.probing: set[Subject] = set()

    def choose(self, one_of: Callable[[Sequence[Any]], Any]) -> list[Subject]:
        self.most_runs = one_of((1, 2, 0))
        pipeline = one_of(PIPELINES)
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
    def a_pipeline_that_waited_works_off_its_wait_queue(self, order: list[int], retry: int) -> None:
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

    @rule(which=tenants, more=st.integers(0, 1))
    def a_run_has_more_to_do(self, which: int, more: int) -> None:
        self.a_run_begins(which)
        for _ in range(more):
            self.notify(which, 0)
        self.a_run_ends(which, Outcome.DONE if more else Outcome.MORE, 1, False, Blame.NOBODY, 0)

    @rule(first=tenants, second=tenants, outcome=st.sampled_from((Outcome.DONE, Outcome.MORE)))
    def a_run_with_more_to_do_ends_while_another_is_in_the_wait_queue(
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
                if subject in self.fair_queue.waiting:
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
        assert self.client.zcard(self.keys.wait_queue(self.active[0][0])) == 0
        assert self.client.zcard(self.keys.fair_queue) == 0
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
            assert self.overdue or not self.most_runs or len(self._taken_slots(pipeline)) <= self.most_runs
            assert len(on & self.probing) <= 1
            waiting = {subject[1] for subject in self.active if self.model[subject].deadline is not None}
            assert set(self.shared[pipeline].wait_queue) <= waiting, "whoever is in the wait queue has a deadline"

    def _taken_slots(self, pipeline: str) -> list[str]:
        """Return who has a run slot or has one kept for it, as `begin` counts them."""
        found: Any = self.client.zrangebyscore(self.keys.running(pipeline), self.gate.us // 1000, "+inf")
        return list(found)

    def _look_at_shared(self, pipeline: str, shared: Shared) -> None:
        keys = (self.keys.running(pipeline), self.keys.wait_queue(pipeline), self.keys.circuit(pipeline))
        with self.client.pipeline(transaction=False) as pipe:
            pipe.zrange(keys[0], 0, -1, withscores=True)
            pipe.zrange(keys[1], 0, -1, withscores=True)
            pipe.hgetall(keys[2])
            for key in keys:
                pipe.pttl(key)
            running, waiting, circuit, *left = pipe.execute()
        assert dict(running) == shared.running
        assert dict(waiting) == shared.wait_queue
        assert circuit == _fields(shared.circuit)
        model = shared.circuit
        assert (model.state is admission.Circuit.CLOSED) == (model.until is None)
        assert (model.state is admission.Circuit.PROBING) == (model.probe is not None)
        assert (model.slots is admission.Slots.STEADY) == (model.width is None)
        assert -1 not in left, "a key without a time to live"

    def _expected_keys(self) -> set[str]:
        expected = super()._expected_keys()
        for pipeline, shared in self.shared.items():
            if shared.running:
                expected.add(self.keys.running(pipeline))
            if shared.wait_queue:
                expected.add(self.keys.wait_queue(pipeline))
            if _fields(shared.circuit):
                expected.add(self.keys.circuit(pipeline))
        return expected


class LossyAdmission(LossyGateAndModel, Admission):
    """The same, and Redis loses keys."""

    loses_keys = True

    @rule(lost=st.sampled_from(("running", "wait queue", "circuit", "turns")))
    def what_all_share_is_lost(self, lost: str) -> None:
        pipeline = self.active[0][0]
        shared = self.shared[pipeline]
        if lost == "running":
            self.client.delete(self.keys.running(pipeline))
            shared.running = {}
        elif lost == "wait queue":
            self.client.delete(self.keys.wait_queue(pipeline))
            shared.wait_queue = {}
        elif lost == "turns":
            self.client.delete(self.keys.fair_queue, self.keys.in_flight, self.keys.in_flight_due(pipeline))
            shared.fair_queue.waiting.clear()
            shared.fair_queue.in_flight.clear()
            shared.in_flight_due.clear()
        else:
            self.client.delete(self.keys.circuit(pipeline))
            shared.circuit = Circuit()
        self._look()

    @rule()
    def a_quiet_end(self) -> None:
        for which in range(len(self.active)):
            # Who lost its deadline gets another by a reminder.
            self.remind(which, 0, None, by_reconciler=True)
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


@pytest.mark.slow
def test_gate_and_model_agree_on_circuit_slots_and_wait_queue(redis_client: redis.Redis, keys: Keys) -> None:
    _run(partial(Admission, redis_client, keys, set()))


def test_whoever_waits_for_a_run_slot_does_what_the_table_says(redis_client: redis.Redis, keys: Keys) -> None:
    rows: set[AnyRow] = set()
    draw = Random(1)  # noqa: S311

    expected = {row for row in TRANSITIONS if {Condition.NO_SLOT, Condition.OTHERS_IN_QUEUE} & set(row.when)}
    for number in range(MOST_WALKS):
        if number >= LEAST_WALKS and expected <= rows:
            break
        walk(Admission(redis_client, keys, rows), draw)

    assert expected - rows == set(), "these rows were never taken, so nothing was shown about them"


def test_whoever_waits_in_the_queue_while_keys_get_lost_comes_to_an_end(redis_client: redis.Redis, keys: Keys) -> None:
    _run(partial(LossyAdmission, redis_client, keys, set()))


# A course for each row of the tables: some need several runs in one order, which is drawn too seldom.


class Course(LossyAdmission):
    """One example, driven by hand. Tenants are known by their numbers."""

    def __init__(self, client: redis.Redis, keys: Keys, rows: set[AnyRow], most_runs: int = 0) -> None:
        super().__init__(client, keys, rows)
        self.most_runs, self.overdue, self.probing = most_runs, set(), set()
        self.active = [("no_lease", tenant) for tenant in TENANTS]
        self._share()

    def begins(self, *tenants: int) -> None:
        """Let each begin, or be refused, at once."""
        for which in tenants:
            if self.model[self.active[which]].state is State.IDLE:
                self.notify(which, 0)
            elif self.model[self.active[which]].state is State.WAITING:
                self.an_operator_starts_it(which)
            self.begin(which, 0)

    def ends(self, which: int, how: str = "", *, all_wait: int = 0) -> None:
        """End its run: it handled some, none, or it failed."""
        failed, handled = how == "failed", int(how == "handled")
        outcome = Outcome.RETRY if failed or all_wait else Outcome.DONE
        blame = Blame.PIPELINE if failed else Blame.NOBODY
        self.settle(which, 0, outcome, all_wait or 500, 1, handled, handled, failed, blame, all_wait > 0)

    def opens(self) -> None:
        """Let two tenants open the circuit: the second one is the first in the wait queue."""
        self.begins(1, 2)
        self.ends(1, "failed")
        self.ends(2, "failed")

    def dies(self, which: int) -> None:
        self.the_deadline_passes(which)
        self.begin(which, 0)


HOW = ("handled", "none", "failed")


def _no_circuit(course: Callable[..., Course]) -> None:
    for how in HOW:
        one = course()
        one.begins(0)
        one.ends(0, how)


def _runs_that_were_on_before_it_opened(course: Callable[..., Course]) -> None:
    for how in HOW:
        for wait, probe in ((0, None), (1_000, None), (1_000, 2)):
            one = course(most_runs=3)
            one.begins(0)
            one.opens()
            one.time_passes(wait)
            if probe is not None:
                one.begins(probe)
            one.ends(0, how)


def _newcomers(course: Callable[..., Course]) -> None:
    for wait in (0, 1_000):
        one = course()
        one.opens()
        one.time_passes(wait)
        one.begins(1, 1, 2, 3)
        for all_wait in (0, 300_000):
            one = course()
            one.begins(0)
            one.opens()
            if all_wait:
                one.ends(0, "failed", all_wait=all_wait)
            one.time_passes(wait)
            one.begins(3)


def _probes(course: Callable[..., Course]) -> None:
    for how in HOW:
        one = course()
        one.opens()
        one.time_passes(1_000)
        one.begins(2, 1)
        one.ends(2, how)


def _probes_that_die(course: Callable[..., Course]) -> None:
    for others_come in (False, True):
        one = course()
        one.opens()
        one.time_passes(1_000)
        one.begins(2)
        if others_come:
            one.begins(3)
        one.dies(2)

        one = course()
        one.opens()
        one.time_passes(1_000)
        one.begins(2)
        if others_come:
            one.begins(3)
        one.time_passes(6_000)
        one.begins(1 if others_come else 3)

    one = course()
    one.begins(0)
    one.opens()
    one.time_passes(1_000)
    one.begins(2)
    one.ends(0, all_wait=300_000)
    one.dies(2)


def _a_cap(course: Callable[..., Course]) -> None:
    for how in HOW[:2]:
        for most_runs in (1, 0):
            one = course(most_runs=most_runs)
            one.begins(0, 1, 1)
            one.ends(0, how)
            one.begins(1)
    for outcome in (Outcome.MORE, Outcome.DONE):
        one = course(most_runs=1)
        one.begins(0, 1)
        one.notify(0, 0)
        one.time_passes(300)
        one.settle(0, 0, outcome, 0, 1, 1, 1)


def _waits_of_all(course: Callable[..., Course]) -> None:
    one = course()
    one.begins(0, 1, 2, 3)
    one.ends(0, all_wait=1_000)
    one.begins(0)
    one.ends(1, all_wait=2_000)
    one.ends(2, "handled")
    one.ends(3, "none")
    one.time_passes(2_000)
    one.begins(0, 1)
    one.ends(0, "none")
    one.begins(1)
    one.begins(2, 3)
    one.ends(1, "handled")
    one.begins(2, 3)
    one.ends(2, all_wait=1_000)
    one.time_passes(1_000)
    one.begins(2)
    for which in range(4):
        if one.model[one.active[which]].state is State.RUNNING:
            one.ends(which, "handled")
        one.begins(which)

    one = course()
    one.begins(0, 1)
    one.ends(0, all_wait=1_000)
    one.time_passes(1_000)
    one.ends(1, "none")
    one.begins(0)
    one.ends(0, "handled")

    one = course()
    one.begins(0, 3)
    one.opens()
    one.ends(3, all_wait=300_000)
    one.ends(0, "handled")


def _on_its_way_when_the_circuit_closes(course: Callable[..., Course]) -> None:
    for opens_again in (False, True):
        one = course()
        one.begins(0)
        one.opens()
        one.an_operator_starts_it(2)
        one.settle(0, 0, Outcome.MORE, 0, 1, 1, 1)
        if opens_again:
            one.begin(0, 0)
            one.begins(3)
            one.ends(0, "failed")
            one.ends(3, "failed")
        one.begin(2, 0)
        one.a_ticker_asks_whose_turn_it_is()


def _a_lost_deadline(course: Callable[..., Course]) -> None:
    one = course(most_runs=1)
    one.begins(0, 1)
    one.part_of_redis_is_lost(1, "deadline")
    one.ends(0, "handled")


COURSES = (
    _no_circuit,
    _runs_that_were_on_before_it_opened,
    _newcomers,
    _probes,
    _probes_that_die,
    _a_cap,
    _waits_of_all,
    _on_its_way_when_the_circuit_closes,
    _a_lost_deadline,
)


def test_circuit_slots_and_wait_queue_do_what_each_row_of_their_tables_says(
    redis_client: redis.Redis, keys: Keys
) -> None:
    rows: set[AnyRow] = set()
    made: list[Course] = []

    def course(most_runs: int = 0) -> Course:
        if made:
            made.pop().teardown()
        made.append(Course(redis_client, keys, rows, most_runs))
        return made[0]

    for drive in COURSES:
        drive(course)

    assert set[AnyRow]().union(CIRCUIT, SLOTS, WAIT_QUEUE) - rows == set(), "these rows were never taken"
