"""How many records a handler is given: as many as whoever comes meanwhile can wait for."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskbridge.process.pace import FIRST_CALL, FIXED_PARTS, Pace

BATCH = 500
BUDGET = 0.05


class Handler:
    """Takes `call` seconds and `record` for each record; `calls` has the sizes and times of its calls."""

    def __init__(self, call: float, record: float, noise: float = 0.05, budget: float = BUDGET) -> None:
        self.call, self.record, self.noise, self.budget = call, record, noise, budget
        self.pace = Pace()
        self.calls: list[tuple[int, float]] = []
        self.random = random.Random(1)  # noqa: S311 - not for secrets

    def take(self, records: int, extra: float = 0.0) -> float:
        seconds = (self.call + self.record * records) * (1 + self.noise * self.random.random()) + extra
        self.pace.note(records, seconds)
        self.calls.append((records, seconds))
        return seconds

    def drain(self, records: int, batch: int = BATCH) -> list[int]:
        """Take so many in calls as large as may be; return their sizes."""
        sizes = []
        while records:
            sizes.append(min(batch, self.pace.most_records(self.budget), records))
            records -= sizes[-1]
            self.take(sizes[-1])
        return sizes

    @property
    def bound(self) -> float:
        """How long a first event may wait that comes when a call begins."""
        return max(self.budget, FIXED_PARTS * self.call) + self.call + self.record

    @property
    def longest(self) -> float:
        return max(seconds for _, seconds in self.calls)


seconds = st.one_of(st.just(0.0), st.floats(0.0001, 2.0))


@settings(deadline=None, max_examples=50)
@given(
    call=seconds,
    record=seconds,
    budget=st.floats(0.001, 2.0),
    lone=st.integers(1, 5),
    loads=st.lists(st.integers(1, 2_000), max_size=4),
    batch=st.integers(1, 1_000),
)
@example(call=0.0, record=2.0, budget=0.05, lone=1, loads=[100], batch=500)
@example(call=0.3, record=0.01, budget=0.05, lone=3, loads=[1_000], batch=100)
def test_no_call_takes_longer_than_the_budget_or_four_times_its_fixed_part_and_one_call(
    call: float, record: float, budget: float, lone: int, loads: list[int], batch: int
) -> None:
    handler = Handler(call, record, noise=0.0, budget=budget)
    for _ in range(lone):
        handler.take(1)
    for load in loads:
        handler.drain(load, batch)
        handler.take(1)
    # The first call of another size shows what a record costs. It is of two records, if one takes all of the budget.
    sizes = [size for size, _ in handler.calls]
    learning = next((at for at, size in enumerate(sizes) if size > 1), 0)
    for at, (_, took) in enumerate(handler.calls):
        assert took <= (2 if at == learning else 1) * handler.bound * 1.001


def test_a_record_of_two_milliseconds_comes_with_as_many_others_as_the_budget_holds() -> None:
    handler = Handler(0.0, 0.002, noise=0.0)
    handler.take(1)
    assert set(handler.drain(1_000)[1:-1]) <= {24, 25}


@pytest.mark.parametrize("call", [0.0, 0.01, 0.3, 2.0])
@pytest.mark.parametrize("lone", [0, 1, 5, 200])
def test_lone_records_do_not_split_the_batches_of_a_handler_whose_calls_cost_by_themselves(
    call: float, lone: int
) -> None:
    handler = Handler(call, 0.0)
    for _ in range(lone):
        handler.take(1)
    handler.drain(10 * BATCH)
    assert handler.drain(10 * BATCH) == [BATCH] * 10
    assert len(handler.calls) - lone <= 20 + 4


def test_a_thousand_records_of_a_request_of_300_ms_take_two_calls_more_than_the_least() -> None:
    handler = Handler(0.3, 0.0)
    for _ in range(5):
        handler.take(1)
    assert len(handler.drain(1_000, batch=100)) <= 12


@pytest.mark.parametrize("call", [0.0, 0.01])
def test_a_handler_that_is_slow_for_each_record_is_given_one(call: float) -> None:
    handler = Handler(call, 2.0)
    handler.take(1)
    handler.drain(30)
    assert handler.longest <= 2 * (call + 2.0) * 1.05, "the second call is of two"
    handler.calls.clear()
    handler.drain(50)
    assert {size for size, _ in handler.calls} == {1}


@pytest.mark.parametrize(("call", "record"), [(0.0, 0.001), (0.05, 0.002), (0.3, 0.02), (2.0, 0.05)])
def test_the_batches_are_as_large_as_the_bound_allows_once_the_cost_is_known(call: float, record: float) -> None:
    handler = Handler(call, record)
    handler.drain(2_000)
    handler.calls.clear()
    sizes = handler.drain(2_000)
    assert handler.longest <= handler.bound * 1.2
    assert max(sizes) >= 0.7 * min(BATCH, max(BUDGET, FIXED_PARTS * call) / record)


def test_the_first_call_of_a_process_is_bounded_in_records() -> None:
    assert Pace().most_records(1.0) == FIRST_CALL


@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("call", [0.01, 0.3])
def test_one_slow_call_is_soon_forgotten(call: float, at: int) -> None:
    handler = Handler(call, 0.0)
    for _ in range(at):
        handler.drain(BATCH)
    handler.take(BATCH, extra=5.0)
    assert len(handler.drain(10 * BATCH)) <= 10 + 10
    assert handler.drain(10 * BATCH) == [BATCH] * 10


def test_a_first_call_that_connects_says_nothing_of_the_later_ones() -> None:
    handler = Handler(0.0, 0.002)
    handler.take(1, extra=0.3)
    handler.calls.clear()
    handler.drain(1_000)
    assert handler.longest <= 3 * BUDGET
    handler.calls.clear()
    handler.drain(1_000)
    assert handler.longest <= 1.2 * BUDGET


def test_batches_shrink_when_records_have_become_slow_and_grow_when_they_are_quick_again() -> None:
    handler = Handler(0.0, 0.0001)
    handler.take(1)
    handler.drain(20_000)
    handler.record = 0.002
    handler.drain(3 * BATCH)
    handler.calls.clear()
    handler.drain(BATCH)
    assert handler.longest <= 2 * BUDGET, "two slow calls of a size are enough"
    handler.record = 0.0001
    handler.drain(20_000)
    assert max(handler.drain(5 * BATCH)) >= 0.7 * BATCH


@pytest.mark.parametrize("seed", range(5))
def test_whatever_sizes_come_little_is_remembered_and_the_answer_is_a_number_of_records(seed: int) -> None:
    pace, draw = Pace(), random.Random(seed)  # noqa: S311 - not for secrets
    for _ in range(2_000):
        pace.note(draw.choice((1, 2, draw.randint(1, 100_000))), draw.choice((0.0, draw.random() ** 8 * 100)))
        assert pace.most_records(draw.choice((0.001, 0.05, 1.0))) >= 1
    assert sum(map(len, pace._by_size.values())) <= 3 * 17
