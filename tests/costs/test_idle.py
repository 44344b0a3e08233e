"""A worker that has nothing to do."""

from __future__ import annotations

import time

import pytest

from tests.deployment import Deployment
from tests.waiting import wait_until


@pytest.mark.e2e
@pytest.mark.slow
def test_a_worker_without_work_keeps_its_connections(deployment: Deployment) -> None:
    def opened() -> int:
        return int(deployment.redis.info("stats")["total_connections_received"])

    def opens_none() -> bool:
        before = opened()
        time.sleep(3.0)
        return opened() == before

    with deployment.worker():
        wait_until(opens_none, "no connection in three seconds", 12.0)
