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
from hypothesis.stateful import run_state_machine_as_test

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Keys, Outcome, State
from verification.model import admission
from verification.model.admission import CIRCUIT, SLOTS, WAIT_QUEUE
from verification.model.reference import AnyRow, Circuit, Event, Shared
from verification.model.test_gate_agrees_with_model import (
    EXAMPLES,
    LEAST_WALKS,
    SETTINGS,
    GateAndModel,
    LossyGateAndModel,
    Published,
    Subject,
    drawn,
    walk,
)
from verification.model.transitions import TRANSITIONS, Condition

PIPELINES = ("bursts", "no_lease", "rules")
TENANTS = ("acme", "b", "c", "d")

ROUNDS = 200
"""Deadlines that pass before all is idle; the waits of the circuit and of the wait queue double, so that is long."""

FEWER = settings(SETTINGS, max_examples=(EXAMPLES or 10) // 2, stateful_step_count=40)
"""These examples are longer than the others: a quiet end alone is a hundred events."""

MOST_COURSES = 200
MOVES = {
    "a_probe_dies",
    "a_run_begins",
    "a_run_dies",
    "a_run_ends",
    "a_run_ends_after_the_circuit_opened",
    "a_run_is_told_that_all_wait",
    "a_run_with_more_to_do_ends_while_another_is_in_the_wait_queue",
    "an_operator_starts_it",
    "notify",
    "part_of_redis_is_lost",
    "runs_are_on_together_and_handle_all",
    "runs_fail",
    "tenants_come_at_once",
    "the_deadline_passes",
    "time_passes",
}
"""The rules by which the rows of all tables are taken soon."""


class Admission(GateAndModel):
    """Tenants of one pipeline, whose runs fail, and which has a cap on its runs."""

    everybody = tuple((pipeline, tenant) for pipeline in PIPELINES for tenant in TENANTS)
    loses_keys = False

    def __init__(self, client: redis.Redis, keys: Keys, rows: set[AnyRow]) -> None:
        super().__init__(client, keys, rows)
        self.overdue: set[Subject] = set()
        self.probing: set[Subject] = set()

    def choose(self, one_of: Callable[[Sequence[Any]], Any]) -> list[Subject]:
        self.most_runs = one_of((1, 2, 0))
        pipeline = one_of(PIPELINES)
        return [(pipeline, tenant) for tenant in TENANTS]

    @drawn
    def a_run_begins(self, which: int) -> None:
        for _ in range(3):
            self._go_on(which)

    @drawn
    def a_run_ends(self, which: int, outcome: Outcome, handled: int, failed: bool, blame: Blame, retry: int) -> None:
        self._ends(which, outcome, retry_ms=retry, handled=handled, failed=failed, blame=blame)

    def _ends(self, which: int, outcome: Outcome, **how: Any) -> None:
        if self.model[self.active[which]].state is State.RUNNING:
            self.settle(which, 0, outcome, **how)

    @drawn
    def a_run_is_told_that_all_wait(self, order: list[int], handled: int, retry: int) -> None:
        first, *others = order
        self.a_run_begins(first)
        self.tenants_come_at_once(others, 0)
        self._ends(first, Outcome.RETRY, handled=handled, retry_ms=retry, failed=False, all_wait=True)

    @drawn
    def runs_are_on_together_and_handle_all(self, order: list[int]) -> None:
        for which in order:
            self.a_run_begins(which)
        for which in order:
            self._ends(which, Outcome.DONE, handled=1)

    @drawn
    def runs_fail(self, order: list[int], blame: Blame, retry: int) -> None:
        for which in order:
            self.a_run_begins(which)
            self._ends(which, Outcome.RETRY, retry_ms=retry, blame=blame)

    @drawn
    def a_run_ends_after_the_circuit_opened(self, first: int, order: list[int], handled: int, ms: int) -> None:
        self._others_open_the_circuit(first, order)
        self.time_passes(ms)
        self._ends(first, Outcome.DONE, handled=handled)

    def _others_open_the_circuit(self, first: int, order: list[int]) -> None:
        self.a_run_begins(first)
        self.runs_fail([which for which in order if which != first], Blame.PIPELINE, 500)

    @drawn
    def a_probe_dies(self, first: int, order: list[int], more: bool) -> None:
        """While a run is on that was on before the circuit opened, or after that has let all wait."""
        self._others_open_the_circuit(first, order)
        self.time_passes(1_500)
        if waiting := self.shared[self.active[0][0]].ordered():
            probe = TENANTS.index(waiting[0])
            self.a_run_begins(probe)
            if more:
                self._ends(first, Outcome.RETRY, retry_ms=300_000, failed=False, all_wait=True)
            self.a_run_dies(probe)

    @drawn
    def a_run_dies(self, which: int) -> None:
        if self.model[self.active[which]].state is State.RUNNING:
            self.the_deadline_passes(which)
            self.begin(which, 0)

    @drawn
    def tenants_come_at_once(self, order: list[int], delay: int) -> None:
        for which in order:
            self.notify(which, delay)
        for which in order:
            self.begin(which, 0)

    @drawn
    def a_run_with_more_to_do_ends_while_another_is_in_the_wait_queue(
        self, first: int, second: int, more: bool, ms: int
    ) -> None:
        self.a_run_begins(first)
        self.a_run_begins(second)
        self.notify(first, 0)
        self.time_passes(ms)
        self._ends(first, Outcome.MORE if more else Outcome.DONE, handled=1)

    @drawn
    def a_quiet_end(self) -> None:
        """Runs that are on die; those that follow handle all; nothing new comes. All must become idle."""
        for _ in range(ROUNDS):
            for which, subject in enumerate(self.active):
                if subject in self.fair_queue.waiting:
                    # As a worker with a free slot does.
                    self.it_is_given_its_turn(which)
                if self.model[subject].state is State.QUEUED:
                    self.begin(which, 0)
                    self._ends(which, Outcome.DONE, handled=1)
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

    @drawn
    def what_all_share_is_lost(self, shared: str) -> None:
        pipeline = self.active[0][0]
        model, keys = self.shared[pipeline], self.keys
        if shared == "running":
            self.client.delete(keys.running(pipeline))
            model.running = {}
        elif shared == "wait queue":
            self.client.delete(keys.wait_queue(pipeline))
            model.wait_queue = {}
        elif shared == "turns":
            self.client.delete(keys.fair_queue, keys.in_flight, keys.in_flight_due(pipeline))
            model.fair_queue.waiting.clear()
            model.fair_queue.in_flight.clear()
            model.in_flight_due.clear()
        else:
            self.client.delete(keys.circuit(pipeline))
            model.circuit = Circuit()
        self._look()

    @drawn
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


def test_who_waits_for_a_run_slot_or_a_circuit_does_what_each_row_of_the_tables_says(
    redis_client: redis.Redis, keys: Keys
) -> None:
    rows: set[AnyRow] = set()
    draw = Random(1)  # noqa: S311

    waits = {row for row in TRANSITIONS if {Condition.NO_SLOT, Condition.OTHERS_IN_QUEUE} & set(row.when)}
    expected = waits.union(CIRCUIT, SLOTS, WAIT_QUEUE)
    for number in range(MOST_COURSES):
        if number >= LEAST_WALKS and expected <= rows:
            break
        walk(LossyAdmission(redis_client, keys, rows), draw, MOVES)

    assert expected - rows == set(), "these rows were never taken, so nothing was shown about them"


def test_whoever_waits_in_the_queue_while_keys_get_lost_comes_to_an_end(redis_client: redis.Redis, keys: Keys) -> None:
    _run(partial(LossyAdmission, redis_client, keys, set()))
