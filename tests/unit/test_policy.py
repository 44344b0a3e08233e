"""Policies and pipelines refuse nonsense when they are declared."""

from __future__ import annotations

from typing import Any

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral, Spacing
from taskbridge.errors import InvalidPolicy


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tick": 2}, r"tick \(2 s\) is longer than the lease \(1.2 s\)"),
        ({"lease": float("nan")}, "between 0 and 3600 s"),
        ({"lease": "1.2"}, "finite number"),
        ({"lease": True}, "finite number"),
        ({"lease": 0, "sweep_empty_ticks": True}, "needs a lease"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidPolicy, match=text):
        LatencyNeutral(**values)


def test_seconds_become_the_gates_milliseconds() -> None:
    assert LatencyNeutral().spacing == Spacing(delay=200, lease=1200, last_ttl=0, empty_tick=0)
    assert LatencyNeutral(lease=0).spacing == Spacing(delay=200, lease=0)
    assert LatencyNeutral(sweep_empty_ticks=True).spacing == Spacing(delay=200, lease=1200, empty_tick=200)


ERROR = Criterion("$.level", "ERROR", "$.service", 300)
WARNING = Criterion("$.level", "WARNING", "$.service", 900)


@pytest.mark.parametrize("criteria", [[ERROR, WARNING], [WARNING, ERROR]])
def test_a_last_run_is_kept_for_the_longest_delay_whichever_event_comes(criteria: list[Criterion]) -> None:
    policy = DelaySinceLastRun(criteria)
    assert policy.spacing == Spacing(delay=300_000, lease=0, last_ttl=900_000, empty_tick=0)
    assert policy.spacing_for(900_000) == Spacing(delay=900_000, lease=0, last_ttl=900_000, empty_tick=0)


def handler(batch: Batch) -> None:
    """Take a batch."""


def other(batch: Batch) -> None:
    """Take a batch too."""


def test_two_handlers_under_one_name_are_refused_with_both_places() -> None:
    pipelines = Pipelines()
    pipelines.declare(Pipeline("exports", handler, LatencyNeutral(), 1))
    pipelines.declare(Pipeline("exports", handler, LatencyNeutral(), 2))
    with pytest.raises(InvalidPolicy, match=r"test_policy\.handler and .*test_policy\.other"):
        pipelines.declare(Pipeline("exports", other, LatencyNeutral(), 1))


def test_a_declared_pipeline_takes_the_place_of_a_built_in_one() -> None:
    declared = Pipelines()
    pipelines = declared.beside(Pipeline("invoices", handler, LatencyNeutral(), 1))
    assert pipelines["invoices"].handler is handler
    declared.declare(Pipeline("invoices", other, LatencyNeutral(), 1))
    assert pipelines["invoices"].handler is other
    assert pipelines.names() == ["invoices"]
