"""Usual ways to handle bursts with Celery, each as short as it can be written well.

`celery -A benchmarks.strategies worker` serves them all. They read and flag the records of one table in the same
way; what differs is which job reads when.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, cast

from benchmarks.calls import take_as_told
from benchmarks.workplace import Handler, Strategy, Workplace, served

__all__ = [
    "Debounce",
    "FixedWindow",
    "OneJobPerEvent",
    "QueueDepth",
    "SleepingLoop",
    "open_workplace",
]

WAIT: Final = 0.5
LEASE_MS: Final = 1200
TICK: Final = 0.2
KEYS_LIVE: Final = 3600


class OneJobPerEvent:
    """A job per event, which takes that event's record."""

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("each", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:
        """Publish a job."""
        self._job.delay(tenant, record)
        return 1

    def _work(self, tenant: str, record: int) -> list[int]:  # noqa: ARG002 - a job says whose it is
        return [self._place.take(record)]


class Debounce:
    """Trailing: each event publishes a job that waits for 500 ms; it sweeps if no event came after its own."""

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("debounce", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        """Count the event, and publish a job that knows the count."""
        with self._place.redis.pipeline() as pipe:
            pipe.incr(f"debounce:{tenant}")
            pipe.expire(f"debounce:{tenant}", KEYS_LIVE)
            count, _ = pipe.execute()
        self._job.apply_async((tenant, count), countdown=WAIT)
        return 1

    def _work(self, tenant: str, count: int) -> list[int]:
        if int(cast("str", self._place.redis.get(f"debounce:{tenant}") or 0)) != count:
            return []
        return [self._place.sweep(tenant)]


class FixedWindow:
    """The first event opens a window of 500 ms and publishes a job for its end; the others find it open.

    The window's key expires before the job may start, so that no event finds it open whose record the job misses.
    """

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("window", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        """Publish a job if no window is open."""
        if not self._place.redis.set(f"window:{tenant}", "1", nx=True, px=round(WAIT * 1000)):
            return 0
        self._job.apply_async((tenant,), countdown=WAIT)
        return 1

    def _work(self, tenant: str) -> list[int]:
        return [self._place.sweep(tenant)]


class QueueDepth:
    """A job per event, which sweeps its tenant if more than one job waits in the queue, else takes its own record."""

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("depth", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:
        """Publish a job."""
        self._job.delay(tenant, record)
        return 1

    def _work(self, tenant: str, record: int) -> list[int]:
        depth = self._place.redis.llen(self._place.queue)
        return [self._place.sweep(tenant) if depth > 1 else self._place.take(record, contended=True)]


class SleepingLoop:
    """The published loop taken literally: a lease that each event renews, one job per tenant, a loop in its slot.

    The job's identity is a key that lasts from its publication to its end; while it is there, events publish nothing.
    The loop sweeps, and sleeps for a tick while the lease lives.
    """

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("loop", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        """Renew the lease, and publish the job if there is none."""
        self._place.redis.set(f"loop-dirty:{tenant}", "1", px=LEASE_MS)
        if not self._place.redis.set(f"loop-runner:{tenant}", "1", nx=True):
            return 0
        self._job.delay(tenant)
        return 1

    def _work(self, tenant: str) -> list[int]:
        found = [self._place.sweep(tenant)]
        while self._place.redis.exists(f"loop-dirty:{tenant}"):
            time.sleep(TICK)
            found.append(self._place.sweep(tenant))
        self._place.redis.delete(f"loop-runner:{tenant}")
        return found


def open_workplace(
    redis_url: str, postgres_url: str, handler: Handler = take_as_told
) -> tuple[Workplace, Mapping[str, Strategy]]:
    """Return a workplace, and the strategies by name."""
    place = Workplace("strategies", redis_url, postgres_url, handler)
    return place, {
        "one job per event": OneJobPerEvent(place),
        "debounce 500 ms": Debounce(place),
        "fixed window 500 ms": FixedWindow(place),
        "queue depth": QueueDepth(place),
        "the published loop": SleepingLoop(place),
    }


app: Final = served(open_workplace)
"""What a worker loads."""
