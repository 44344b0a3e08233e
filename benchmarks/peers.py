"""What others publish for one job per key on Celery, at their defaults, and plain Celery with late acknowledgement.

`celery -A benchmarks.peers worker` serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import celery_once.backends.redis as once_redis
from celery.utils import uuid
from celery_once import QueueOnce
from celery_singleton import Singleton, backends

from benchmarks.calls import hang_once
from benchmarks.workplace import Handler, Strategy, Workplace, served

__all__ = ["CeleryOnce", "CelerySingleton", "LateAck", "open_workplace"]


class CeleryOnce:
    """celery-once: an event publishes a job that sweeps its tenant, unless one is locked.

    `graceful`, so that an event that finds the lock is no error; all else by default, so the lock lasts for an hour.
    """

    def __init__(self, place: Workplace) -> None:
        # The package keeps one client per process, whatever its settings say later.
        once_redis.redis = None
        place.app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": place.app.conf.broker_url}}
        self._job = place.job("once", self._work, base=QueueOnce, once={"graceful": True})
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        """Publish a job unless it is locked."""
        return int(self._job.delay(tenant).id is not None)

    def _work(self, tenant: str) -> list[int]:
        return [self._place.sweep(tenant)]


class CelerySingleton:
    """celery-singleton, by default: an event publishes a job that sweeps its tenant, unless one is locked."""

    def __init__(self, place: Workplace) -> None:
        # It keeps the connection of the first app of a process for all that follow.
        backends._backend = None
        self._job = place.job("singleton", self._work, base=Singleton)
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        """Publish a job unless it is locked; then the answer is the locked one's."""
        chosen = uuid()
        return int(self._job.apply_async((tenant,), task_id=chosen).id == chosen)

    def _work(self, tenant: str) -> list[int]:
        return [self._place.sweep(tenant)]


class LateAck:
    """Plain Celery: a job per event, which takes its record and is acknowledged when it is done.

    Redis gives a job that was not acknowledged to another worker after the visibility timeout, an hour by default.
    """

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("late-ack", self._work, acks_late=True)
        self._place = place

    def event(self, tenant: str, record: int) -> int:
        """Publish a job."""
        self._job.delay(tenant, record)
        return 1

    def _work(self, tenant: str, record: int) -> list[int]:  # noqa: ARG002 - a job says whose it is
        return [self._place.take(record)]


def open_workplace(
    redis_url: str, postgres_url: str, handler: Handler = hang_once
) -> tuple[Workplace, Mapping[str, Strategy]]:
    """Return a workplace, and the peers by name."""
    place = Workplace("peers", redis_url, postgres_url, handler)
    return place, {
        "celery-once": CeleryOnce(place),
        "celery-singleton": CelerySingleton(place),
        "Celery, acks_late": LateAck(place),
    }


app: Final = served(open_workplace)
"""What a worker loads."""
