"""What `taskbridge.common.limits` says is what is enforced: at the limits all is well, beyond them nothing is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskbridge.common.limits import NAMES, OPTIONS, SETTINGS, Range
from taskbridge.common.names import (
    check_key,
    check_key_prefix,
    check_message_id,
    check_pipeline_name,
    check_schema_name,
    check_source_name,
    check_tenant,
)
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral
from taskbridge.errors import TaskBridgeError
from taskbridge.settings import Settings

CHECKS: dict[str, Callable[[str], str]] = {
    "tenant": check_tenant,
    "key": lambda text: check_key("acme", text),
    "message id": lambda text: check_message_id("alerts", text),
    "pipeline": check_pipeline_name,
    "source": check_source_name,
    "key prefix": check_key_prefix,
    "schema": check_schema_name,
}


def _pipeline(**options: Any) -> Pipeline:
    given: dict[str, Any] = {"batch_size": 1} | options
    return Pipeline("p", print, LatencyNeutral(), **given)


OF_OPTIONS: dict[str, Callable[[Any], object]] = {
    "batch_size": lambda value: _pipeline(batch_size=value),
    "max_attempts": lambda value: _pipeline(max_attempts=value),
    "max_runs": lambda value: _pipeline(max_runs=value),
    "latency_budget": lambda value: _pipeline(latency_budget=value),
    "soft_time_limit": lambda value: _pipeline(soft_time_limit=value),
    "lease": lambda value: LatencyNeutral(lease=value, tick=0.001),
    "tick": lambda value: LatencyNeutral(lease=0, tick=value),
    "delay": lambda value: DelaySinceLastRun([Criterion("$.level", "error", "$.service", value)]),
}
NUMBERS = [pytest.param(one, OF_OPTIONS[name], id=name) for name, one in OPTIONS.items() if name != "RetryAfter"] + [
    pytest.param(one, lambda value, name=name: Settings(**{name: value}), id=name) for name, one in SETTINGS.items()
]


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_as_long_as_it_may_be_and_no_longer(kind: str) -> None:
    longest = "a" * NAMES[kind].longest

    assert CHECKS[kind](longest) == longest
    for refused in ("", longest + "a"):
        with pytest.raises(TaskBridgeError):
            CHECKS[kind](refused)


@pytest.mark.parametrize(("limits", "make"), NUMBERS)
def test_a_number_lies_between_its_limits(limits: Range, make: Callable[[Any], object]) -> None:
    for value in (limits.least, limits.most):
        make(value)
    step = 1 if isinstance(limits.least, int) and isinstance(limits.most, int) else 0.0001
    for value in (limits.least - step, limits.most + step):
        with pytest.raises(TaskBridgeError, match=f"{limits.least:g}.* and {limits.most:.15g}"):
            make(value)
