"""The faults: how each is made, which tenants it meets, and the bound within which they go on.

Each fault brings witnesses: tenants of its own that have work when it strikes and get no event afterwards, so nothing
but the project itself helps them.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from taskbridge import LatencyNeutral
from taskbridge.bench.queued import runs_in
from taskbridge.gate import Queue
from taskbridge.settings import Settings
from tests.torture.arena import Arena
from tests.torture.ledger import HandOver
from tests.torture.producer import Invoice, Writer
from tests.torture.schedule import Planned
from tests.torture.workers import Worker
from tests.waiting import wait_until

__all__ = ["FAULTS", "Fault", "Scene", "Struck"]

POLICY: Final = LatencyNeutral()
CIRCUIT_OPENS_FOR: Final = 1.0  # FIRST_WAIT_MS of circuit.lua
QUEUES: Final = [queue.value for queue in Queue]


@dataclass
class Scene:
    """What a fault has to do with."""

    arena: Arena
    writer: Writer
    prefix: str
    """First part of the names of this schedule's tenants."""
    _names: Iterator[int] = field(default_factory=itertools.count)

    def new_tenant(self) -> str:
        return f"{self.prefix}witness{next(self._names)}"

    def some(self, tenant: str, count: int = 6, **behaviour: Any) -> list[Invoice]:
        return [self.writer.invoice(tenant, str(number), behaviour=behaviour) for number in range(count)]

    def working(self, planned: Planned, seconds: float = 0.6) -> str:
        """Return a new tenant in mid-run, with work for `seconds`: its first hand-over began `planned.moment` ago."""
        tenant = self.new_tenant()
        self.writer.commit(*self.some(tenant, round(seconds * 10), seconds=0.1))
        self.writer.notify(tenant, tries=50)
        self.arena.ledger.wait_for(tenant, bool, 2.0)
        time.sleep(planned.moment)
        return tenant

    def orphaned(self) -> str:
        """Return a new tenant whose producer died between commit and notify."""
        tenant = self.new_tenant()
        self.writer.commit(*self.some(tenant))
        return tenant

    def worker_of(self, tenant: str) -> Worker:
        """Return the worker that has the tenant's batch, else any; at least one other is ready."""
        workers = self.arena.workers
        wait_until(lambda: len(workers.ready()) >= 2, "two workers ready", 40)
        ready = workers.ready()
        return next((one for one in ready if one.name == self.arena.ledger.under_way(tenant)), ready[0])


@dataclass(frozen=True)
class Struck:
    """A fault that struck: the moment from which its bound counts, whom it met, and how long it lasted."""

    since: float
    tenants: tuple[str, ...]
    lasted: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One fault. `bound` is seconds, by the settings and how long the fault lasted, without the margin."""

    subject: str
    title: str
    since: str
    formula: str
    bound: Callable[[Settings, float], float]
    strike: Callable[[Scene, Planned], Struck]

    @property
    def opens_circuit(self) -> bool:
        """Whether all handlers fail meanwhile, so that the pipeline's circuit opens."""
        return self.formula == BACKOFF


def _worker_killed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    return Struck(scene.arena.workers.kill(scene.worker_of(tenant), planned.successor), (tenant,))


def _worker_frozen(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    seconds = scene.arena.settings.runner_ttl + 0.3 + planned.part
    return Struck(scene.arena.workers.freeze(scene.worker_of(tenant), seconds), (tenant,))


def _worker_terminated(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    return Struck(scene.arena.workers.terminate(scene.worker_of(tenant), planned.successor), (tenant,))


def _clock_moved(scene: Scene, planned: Planned) -> Struck:
    workers = scene.arena.workers
    wait_until(lambda: len(workers.ready()) >= 2, "two workers ready", 40)
    workers.terminate(workers.ready()[0], planned.successor)
    workers.wait_until_ready(3)
    tenant = scene.working(planned)
    return Struck(time.monotonic(), (tenant,))


def _redis_killed(scene: Scene, planned: Planned, *, saved: float | None) -> Struck:
    """Kill Redis `saved` seconds after its data were saved; None: they were never."""
    server = scene.arena.redis
    working = scene.working(planned)
    server.forget_saved()
    if saved is not None:
        server.client.save()
        time.sleep(saved)
    early = scene.orphaned()
    with scene.arena.down():
        server.strike(signal.SIGKILL)
        late = scene.orphaned()
        time.sleep(0.1 + planned.part)
        server.start()
    return Struck(time.monotonic(), (working, early, late))


def _redis_kept(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=0.0)


def _redis_rewound(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=0.1 + planned.part)


def _redis_lost(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=None)


def _redis_flushed(scene: Scene, planned: Planned) -> Struck:
    tenants = (scene.working(planned), scene.orphaned())
    scene.arena.redis.client.flushall()
    return Struck(time.monotonic(), tenants)


def _scripts_flushed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    scene.arena.redis.client.script_flush()
    return Struck(time.monotonic(), (tenant,))


def _redis_paused(scene: Scene, planned: Planned) -> Struck:
    seconds = 1.0 + planned.part
    tenant = scene.working(planned, seconds + 0.5)
    # The pause ends for all at once: when this is answered it is over.
    scene.arena.redis.client.client_pause(round(seconds * 1000))
    scene.arena.redis.client.ping()
    return Struck(time.monotonic(), (tenant,))


def _clients_killed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    scene.arena.redis.client.client_kill_filter(_type="normal")
    return Struck(time.monotonic(), (tenant,))


def _redis_full(scene: Scene, planned: Planned) -> Struck:
    client = scene.arena.redis.client
    working = scene.working(planned)
    client.config_set("maxmemory", "1mb")
    orphaned = scene.orphaned()
    time.sleep(1.0 + planned.part)
    client.config_set("maxmemory", "0")
    return Struck(time.monotonic(), (working, orphaned))


def _postgres_ended(scene: Scene, planned: Planned, how: signal.Signals) -> Struck:
    tenant = scene.working(planned)
    struck, up = scene.arena.restart_postgres(how, 0.3 + 1.2 * planned.part)
    return Struck(up, (tenant,), up - struck)


def _postgres_fast(scene: Scene, planned: Planned) -> Struck:
    return _postgres_ended(scene, planned, signal.SIGINT)


def _postgres_immediate(scene: Scene, planned: Planned) -> Struck:
    return _postgres_ended(scene, planned, signal.SIGQUIT)


def _sessions_terminated(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned)
    scene.arena.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return Struck(time.monotonic(), (tenant,))


_ONE_CONNECTION: Final[dict[str, Any]] = {"decode_responses": True, "single_connection_client": True}


class _Thieves:
    """Take run messages out of both queues before the workers do, while the `with` block lasts."""

    COUNT = 20  # Redis serves who has waited longest, and a thief that got something waits anew

    def __init__(self, server: redis.Redis, url: str) -> None:
        self.stolen: list[tuple[str, str]] = []
        self._server = server
        self._url = url
        self._ids: list[int] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._steal, daemon=True) for _ in range(self.COUNT)]

    def __enter__(self) -> _Thieves:
        for thread in self._threads:
            thread.start()
        time.sleep(1.1)  # a worker that waits for a message was there first; it asks again once a second
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thief in self._ids:
            with suppress(redis.RedisError):
                self._server.client_unblock(thief)
        for thread in self._threads:
            thread.join()

    def tenants(self) -> list[str]:
        return [tenant for _, message in self.stolen for tenant, _ in runs_in(message)]

    def _steal(self) -> None:
        while not self._done.is_set():
            # Another fault may strike Redis at the same time, also while this connects.
            with suppress(redis.RedisError), redis.Redis.from_url(self._url, **_ONE_CONNECTION) as client:
                self._ids.append(client.client_id())
                while not self._done.is_set():
                    found: Any = client.brpop(QUEUES, timeout=2)
                    self.stolen += [found] if found else []
            self._done.wait(0.05)


def _rob(scene: Scene, seconds: float) -> tuple[_Thieves, float, tuple[str, ...]]:
    """Steal messages, those of two new tenants among them; return when those were sent and which got lost."""
    tenants = (scene.new_tenant(), scene.new_tenant())
    with _Thieves(scene.arena.redis.client, scene.arena.redis.url) as thieves:
        for tenant in tenants:
            scene.writer.commit(*scene.some(tenant))
            scene.writer.notify(tenant, tries=50)
        sent = time.monotonic()
        time.sleep(seconds)
    return thieves, sent, tuple(tenant for tenant in tenants if thieves.tenants().count(tenant) == 1)


def _messages_lost(scene: Scene, planned: Planned) -> Struck:
    _, sent, tenants = _rob(scene, 0.2 + planned.part)
    return Struck(sent, tenants)


def _messages_doubled(scene: Scene, planned: Planned) -> Struck:
    """What was stolen comes late, twice, and once more when the tenant is elsewhere."""
    thieves, sent, tenants = _rob(scene, 0.1)
    for again in range(2):
        for queue, message in thieves.stolen:
            with suppress(redis.RedisError):  # another fault may strike it at the same time
                scene.arena.redis.client.lpush(queue, *[message] * (2 - again))
        time.sleep(2 * planned.part)
    return Struck(sent, tenants)


def _producer_died(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    tenant = scene.orphaned()
    return Struck(time.monotonic(), (tenant,))


def _notified_first(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.new_tenant()
    scene.writer.notify(tenant, tries=50)
    time.sleep(0.05 + planned.part * (POLICY.lease - 0.2))
    committed = scene.writer.commit(*scene.some(tenant))
    return Struck(committed or time.monotonic(), (tenant,))


def _committed_late(scene: Scene, planned: Planned) -> Struck:
    """A transaction stays open while the tenant's other records are handled and its runner ends."""
    tenant, seconds = scene.new_tenant(), 0.3 + planned.part
    late = scene.writer.invoice(tenant, "late")
    writing = threading.Thread(target=scene.writer.commit, args=(late,), kwargs={"hold": seconds})
    writing.start()
    time.sleep(0.1)
    scene.writer.commit(*scene.some(tenant))
    scene.writer.notify(tenant, tries=50)
    writing.join()
    committed = time.monotonic()
    scene.writer.notify(tenant, tries=50)
    return Struck(committed, (tenant,))


def _lease_outlasted(scene: Scene, planned: Planned) -> Struck:
    """Events come while a handler outlasts the lease, in the first run of its burst or in the closing one."""
    tenant = scene.new_tenant()
    slow = scene.some(tenant, count=1, seconds=POLICY.lease + 0.6)
    if planned.part < 0.5:
        scene.writer.commit(*slow)
        scene.writer.notify(tenant, tries=50)
    else:
        scene.writer.notify(tenant, tries=50)
        time.sleep(POLICY.lease / 2)
        scene.writer.commit(*slow)
    scene.arena.ledger.wait_for(tenant, bool, 2.0)
    time.sleep(planned.moment)
    late = [scene.writer.invoice(tenant, f"late{number}") for number in range(3)]
    committed = scene.writer.commit(*late)
    scene.writer.notify(tenant, tries=50)
    scene.arena.ledger.wait_for(tenant, lambda found: any(one.ended for one in found), 10.0)
    ended = min((one.ended for one in scene.arena.ledger.of(tenant) if one.ended), default=time.monotonic())
    return Struck(max(committed or 0.0, ended), (tenant,))


def _handler_failed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.new_tenant()
    error = "connection" if planned.part < 0.5 else "other"
    scene.writer.commit(*scene.some(tenant, count=1, fails=1, error=error))
    scene.writer.notify(tenant, tries=50)
    scene.arena.ledger.wait_for(tenant, bool, 5.0)
    found: list[HandOver] = scene.arena.ledger.of(tenant)
    return Struck(found[0].began + 0.001 if found else time.monotonic(), (tenant,))


def _downstream_down(scene: Scene, planned: Planned) -> Struck:
    """Whatever tenant, the handler cannot reach what it calls."""
    tenants = tuple(scene.new_tenant() for _ in range(3))
    began = time.monotonic()
    with scene.arena.downstream_down():
        for tenant in tenants:
            scene.writer.commit(*scene.some(tenant))
            scene.writer.notify(tenant, tries=50)
        time.sleep(0.5 + planned.part)
    return Struck(time.monotonic(), tenants, time.monotonic() - began)


def _ttl(settings: Settings, _: float) -> float:
    return settings.runner_ttl


def _republish(settings: Settings, _: float) -> float:
    return settings.republish_after


def _reconcile(settings: Settings, _: float) -> float:
    return settings.reconcile_interval


def _either(settings: Settings, _: float) -> float:
    return max(settings.runner_ttl, settings.republish_after)


def _backoff(_: Settings, lasted: float) -> float:
    # Waits double, and each is at least three quarters of its length: the one under way at the end of an outage is at
    # most as long as the outage, over three quarters, and the first one: the circuit's, which is the longer.
    return CIRCUIT_OPENS_FOR + lasted / 0.75


def _lease(_: Settings, __: float) -> float:
    return POLICY.lease


def _tick(_: Settings, __: float) -> float:
    return POLICY.tick


TTL, REPUBLISH, RECONCILE = "runner TTL", "republish_after", "reconcile interval"
EITHER = "runner TTL or republish_after"
BACKOFF = "circuit's first wait + outage / 0.75"

FAULTS: Final[dict[str, Fault]] = {
    "worker_killed": Fault("workers", "SIGKILL of a worker", "the signal", TTL, _ttl, _worker_killed),
    "worker_frozen": Fault(
        "workers", "SIGSTOP of a worker past the TTL, then SIGCONT", "SIGSTOP", TTL, _ttl, _worker_frozen
    ),
    "worker_terminated": Fault("workers", "SIGTERM of a worker", "the signal", EITHER, _either, _worker_terminated),
    "clock_moved": Fault(
        "workers", "a worker with a wrong clock joins", "its readiness", EITHER, _either, _clock_moved
    ),
    "redis_kept": Fault(
        "redis", "SIGKILL of Redis, data kept", "Redis answers again", RECONCILE, _reconcile, _redis_kept
    ),
    "redis_rewound": Fault(
        "redis", "SIGKILL of Redis, older data come back", "Redis answers again", RECONCILE, _reconcile, _redis_rewound
    ),
    "redis_lost": Fault(
        "redis", "SIGKILL of Redis, data lost", "Redis answers again", RECONCILE, _reconcile, _redis_lost
    ),
    "redis_flushed": Fault("redis", "FLUSHALL", "the command", RECONCILE, _reconcile, _redis_flushed),
    "scripts_flushed": Fault("redis", "SCRIPT FLUSH", "the command", TTL, _ttl, _scripts_flushed),
    "redis_paused": Fault("redis", "CLIENT PAUSE", "its end", TTL, _ttl, _redis_paused),
    "clients_killed": Fault("redis", "CLIENT KILL TYPE normal", "the command", EITHER, _either, _clients_killed),
    "redis_full": Fault(
        "redis", "Redis refuses writes (maxmemory)", "writes are taken again", RECONCILE, _reconcile, _redis_full
    ),
    "postgres_fast": Fault(
        "postgres", "Postgres stopped (fast), started", "it answers again", BACKOFF, _backoff, _postgres_fast
    ),
    "postgres_immediate": Fault(
        "postgres", "Postgres stopped (immediate), started", "it answers again", BACKOFF, _backoff, _postgres_immediate
    ),
    "sessions_terminated": Fault(
        "postgres", "all sessions of Postgres terminated", "the command", BACKOFF, _backoff, _sessions_terminated
    ),
    "messages_lost": Fault("messages", "run messages lost", "the notify", REPUBLISH, _republish, _messages_lost),
    "messages_doubled": Fault(
        "messages", "run messages late and doubled", "the notify", REPUBLISH, _republish, _messages_doubled
    ),
    "producer_died": Fault(
        "producer", "a producer dies before it notifies", "the commit", RECONCILE, _reconcile, _producer_died
    ),
    "notified_first": Fault(
        "producer", "a producer notifies before it commits", "the commit", "lease", _lease, _notified_first
    ),
    "committed_late": Fault(
        "producer", "a transaction stays open beside short ones", "its commit", "tick", _tick, _committed_late
    ),
    "lease_outlasted": Fault("handler", "a handler outlasts the lease", "its end", "tick", _tick, _lease_outlasted),
    "handler_failed": Fault(
        "handler", "a handler raises once", "the error", "circuit's first wait", _backoff, _handler_failed
    ),
    "downstream_down": Fault(
        "handler", "what all handlers call is down", "it is up again", BACKOFF, _backoff, _downstream_down
    ),
}
