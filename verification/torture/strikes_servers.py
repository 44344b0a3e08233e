"""Faults of workers, Redis and Postgres: how each is made."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import psutil

from taskbridge.declaring.failures import FIRST_BACKOFF
from tests.waiting import wait_until
from verification.torture.acts import SOFT_TIME_LIMIT
from verification.torture.kinds import INVOICES
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import Planned
from verification.torture.sentinel import RedisBehindSentinel
from verification.torture.servers import RedisHere
from verification.torture.strikes_work import record_acts

HOUR: Final = 3600
NOT_HEARD_WITHIN: Final = 40.0
"""Seconds after which a worker that begins no delivery is given up."""
STILL_TAKES: Final = 3.0
"""Seconds in which a slot may go on with runs that it takes along, whether or not the worker gets messages."""
REPLIES_WITHIN: Final = 1.0
"""Seconds in which replies get lost."""
LONGEST_ABSENCE: Final = 4.0
"""Seconds for which PgBouncer is away at the most: longer than an arena's statements wait for an answer."""


def worker_killed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned.moment)
    return Struck(scene.arena.workers.kill(scene.worker_of(tenant), planned.successor), (tenant,))


def worker_frozen(scene: Scene, planned: Planned) -> Struck:
    """Freeze it in mid-batch for longer than its successor may wait, half of the times with a lock that this needs."""
    tenant = scene.working(planned.moment, totals=planned.part < 0.5)
    seconds = scene.arena.settings.runner_ttl * (2 + planned.part)
    return Struck(scene.arena.workers.freeze(scene.worker_of(tenant), seconds), (tenant,))


def worker_terminated(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned.moment)
    return Struck(scene.arena.workers.terminate(scene.worker_of(tenant), planned.successor), (tenant,))


def worker_joins(scene: Scene, planned: Planned) -> Struck:
    """Let a worker be replaced by one of the planned kind."""
    workers = scene.arena.workers
    wait_until(lambda: len(workers.ready()) >= 2, "two workers ready", 40)
    workers.terminate(workers.ready()[0], planned.successor)
    workers.wait_until_ready(3)
    tenant = scene.working(planned.moment)
    return Struck(time.monotonic(), (tenant,))


def _redis_killed(scene: Scene, planned: Planned, *, saved: float | None) -> Struck:
    """Kill Redis `saved` seconds after its data were saved; None: they were never."""
    server = scene.arena.redis
    assert isinstance(server, RedisHere)
    working = scene.working(planned.moment)
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


def redis_kept(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=0.0)


def redis_rewound(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=0.1 + planned.part)


def redis_lost(scene: Scene, planned: Planned) -> Struck:
    return _redis_killed(scene, planned, saved=None)


def redis_flushed(scene: Scene, planned: Planned) -> Struck:
    tenants = (scene.working(planned.moment), scene.orphaned())
    scene.arena.redis.client.flushall()
    return Struck(time.monotonic(), tenants)


def scripts_flushed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned.moment)
    scene.arena.redis.client.script_flush()
    return Struck(time.monotonic(), (tenant,))


def redis_paused(scene: Scene, planned: Planned) -> Struck:
    seconds = 1.0 + planned.part
    tenant = scene.working(planned.moment, seconds + 0.5)
    # The pause ends for all at once: when this is answered it is over.
    scene.arena.redis.client.client_pause(round(seconds * 1000))
    scene.arena.redis.client.ping()
    return Struck(time.monotonic(), (tenant,))


def clients_killed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned.moment)
    scene.arena.redis.client.client_kill_filter(_type="normal")
    return Struck(time.monotonic(), (tenant,))


def _writes_refused(scene: Scene, planned: Planned, setting: str, value: str, seconds: float) -> Struck:
    """Let Redis refuse all writes for a while. No worker may end by that."""
    client = scene.arena.redis.client
    working = scene.working(planned.moment)
    before = str(client.config_get(setting)[setting])
    client.config_set(setting, value)
    orphaned = scene.orphaned()
    time.sleep(seconds + planned.part)
    client.config_set(setting, before)
    return Struck(time.monotonic(), (working, orphaned))


def redis_full(scene: Scene, planned: Planned) -> Struck:
    return _writes_refused(scene, planned, "maxmemory", "1mb", 1.0)


def redis_alone(scene: Scene, planned: Planned) -> Struck:
    """Let Redis want a replica before it takes writes, for seconds."""
    return _writes_refused(scene, planned, "min-replicas-to-write", "1", 2.0)


def connections_silent(scene: Scene, planned: Planned) -> Struck:
    """Let one worker's connections to Redis fall silent; new ones pass. Measured is when it begins a delivery again."""
    workers = scene.arena.workers
    working = scene.working(planned.moment)
    wait_until(lambda: workers.behind_proxy().is_ready, "the worker behind the proxy ready", 40)
    scene.arena.to_worker.fall_silent()
    struck, heard = time.monotonic(), False
    while not heard and time.monotonic() < struck + NOT_HEARD_WITHIN:
        scene.busy(1, seconds=0.1)
        time.sleep(0.2)
        name = workers.behind_proxy().name  # another one, where it was struck down meanwhile
        found = scene.arena.ledger.between(struck, time.monotonic())
        heard = any(one.worker == name and one.began > struck + STILL_TAKES for one in found)
    return Struck(struck, (working,), took=time.monotonic() - struck)


def replies_lost(scene: Scene, planned: Planned) -> Struck:
    """Lose replies of scripts that are about some tenants: those of their producers, or those of one worker's runs."""
    tenants = tuple(scene.new_tenant() for _ in range(6))
    of_producers = planned.part < 0.3
    proxy = scene.arena.to_producers if of_producers else scene.arena.to_worker
    for tenant in tenants:
        scene.writer.commit(*scene.some(tenant, 3, seconds=0.05))
    with proxy.losing_replies(1 + int(planned.part * 1000) % 4, tenants):
        for tenant in tenants:
            scene.writer.notify(tenant, tries=50)
        deadline = time.monotonic() + REPLIES_WITHIN
        while proxy.left_to_lose and time.monotonic() < deadline:
            time.sleep(0.02)
    return Struck(time.monotonic(), tenants)


def hard_limit(scene: Scene, planned: Planned) -> Struck:
    """Let a worker with a hard time limit join, and a record outlast it wherever it is handled by that worker."""
    joined = worker_joins(scene, planned)
    struck = record_acts("outlasts_limit")(scene, planned)

    def undo() -> None:
        workers = scene.arena.workers
        for one in workers.ready():
            if one.kind.hard_limit is not None:
                workers.terminate(one, replace(one.kind, hard_limit=None))

    return replace(struck, tenants=(*joined.tenants, *struck.tenants), undo=undo)


def _postgres_ended(scene: Scene, planned: Planned, how: signal.Signals) -> Struck:
    tenant = scene.working(planned.moment)
    struck, up = scene.arena.restart_postgres(how, 0.3 + 1.2 * planned.part)
    return Struck(up, (tenant,), up - struck)


def postgres_fast(scene: Scene, planned: Planned) -> Struck:
    return _postgres_ended(scene, planned, signal.SIGINT)


def postgres_immediate(scene: Scene, planned: Planned) -> Struck:
    return _postgres_ended(scene, planned, signal.SIGQUIT)


def sessions_terminated(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.working(planned.moment)
    scene.arena.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return Struck(time.monotonic(), (tenant,))


def session_silent(scene: Scene, planned: Planned) -> Struck:
    """Stop the session of a batch that is in its handler, then let it go on or kill it."""
    arena = scene.arena
    tenant = scene.working(planned.moment, totals=True)
    found = arena.ledger.of(tenant)
    had = [one for one in found if one.session]
    sessions = [one.session for one in had if one.ended is None] or [one.session for one in had]
    struck, end = time.monotonic(), _silence(scene, sessions[-1:], killed=planned.part < 0.5)
    time.sleep(1.0 + planned.part)
    end()
    return Struck(time.monotonic(), (tenant,), time.monotonic() - struck)


def sessions_silent(scene: Scene, planned: Planned) -> Struck:
    """Stop the sessions of one process, between their transactions: its next claims and reads get no answer."""
    tenant = scene.working(planned.moment, pipeline=INVOICES)
    worker, delivered = scene.worker_of(tenant), scene.arena.ledger.of(tenant)
    at_port = {
        port: pid
        for pid, port in scene.arena.rows(
            "SELECT pid, client_port FROM pg_stat_activity WHERE state = 'idle' OR pid = %(session)s",
            session=delivered[-1].session if delivered else 0,
        )
    }
    owned = [[at_port[port] for port in ports & at_port.keys()] for ports in worker.ports()]
    known = [sessions for sessions in owned if delivered and delivered[-1].session in sessions]
    sessions = max(known or owned, key=len, default=[])
    struck, end = time.monotonic(), _silence(scene, sessions, killed=planned.part < 0.5)
    # One of the sessions may be another's by now, whose handler waits for an answer.
    others = scene.arena.settings.transaction_timeout
    # A coroutine that waits for a session without `await` keeps the others of its process until their time limits.
    loop = 2 * (SOFT_TIME_LIMIT + FIRST_BACKOFF) if worker.kind.is_async else 0.0
    return Struck(struck, tuple(scene.busy() for _ in range(4)), loop, undo=end, holds_others=others)


def _silence(scene: Scene, sessions: list[int], *, killed: bool) -> Callable[[], None]:
    """Stop sessions; return how they go on, or else how one is killed, after which Postgres starts anew."""
    for pid in sessions:
        _stop_between_statements(pid)

    def end() -> None:
        for number, pid in enumerate(sessions):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if killed and number == 0 else signal.SIGCONT)
        if killed:
            with scene.arena.down():
                scene.arena.postgres.wait()

    return end


def _stop_between_statements(pid: int) -> None:
    """Stop a session that waits for its client: one that works may hold a lock that the whole server needs.

    A session says in its title what it does; one that never waits is left alone.
    """
    deadline = time.monotonic() + 2.0
    with suppress(ProcessLookupError, psutil.Error):
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            if " idle" in " ".join(psutil.Process(pid).cmdline()):
                return
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.005)


def redis_switched(scene: Scene, planned: Planned) -> Struck:
    server = scene.arena.redis
    assert isinstance(server, RedisHere)
    tenant = scene.working(planned.moment)
    end = server.switch_over()
    return Struck(time.monotonic(), (tenant, scene.busy()), undo=end)


def redis_clock(scene: Scene, planned: Planned) -> Struck:
    """Step back by an hour while one tenant works, one waits for its next tick and one has failed."""
    server = scene.arena.redis
    assert isinstance(server, RedisHere)
    assert server.clock is not None
    failed = scene.busy(1, fails=1, error="other")
    scene.arena.ledger.wait_for(failed, bool, 5.0)
    working = scene.working(planned.moment)
    burst = scene.busy()
    scene.arena.ledger.wait_for(burst, bool, 5.0)
    server.clock.move(-HOUR)
    stepped = time.monotonic()
    scene.writer.commit(scene.writer.invoice(burst, "second"))
    scene.writer.notify(burst, tries=50)
    return Struck(stepped, (failed, working, burst, scene.orphaned()))


def pgbouncer_away(scene: Scene, planned: Planned, signals: Sequence[signal.Signals]) -> Struck:
    """Let PgBouncer answer nobody from one signal to the next. If there is one only, start it again."""
    pooler = scene.arena.pooler
    assert pooler is not None
    tenants = (scene.working(planned.moment), scene.busy())
    with scene.arena.down():
        struck = time.monotonic()
        pooler.signal(signals[0])
        time.sleep(0.3 + LONGEST_ABSENCE * planned.part)
        if len(signals) > 1:
            pooler.signal(signals[1])
        else:
            pooler.restart()
    up = time.monotonic()
    return Struck(up, tenants, up - struck)


def _failed_over(
    scene: Scene,
    planned: Planned,
    strike: Callable[[RedisBehindSentinel, int], object],
    end: Callable[[RedisBehindSentinel, int], object] = lambda _, __: None,
) -> Struck:
    """Let the replica take over from the primary; both functions get the port of that."""
    watched = scene.arena.redis
    assert isinstance(watched, RedisBehindSentinel)
    tenants, old = (scene.working(planned.moment), scene.orphaned()), watched.address()
    with scene.arena.down():
        strike(watched, old)
        during = scene.busy()  # a primary that is cut off takes its event, and that is lost
        watched.wait_until_left(old)
        end(watched, old)
    since = time.monotonic()
    return Struck(since, (*tenants, during, scene.busy()), undo=watched.mend)


def sentinel_killed(scene: Scene, planned: Planned) -> Struck:
    def strike(watched: RedisBehindSentinel, old: int) -> None:
        watched.cut_off_primary()
        time.sleep(0.1 + planned.part)
        watched.signal(old, signal.SIGKILL)

    return _failed_over(scene, planned, strike, RedisBehindSentinel.restart)


def sentinel_frozen(scene: Scene, planned: Planned) -> Struck:
    def strike(watched: RedisBehindSentinel, old: int) -> None:
        watched.signal(old, signal.SIGSTOP)

    def end(watched: RedisBehindSentinel, old: int) -> None:
        time.sleep(planned.part)
        watched.signal(old, signal.SIGCONT)

    return _failed_over(scene, planned, strike, end)


def sentinel_cut_off(scene: Scene, planned: Planned) -> Struck:
    return _failed_over(scene, planned, lambda watched, _: watched.cut_off_primary())


def sentinel_asked(scene: Scene, planned: Planned) -> Struck:
    return _failed_over(scene, planned, lambda watched, _: watched.fail_over())
