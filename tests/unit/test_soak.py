"""The verdict of `make soak`: what it calls growth, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verification.soak.report import FLAT, problems

CYCLE_MINUTES = 5.0


def run_of(value: Callable[[float], float], figure: str = "redis MB", **last: Any) -> dict[str, Any]:
    """Return a run of two hours in which everything is flat but one figure."""
    flat = dict.fromkeys((name for quantity in FLAT for name in quantity.figures), 10.0)
    rest = {"doubled": 0, "overdue": 0, "taken": 5, "goods": 5}
    samples = [{**rest, **flat, "minute": number / 2, figure: value(number / 2)} for number in range(241)]
    samples[-1] |= last
    return {"cycle_minutes": CYCLE_MINUTES, "samples": samples, "missing": []}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda _: 10.0, id="constant"),
        pytest.param(lambda minute: 10 + 50 * (minute % CYCLE_MINUTES), id="up and down in each cycle"),
        pytest.param(lambda minute: min(minute, 50), id="filled in the first half"),
        pytest.param(lambda minute: 500 if minute == 100 else 10, id="one outlier"),
        pytest.param(lambda minute: 10 + 0.9 * minute / 60, id="slower than its limit"),
    ],
)
def test_what_is_flat_after_the_first_half_counts_as_growing(value: Callable[[float], float]) -> None:
    assert problems(run_of(value)) == []


def test_a_leak_is_hidden_by_what_goes_up_and_down_in_each_cycle() -> None:
    leak = run_of(lambda minute: 10 + 2 * minute / 60 + 50 * (minute % CYCLE_MINUTES))
    (problem,) = problems(leak)
    assert problem.startswith("Redis: used_memory")


def test_lost_doubled_and_late_records_are_not_reported() -> None:
    run = run_of(lambda _: 10.0, doubled=3, overdue=1, taken=6) | {"missing": [("goods", "acme", "7")]}
    assert len(problems(run)) == 4
