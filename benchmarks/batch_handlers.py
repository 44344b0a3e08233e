"""Declares a pipeline for each cost of a handler; only workers of the benchmark of batches load it."""

from __future__ import annotations

import os
from typing import Final

import redis

from benchmarks.batches import BATCH_SIZE, COSTS, Cost, take
from benchmarks.messages import POLICY
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, pipeline

_REDIS: Final = redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"], decode_responses=True)


def handler_of(cost: Cost) -> Handler:
    """Return a handler that takes as long."""

    def handle(batch: Batch) -> None:
        take(_REDIS, cost, len(batch))

    return handle


for one in COSTS:
    pipeline(one.pipeline, policy=POLICY, batch_size=BATCH_SIZE)(handler_of(one))
