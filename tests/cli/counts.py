"""What a command finds and leaves in Postgres and in Redis."""

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


def stood(engine: Engine, kind: str, seconds: int) -> None:
    """Let the last round of the pipeline invoices have been so many seconds ago."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.tails (pipeline, kind, snapshot, stored_at) "
            "VALUES ('invoices', %(kind)s, pg_current_snapshot(), now() - %(seconds)s * interval '1 s') "
            "ON CONFLICT (pipeline, kind) DO UPDATE SET stored_at = excluded.stored_at",
            {"kind": kind, "seconds": seconds},
        )
