"""The pipelines of the tests' workers, in a worker whose thread `TEST_FREEZES` stands still while a key is in Redis."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from taskbridge.observe import metrics_server
from taskbridge.worker.ticker import TickerStep
from tests import pipelines

__all__ = ["pipelines"]

loop = TickerStep._loop
client = redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"])


def loop_that_freezes(self: TickerStep, runtime: Any, name: str, step: Callable[[], float]) -> None:
    """Run the thread, which does not return from its step while it is frozen."""

    def frozen_step() -> float:
        while client.exists("test-freezes"):
            time.sleep(0.05)
        return step()

    is_frozen = threading.current_thread().name == os.environ["TEST_FREEZES"]
    loop(self, runtime, name, frozen_step if is_frozen else step)


metrics_server.STUCK_AFTER = 2.0  # type: ignore[misc]
TickerStep._loop = loop_that_freezes  # type: ignore[method-assign]
