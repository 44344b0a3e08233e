"""Answers about a deployment whose workers run `tests/pipelines_of_states.py`."""

from __future__ import annotations

from typing import Final

import pytest

from taskbridge import LatencyNeutral, RateLimit
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.declaring.policy import NO_LIMITS, Limits
from taskbridge.handlers.journal import journal
from taskbridge.observe.context import Context
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment

PIPELINES: Final = {
    name: Pipeline(
        name,
        journal,
        LatencyNeutral(),
        100,
        max_runs=1 if name == "narrow" else 0,
        rate_limit=Limits(RateLimit("1/m", burst=1)) if name == "calls" else NO_LIMITS,
    )
    for name in ("broken", "calls", "narrow", "orders", "slow")
}
"""As many as the module declares, without its handler: who asks does not handle."""


@pytest.fixture
def context(deployment: Deployment) -> Context:
    return Context(deployment.engine, runtime_of(deployment.app).gate, PIPELINES, deployment.settings)
