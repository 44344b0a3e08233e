"""Declares the pipeline that the benchmark of patterns compares with them; only its worker loads it."""

from __future__ import annotations

import os
from typing import Final

import redis

from benchmarks.calls import take_as_told
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import INVOICES, pipeline

_REDIS: Final = redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"], decode_responses=True)


@pipeline(INVOICES)
def handle(batch: Batch) -> None:
    """Take the batch as the strategies do theirs."""
    take_as_told(_REDIS, batch.tenant, [record.document for record in batch])
