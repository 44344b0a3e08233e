"""What the compared strategies work with: a Celery app, Redis, and a table of records with a flag each."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, cast

import redis
from celery import Celery, Task
from kombu import Exchange
from kombu import Queue as KombuQueue
from sqlalchemy import Connection, Engine

from taskbridge.store import connect

__all__ = ["Handler", "Strategy", "Workplace", "served"]

Handler = Callable[[redis.Redis, str, Sequence[Any]], None]
"""Takes a client of Redis, a tenant, and the documents of the tenant's records."""


class Strategy(Protocol):
    """How events become jobs."""

    def event(self, tenant: str, record: int) -> int:
        """Do what a producer does once `record` is committed; return how many jobs that published."""


class Workplace:
    """One process's connections, made when they are first used, and so not before a worker forks.

    Jobs are early-acknowledged, without results, and reserved one per slot, as those of TaskBridge.
    """

    def __init__(self, queue: str, redis_url: str, postgres_url: str, handler: Handler) -> None:
        self.queue: Final = queue
        self._ended: Final = f"bench-ended:{queue}"
        self._redis_url = redis_url
        self._postgres_url = postgres_url
        self._handler = handler
        self.app: Final = Celery(f"benchmarks.{queue}", broker=redis_url, set_as_current=False)
        self.app.conf.update(
            broker_connection_retry_on_startup=True,
            task_default_queue=queue,
            task_queues=(KombuQueue(queue, Exchange(queue), routing_key=queue),),
            task_ignore_result=True,
            worker_prefetch_multiplier=1,
        )

    def close(self) -> None:
        """Close the connections."""
        self.app.close()
        self.redis.close()
        self.engine.dispose()

    @cached_property
    def redis(self) -> redis.Redis:
        """A client of the broker's Redis."""
        return redis.Redis.from_url(self._redis_url, decode_responses=True)

    @cached_property
    def engine(self) -> Engine:
        """A pool of connections to Postgres."""
        return connect(self._postgres_url)

    def job(self, name: str, work: Callable[..., list[int]], **options: Any) -> Task[Any, Any]:
        """Return a Celery task that does `work`, and notes at its end what the sweeps found that `work` returns."""

        @self.app.task(name=name, shared=False, **options)
        @functools.wraps(work)
        def run(*arguments: Any) -> None:
            self.redis.rpush(self._ended, json.dumps(work(*arguments)))

        return cast("Task[Any, Any]", run)

    def ended(self) -> list[list[int]]:
        """Return, for each job that ended since `forget_ended`, how many records each of its sweeps found."""
        return [json.loads(text) for text in cast("list[str]", self.redis.lrange(self._ended, 0, -1))]

    def forget_ended(self) -> None:
        """Drop the notes of jobs that ended."""
        self.redis.delete(self._ended)

    def make_table(self) -> None:
        """Make the table of records."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE bench_rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text NOT NULL, "
                "document jsonb NOT NULL, handled boolean NOT NULL DEFAULT false)"
            )
            connection.exec_driver_sql("CREATE INDEX ON bench_rows (tenant, id) WHERE NOT handled")

    def add(self, tenant: str, document: Any) -> int:
        """Commit a record; return its id."""
        with self.engine.begin() as connection:
            text = "INSERT INTO bench_rows (tenant, document) VALUES (%s, %s::jsonb) RETURNING id"
            return int(connection.exec_driver_sql(text, (tenant, json.dumps(document))).scalar_one())

    def pending(self) -> int:
        """Return how many records nobody handled."""
        with self.engine.connect() as connection:
            text = "SELECT count(*) FROM bench_rows WHERE NOT handled"
            return int(connection.exec_driver_sql(text).scalar_one())

    def take(self, record: int, *, contended: bool = False) -> int:
        """Hand one record over and flag it; return 1, or 0 where it is flagged already.

        Where it is `contended`, also 0 if another job works on it.
        """
        with self.engine.begin() as connection:
            text = "SELECT id, tenant, document FROM bench_rows WHERE id = %s AND NOT handled"
            text += " FOR UPDATE SKIP LOCKED" if contended else ""
            return self._deliver(connection, connection.exec_driver_sql(text, (record,)).all())

    def sweep(self, tenant: str) -> int:
        """Hand the tenant's pending records over in one call, but those that another job works on, and flag them.

        Returns how many there were; without any the handler is not called.
        """
        with self.engine.begin() as connection:
            text = (
                "SELECT id, tenant, document FROM bench_rows WHERE tenant = %s AND NOT handled ORDER BY id "
                "FOR UPDATE SKIP LOCKED"
            )
            return self._deliver(connection, connection.exec_driver_sql(text, (tenant,)).all())

    def _deliver(self, connection: Connection, rows: Sequence[Any]) -> int:
        if rows:
            self._handler(self.redis, rows[0].tenant, [row.document for row in rows])
            text = "UPDATE bench_rows SET handled = true WHERE id = ANY(%s)"
            connection.exec_driver_sql(text, ([row.id for row in rows],))
        return len(rows)


def served(open_workplace: Callable[[str, str], tuple[Workplace, object]]) -> Celery:
    """Return the app of a workplace on the servers that the environment names; a worker loads it."""
    place, _ = open_workplace(os.environ.get("TASKBRIDGE_REDIS_URL", ""), os.environ.get("TASKBRIDGE_POSTGRES_URL", ""))
    return place.app
