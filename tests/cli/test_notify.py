"""`taskbridge notify` says that a run is published where it is, and nowhere else."""

from __future__ import annotations

import redis

from taskbridge.gate import Keys
from tests.cli.program import Program


def test_a_run_that_the_broker_does_not_take_is_not_called_published(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    for url, wrong in (
        ("redis://:s3cr3t-Pa55@127.0.0.1:1/0", "the broker cannot be reached (127.0.0.1:1): "),
        ("rabbit://u:s3cr3t-Pa55@h//", "kombu knows no broker whose URL begins with rabbit://: "),
    ):
        ended = taskbridge("notify", "acme", TASKBRIDGE_BROKER_URL=url)
        assert (ended.status, ended.stdout) == (1, "")
        last = ended.stderr.splitlines()[-1]
        assert last.startswith(f"taskbridge: {wrong}")
        assert last.endswith("The event has been counted: workers will publish the run when the broker is back")
        assert "s3cr3t-Pa55" not in ended.stderr
        assert gate_redis.zscore(keys.due("invoices"), "acme") is not None, "its deadline publishes it again"
        gate_redis.flushdb()
