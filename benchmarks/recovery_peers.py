"""The baselines of the benchmark `recovery`: celery-once, celery-singleton and plain Celery with late acknowledgement.

`celery -A benchmarks.recovery_peers worker` serves all. Each package has its defaults; their rows are in one table.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import psycopg
import redis
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from benchmarks.recovery_handlers import hang_once

__all__ = ["TABLE", "app", "senders"]

TABLE: Final = """
CREATE TABLE peer_rows (
    tenant text NOT NULL, number text NOT NULL, done boolean NOT NULL DEFAULT false, PRIMARY KEY (tenant, number)
)
"""
_PENDING: Final = "SELECT number FROM peer_rows WHERE tenant = %s AND NOT done AND number LIKE %s"
_DONE: Final = "UPDATE peer_rows SET done = true WHERE tenant = %s AND number = ANY(%s)"
_EVERY: Final = "%"


def _take(tenant: str, which: str) -> None:
    """Hand the tenant's pending rows over in one call, and flag them."""
    url = os.environ["TASKBRIDGE_POSTGRES_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        numbers = [number for (number,) in connection.execute(_PENDING, (tenant, which))]
        if numbers:
            with redis.Redis.from_url(os.environ["TASKBRIDGE_REDIS_URL"]) as client:
                hang_once(client, tenant, numbers)
            connection.execute(_DONE, (tenant, numbers))


def _make_app(broker_url: str) -> tuple[Celery, dict[str, Callable[[str, str], Any]]]:
    made = Celery("recovery_peers", broker=broker_url, set_as_current=False)
    made.conf.update(
        task_default_queue="peers",
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": broker_url}},
    )

    # Without `graceful` an event that finds the lock is an error; the lock lasts for an hour by default.
    @made.task(name="once", shared=False, base=QueueOnce, once={"graceful": True})
    def once(tenant: str) -> None:
        _take(tenant, _EVERY)

    @made.task(name="singleton", shared=False, base=Singleton)
    def singleton(tenant: str) -> None:
        _take(tenant, _EVERY)

    # Redis redelivers a message that was not acknowledged after the visibility timeout, an hour by default.
    @made.task(name="late-ack", shared=False, acks_late=True)
    def late_ack(tenant: str, number: str) -> None:
        _take(tenant, number)

    return made, {
        "celery-once": lambda tenant, _: once.delay(tenant),
        "celery-singleton": lambda tenant, _: singleton.delay(tenant),
        "Celery, acks_late": late_ack.delay,
    }


def senders(broker_url: str) -> dict[str, Callable[[str, str], Any]]:
    """Return by name what publishes the event of a tenant and of its row's number."""
    return _make_app(broker_url)[1]


app, _ = _make_app(os.environ.get("TASKBRIDGE_REDIS_URL", ""))
