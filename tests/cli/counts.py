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
