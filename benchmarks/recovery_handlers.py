"""What the workers of the benchmark `recovery` do with a batch, ours and those of the others."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import redis

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline

__all__ = ["PIPELINE", "Call", "calls", "hang_once"]

PIPELINE: Final = "recovery"
CALLS: Final = "bench-calls"
LONGER_THAN_ANY_CAP: Final = 7_200


class Call(NamedTuple):
    """A handler's call at the time `started`, in the worker whose process group is `group`."""

    tenant: str
    numbers: Sequence[str]
    started: float
    group: int


def hang_once(client: redis.Redis, tenant: str, numbers: Sequence[str]) -> None:
    """Note the call; a tenant's first call does not return."""
    client.rpush(CALLS, json.dumps(Call(tenant, numbers, time.time(), os.getpgrp())))
    if client.set(f"bench-hung:{tenant}", "1", nx=True):
        time.sleep(LONGER_THAN_ANY_CAP)


def calls(client: redis.Redis) -> list[Call]:
    """Return all calls so far."""
    return [Call(*json.loads(text)) for text in cast("list[str]", client.lrange(CALLS, 0, -1))]


@pipeline(PIPELINE)
def handle(batch: Batch) -> None:
    """Take the batch as the others take theirs."""
    with redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"]) as client:
        hang_once(client, batch.tenant, [record.document["number"] for record in batch])
