"""What each strategy and each peer does with events: which of them publish a job, and what that job takes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from benchmarks.peers import CeleryOnce, CelerySingleton, LateAck
from benchmarks.strategies import Debounce, FixedWindow, OneJobPerEvent, QueueDepth, SleepingLoop
from benchmarks.workplace import Strategy, Workplace
from taskbridge.embedded import Servers


class Desk:
    """A workplace whose handler notes the records of each call, and then does what a test says."""

    def __init__(self, queue: str, servers: Servers, postgres_url: str) -> None:
        self.place = Workplace(queue, servers.redis_url, postgres_url, self._handle)
        self.place.make_table()
        self.tenant = f"tenant-{queue}"
        self.calls: list[list[int]] = []
        self.during: Callable[[], None] = lambda: None
        self._number = 0

    def event(self, strategy: Strategy) -> tuple[int, int]:
        """Commit a record and send its event; return its id and how many jobs that published."""
        self._number += 1
        record = self.place.add(self.tenant, {"number": self._number})
        return record, strategy.event(self.tenant, record)

    def run(self, job: str, *arguments: Any) -> None:
        """Run a job to its end, as a worker does."""
        self.place.app.tasks[job].apply((self.tenant, *arguments), throw=True)

    def _handle(self, _: redis.Redis, tenant: str, documents: Sequence[Any]) -> None:
        assert tenant == self.tenant
        self.calls.append([document["number"] for document in documents])
        during, self.during = self.during, lambda: None
        during()


@pytest.fixture
def desk(servers: Servers, postgres_url: str) -> Iterator[Desk]:
    queue = f"bench-{secrets.token_hex(6)}"
    own = Desk(queue, servers, postgres_url)
    yield own
    client = own.place.redis
    client.delete(queue, f"_kombu.binding.{queue}", f"bench-ended:{queue}", *client.scan_iter(f"*{own.tenant}*"))
    own.place.close()


@pytest.mark.parametrize(("strategy", "job"), [(OneJobPerEvent, "each"), (LateAck, "late-ack")])
def test_each_event_publishes_a_job_that_takes_its_record(
    desk: Desk, strategy: Callable[[Workplace], Strategy], job: str
) -> None:
    used = strategy(desk.place)
    events = [desk.event(used) for _ in range(2)]
    assert [published for _, published in events] == [1, 1]
    desk.run(job, events[1][0])
    assert desk.calls == [[2]]
    desk.run(job, events[0][0])
    assert desk.calls == [[2], [1]]
    assert desk.place.pending() == 0


def test_of_a_debounce_only_the_job_of_the_last_event_takes_the_records(desk: Desk) -> None:
    debounce = Debounce(desk.place)
    assert [desk.event(debounce)[1] for _ in range(2)] == [1, 1]
    desk.run("debounce", 1)
    assert desk.calls == []
    desk.run("debounce", 2)
    assert desk.calls == [[1, 2]]
    assert desk.place.ended() == [[], [2]]


def test_the_first_event_of_a_window_publishes_the_job_for_all(desk: Desk) -> None:
    window = FixedWindow(desk.place)
    assert [desk.event(window)[1] for _ in range(3)] == [1, 0, 0]
    desk.run("window")
    assert desk.calls == [[1, 2, 3]]


def test_a_job_sweeps_only_while_more_than_one_waits_behind_it(desk: Desk) -> None:
    depth = QueueDepth(desk.place)
    first, second, third = (desk.event(depth)[0] for _ in range(3))
    desk.place.redis.ltrim(desk.place.queue, 0, 0)  # one job waits
    desk.run("depth", first)
    assert desk.calls == [[1]]
    assert desk.event(depth)[1] == 1
    desk.run("depth", second)
    assert desk.calls == [[1], [2, 3, 4]]
    desk.run("depth", third)
    assert desk.place.ended() == [[1], [3], [0]]


def test_the_loop_absorbs_what_comes_while_the_lease_lives(desk: Desk) -> None:
    loop = SleepingLoop(desk.place)

    def second_event() -> None:
        assert desk.event(loop)[1] == 0
        desk.during = end_of_lease

    def end_of_lease() -> None:
        desk.place.redis.delete(f"loop-dirty:{desk.tenant}")

    desk.during = second_event
    assert desk.event(loop)[1] == 1
    desk.run("loop")
    assert desk.calls == [[1], [2]]
    assert desk.place.pending() == 0
    assert desk.event(loop)[1] == 1


def test_the_loop_loses_what_comes_during_a_call_that_outlasts_the_lease(desk: Desk) -> None:
    loop = SleepingLoop(desk.place)

    def second_event() -> None:
        assert desk.event(loop)[1] == 0
        desk.place.redis.pexpire(f"loop-dirty:{desk.tenant}", 0)  # the call goes on for longer than the lease

    desk.during = second_event
    desk.event(loop)
    desk.run("loop")
    assert desk.calls == [[1]]
    assert desk.place.pending() == 1
    assert not list(desk.place.redis.scan_iter(f"loop-*:{desk.tenant}"))


@pytest.mark.parametrize(("peer", "job"), [(CeleryOnce, "once"), (CelerySingleton, "singleton")])
def test_a_peer_drops_what_comes_during_its_job(desk: Desk, peer: Callable[[Workplace], Strategy], job: str) -> None:
    used = peer(desk.place)

    def second_event() -> None:
        assert desk.event(used)[1] == 0

    desk.during = second_event
    assert desk.event(used)[1] == 1
    desk.run(job)
    assert desk.calls == [[1]]
    assert desk.place.pending() == 1
    assert desk.place.redis.llen(desk.place.queue) == 1, "only the first event published"
    assert desk.event(used)[1] == 1, "the job's end took the lock away"
    desk.run(job)
    assert desk.calls == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("peer", "job", "pattern", "least", "most"),
    [(CeleryOnce, "once", "qo_once*", 3590, 3600), (CelerySingleton, "singleton", "SINGLETONLOCK_*", -1, -1)],
    ids=["celery-once: an hour", "celery-singleton: no end"],
)
def test_a_peers_lock_outlives_a_worker_that_dies(
    desk: Desk, peer: Callable[[Workplace], Strategy], job: str, pattern: str, least: int, most: int
) -> None:
    used = peer(desk.place)
    before = set(desk.place.redis.scan_iter(pattern))
    desk.event(used)
    (lock,) = set(desk.place.redis.scan_iter(pattern)) - before
    ttl = desk.place.redis.ttl(lock)
    assert isinstance(ttl, int)
    assert least <= ttl <= most
    desk.run(job)


class OwnLock:
    """A lock of one's own: each event publishes a job, which does nothing while another holds its tenant's lock."""

    def __init__(self, place: Workplace) -> None:
        self._job = place.job("own-lock", self._work)
        self._place = place

    def event(self, tenant: str, record: int) -> int:  # noqa: ARG002 - the job sweeps the tenant
        self._job.delay(tenant)
        return 1

    def _work(self, tenant: str) -> list[int]:
        lock = f"own-lock:{tenant}"
        if not self._place.redis.set(lock, "held", nx=True, ex=60):
            return []
        try:
            return [self._place.sweep(tenant)]
        finally:
            self._place.redis.delete(lock)


def test_a_job_that_finds_an_own_lock_drops_its_event(desk: Desk) -> None:
    own = OwnLock(desk.place)

    def second_event() -> None:
        desk.event(own)
        desk.run("own-lock")  # another worker takes it

    desk.during = second_event
    desk.event(own)
    desk.run("own-lock")
    assert desk.calls == [[1]]
    assert desk.place.ended() == [[], [1]]
    assert desk.place.pending() == 1


def test_an_own_lock_that_a_dead_worker_left_drops_every_event_until_it_expires(desk: Desk) -> None:
    own = OwnLock(desk.place)
    lock = f"own-lock:{desk.tenant}"

    desk.place.redis.set(lock, "held", nx=True, ex=60)  # as its job did before SIGKILL
    for _ in range(2):
        desk.event(own)
        desk.run("own-lock")
    desk.place.redis.pexpire(lock, 0)
    assert desk.calls == []
    assert desk.place.pending() == 2


def test_an_own_lock_is_released_by_a_job_that_holds_it_no_longer(desk: Desk) -> None:
    own = OwnLock(desk.place)
    lock = f"own-lock:{desk.tenant}"

    def outlast_the_lock() -> None:
        desk.place.redis.pexpire(lock, 0)
        assert desk.place.redis.set(lock, "another worker's", nx=True)

    desk.during = outlast_the_lock
    desk.event(own)
    desk.run("own-lock")
    assert not desk.place.redis.exists(lock)


@pytest.mark.parametrize(
    ("peer", "job", "pattern"),
    [(CeleryOnce, "once", "qo_once*"), (CelerySingleton, "singleton", "SINGLETONLOCK_*")],
)
def test_a_peers_lock_is_released_by_a_job_that_holds_it_no_longer(
    desk: Desk, peer: Callable[[Workplace], Strategy], job: str, pattern: str
) -> None:
    used = peer(desk.place)
    before = set(desk.place.redis.scan_iter(pattern))

    def outlast_the_lock() -> None:
        (lock,) = set(desk.place.redis.scan_iter(pattern)) - before
        desk.place.redis.pexpire(lock, 0)
        assert desk.event(used)[1] == 1, "another job has the lock now"

    desk.during = outlast_the_lock
    desk.event(used)
    desk.run(job)
    assert set(desk.place.redis.scan_iter(pattern)) == before
    assert desk.event(used)[1] == 1, "a third job, while the second one waits"


def test_unlock_before_run_takes_the_last_event_in_a_job_beside_the_first(desk: Desk) -> None:
    once = CeleryOnce(desk.place)
    job: Any = desk.place.app.tasks["once"]
    job.once = {"graceful": True, "unlock_before_run": True}

    def second_event() -> None:
        assert desk.event(once)[1] == 1
        desk.run("once")  # another worker takes it, while the first call goes on

    desk.during = second_event
    desk.event(once)
    desk.run("once")
    assert desk.calls == [[1], [2]]
    assert desk.place.ended() == [[1], [1]]
    assert desk.place.pending() == 0


def test_a_debounce_takes_nothing_while_events_keep_coming(desk: Desk) -> None:
    debounce = Debounce(desk.place)
    desk.event(debounce)
    for number in range(1, 10):
        desk.event(debounce)
        desk.run("debounce", number)
    assert desk.calls == []
    assert desk.place.pending() == 10
