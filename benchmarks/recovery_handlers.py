"""Declares the pipeline of the benchmark of recovery, whose first call of each tenant hangs."""

from __future__ import annotations

import os
from typing import Final

import redis

from benchmarks.calls import hang_once
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import INVOICES, pipeline

_REDIS: Final = redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"], decode_responses=True)


@pipeline(INVOICES)
def handle(batch: Batch) -> None:
    """Take the batch as the peers do theirs."""
    hang_once(_REDIS, batch.tenant, [record.document for record in batch])
