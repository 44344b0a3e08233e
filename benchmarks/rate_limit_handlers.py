"""Declares a pipeline for each answer to a downstream that refuses; only workers of that benchmark load it."""

from __future__ import annotations

import os
from typing import Final

from benchmarks.messages import POLICY
from benchmarks.rate_limit import ADDRESS, ALL_WAIT, LIMITED, RAISES, RATE, TENANT_WAITS, ask, ask_or_wait
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline

_ADDRESS: Final = os.environ[ADDRESS]


@pipeline(TENANT_WAITS, policy=POLICY)
@pipeline(LIMITED, policy=POLICY, rate_limit=f"{RATE} calls/s")
def let_the_tenant_wait(batch: Batch) -> None:  # noqa: ARG001 - a batch is a request
    """Make a request; where it is refused, the tenant waits."""
    ask_or_wait(_ADDRESS, "tenant")


@pipeline(ALL_WAIT, policy=POLICY)
def let_all_wait(batch: Batch) -> None:  # noqa: ARG001 - a batch is a request
    """Make a request; where it is refused, the whole pipeline waits."""
    ask_or_wait(_ADDRESS, "pipeline")


@pipeline(RAISES, policy=POLICY)
def give_up(batch: Batch) -> None:  # noqa: ARG001 - a batch is a request
    """Make a request; where it is refused, fail."""
    ask(_ADDRESS)
