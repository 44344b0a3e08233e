"""How many records a handler is given: many where a call costs by itself, few where each record does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskbridge.process.pace import FORGOTTEN_AFTER, MOST_BUDGETS, Pace, Paces

BATCH = 500
LATENCY = 0.05
BUDGET = 1.0


class Handler:
    """Takes `call` seconds and `record` for each record; `calls` has the sizes and times of its calls."""

    def __init__(self, call: float, record: float, noise: float = 0.05) -> None:
        self.call, self.record, self.noise = call, record, noise
        self.pace = Pace()
        self.calls: list[tuple[int, float]] = []
        self.random = random.Random(1)  # noqa: S311 - not for secrets

    def take(self, records: int, extra: float = 0.0, *, is_full: bool = False) -> float:
        seconds = (self.call + self.record * records) * (1 + self.noise * self.random.random()) + extra
        self.pace.note(records, seconds, is_full=is_full)
        self.calls.append((records, seconds))
        return seconds

    def drain(self, records: int, batch: int = BATCH, latency: float = LATENCY) -> list[int]:
        """Take so many in calls as large as they may be; return their sizes."""
        sizes = []
        while records:
            most = min(batch, self.pace.most_records(latency, BUDGET))
            size = min(most, records)
            sizes.append(size)
            records -= size
            self.take(size, is_full=size == most)
        return sizes

    @property
    def longest(self) -> float:
        return max(seconds for _, seconds in self.calls)


@pytest.mark.parametrize("lone", [1, 20])
def test_no_call_takes_more_than_a_few_budgets_before_the_cost_of_a_record_is_known(lone: int) -> None:
    handler = Handler(0.0, 0.1)
    for _ in range(lone):
        handler.take(1)
    handler.drain(1_000)
    assert handler.longest <= MOST_BUDGETS * 1.1
    handler.calls.clear()
    handler.drain(1_000)
    assert handler.longest <= 1.2


def test_batches_grow_again_when_a_slow_handler_has_become_quick_and_shrink_when_it_is_slow_again() -> None:
    handler = Handler(0.0, 0.05)
    handler.drain(500)
    handler.record = 0.00005
    handler.drain(20_000)
    assert handler.drain(5 * BATCH) == [BATCH] * 5
    handler.record = 0.05
    handler.drain(6 * BATCH)
    handler.calls.clear()
    handler.drain(BATCH)
    assert handler.longest <= 1.3


@pytest.mark.parametrize(("call", "record"), [(0.1, 0.0), (0.03, 0.0002), (0.3, 0.01)])
@pytest.mark.parametrize("stalled", [7.0, 60.0])
def test_a_slow_minute_is_forgotten(call: float, record: float, stalled: float) -> None:
    handler, undisturbed = Handler(call, record), Handler(call, record)
    for _ in range(2):
        handler.take(100, extra=stalled)
    handler.drain(2 * FORGOTTEN_AFTER)
    handler.drain(10 * BATCH)
    undisturbed.drain(10 * BATCH)
    assert handler.drain(4 * BATCH)[1] >= undisturbed.drain(4 * BATCH)[1] / 2


def test_tenants_for_which_the_handler_does_nothing_do_not_shrink_the_batches_of_others() -> None:
    paces, sizes = Paces(), []
    for _ in range(500):
        paces.note(1, 0.001)
        sizes.append(min(BATCH, paces.most_records(LATENCY, BUDGET, "large")))
        paces.note(sizes[-1], 0.3, "large")
    assert sizes[-100:] == [BATCH] * 100


@pytest.mark.parametrize("seed", range(5))
def test_whatever_sizes_come_little_is_remembered_and_the_answer_is_a_number_of_records(seed: int) -> None:
    pace, draw = Pace(), random.Random(seed)  # noqa: S311 - not for secrets
    for _ in range(2_000):
        pace.note(draw.choice((1, 2, draw.randint(1, 100_000))), draw.choice((0.0, draw.random() ** 8 * 100)))
        assert pace.most_records(draw.choice((0.001, 0.05, 3_600.0)), BUDGET) >= 1
    assert sum(map(len, pace._by_size.values())) <= 3 * 17


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    call=st.one_of(st.just(0.0), st.floats(0.0, 2.0)),
    record=st.one_of(st.just(0.0), st.floats(0.0, 2.0)),
    loads=st.lists(st.sampled_from([1, 2, 3, 50, 500]), max_size=8),
    latency=st.floats(0.01, 0.5),
)
def test_a_call_is_as_long_as_the_latency_budget_allows_and_no_longer(
    call: float, record: float, loads: list[int], latency: float
) -> None:
    handler = Handler(call, record)
    for load in [*loads, 2 * BATCH]:
        handler.drain(load, latency=latency)
    handler.calls.clear()
    sizes = handler.drain(BATCH, latency=latency)
    # The noise of five per cent may look like a cost of the call, and one record is always given.
    bound = 1.3 * (call + max(latency, 4 * call)) + 1.1 * record
    # Now and then twice as many are tried, in case the handler has become quick.
    assert handler.longest <= 2 * bound
    assert sum(seconds > bound for _, seconds in handler.calls) <= max(2, 0.03 * len(handler.calls))
    assert record or sizes == [BATCH]


@pytest.mark.parametrize(
    ("call", "record", "records"), [(0.0, 0.002, 25), (0.3, 0.0, BATCH), (0.3, 0.01, 120), (0.0, 2.0, 1)]
)
def test_batches_are_as_large_as_the_page_about_failures_says(call: float, record: float, records: int) -> None:
    handler = Handler(call, record, noise=0.0)
    handler.drain(4 * BATCH)
    assert handler.drain(2 * BATCH)[0] == pytest.approx(records, abs=1)
