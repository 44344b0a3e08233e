"""What a command left in Postgres and in Redis."""

from __future__ import annotations

from typing import Any

import redis
from sqlalchemy import Engine


def count(engine: Engine, statement: str = "SELECT count(*) FROM taskbridge.records") -> int:
    with engine.connect() as connection:
        number: int = connection.exec_driver_sql(statement).scalar_one()
    return number


def events(client: redis.Redis, prefix: str) -> int:
    """How many events the gate holds in the hashes of its runners."""
    values: list[Any] = [client.hget(key, "events") for key in client.scan_iter(f"{prefix}:runner:*")]
    return sum(map(int, values))


# A circuit that never opened, as `status --json` shows it.
CLOSED = {
    "open": False,
    "opened": 0,
    "opened_at": None,
    "closed_at": None,
    "failed_probes": 0,
    "tenants_in_line": 0,
}

TOTALS = {
    "runners": 0,
    "pending": None,
    "oldest_seconds": None,
    "oldest_tenant": None,
    "quarantined": 0,
    "failing": 0,
    "fails": None,
    "unseen": True,
}
"""The totals of `status` where there is nothing, and no worker has looked."""

NO_WORKER = "no worker has ever looked for its records: start a worker that declares the pipeline"
