"""Records that nobody notifies, and faults of the poller that finds them: how each is made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection

from taskbridge.gate import Keys
from taskbridge.worker.poller import HOLDS_LONGER
from verification.torture.kinds import PIPELINES, kind_of
from verification.torture.producer import PLAIN
from verification.torture.scene import Scene, Struck, nothing
from verification.torture.schedule import Planned
from verification.torture.strikes_work import POLICY


def _written(
    scene: Scene, planned: Planned, strike: Callable[[], object] = nothing, pipeline: str | None = None
) -> Struck:
    """Write records by plain SQL in each way, then in a transaction that lasts. The first come before `strike`.

    `pipeline`: whose poller was struck; None: those of both.
    """
    committed: dict[str, float] = {}

    def write(number: int, *, hold: float = 0.0) -> None:
        tenant = scene.new_tenant(pipeline)
        void = scene.some(tenant, 8) if hold else ()
        when = scene.writer.commit(*scene.some(tenant), hold=hold, write=PLAIN[number], void=void)
        committed[tenant] = when or time.monotonic()

    write(0)
    strike()
    struck = time.monotonic()
    for number in range(1, len(PLAIN)):
        write(number)
    write(round(planned.part), hold=0.3 + planned.part)
    return Struck(struck, tuple(committed), own=committed)


def written_plainly(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    return _written(scene, planned)


def written_in_run(scene: Scene, planned: Planned) -> Struck:
    """Write by plain SQL while runs that nobody notified are under way, some shorter than a tick and one long."""
    own: dict[str, float] = {}

    def follow(tenant: str, seconds: float) -> None:
        ledger, plainly = scene.arena.ledger, partial(scene.writer.commit, write=PLAIN[-1])
        plainly(*scene.some(tenant, 1, seconds=seconds))
        ledger.wait_for(tenant, bool, 10.0)
        committed = plainly(scene.writer.invoice(tenant, "second")) or time.monotonic()
        ledger.wait_for(tenant, lambda found: any(one.ended for one in found), 10.0)
        own[tenant] = max([committed, *(one.ended for one in ledger.of(tenant)[:1] if one.ended)])

    lengths = (0.12, 0.12, 0.12, POLICY.lease + planned.part)
    following = [threading.Thread(target=follow, args=(scene.new_tenant(), seconds)) for seconds in lengths]
    for thread in following:
        thread.start()
    for thread in following:
        thread.join()
    return Struck(min(own.values()), tuple(own), own=own)


def _drawn(planned: Planned) -> str:
    return kind_of(round(planned.part * 1000))


def poller_killed(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    pipeline = _drawn(planned)
    scene.arena.workers.kill(scene.poller_worker(pipeline), planned.successor)
    return _written(scene, planned, pipeline=pipeline)


def poller_frozen(scene: Scene, planned: Planned) -> Struck:
    """Freeze it for longer than its hold lasts; it wakes up in the middle of what it did."""
    time.sleep(planned.moment)
    pipeline = _drawn(planned)
    worker = scene.poller_worker(pipeline)
    seconds = scene.arena.settings.tail_interval + HOLDS_LONGER + 0.5 + planned.part
    freezing = threading.Thread(target=scene.arena.workers.freeze, args=(worker, seconds))
    freezing.start()
    while not worker.frozen:
        time.sleep(0.001)
    struck = _written(scene, planned, pipeline=pipeline)
    freezing.join()
    return struck


def poller_rewound(scene: Scene, planned: Planned) -> Struck:
    """Set T and B back to what they were before some records were handled."""
    stored = scene.arena.rows("SELECT pipeline, kind, snapshot::text FROM taskbridge.tails")
    scene.working(0.5 + planned.part)
    pipelines, kinds, snapshots = (list(column) for column in zip(*stored, strict=True))
    rewind = partial(
        scene.arena.rows,
        "UPDATE taskbridge.tails t SET snapshot = o.snapshot::pg_snapshot "
        "FROM unnest(%(pipelines)s::text[], %(kinds)s::text[], %(snapshots)s::text[]) o (pipeline, kind, snapshot) "
        "WHERE (t.pipeline, t.kind) = (o.pipeline, o.kind) RETURNING t.kind",
        pipelines=pipelines,
        kinds=kinds,
        snapshots=snapshots,
    )
    return _written(scene, planned, rewind)


def poller_deleted(scene: Scene, planned: Planned) -> Struck:
    """Delete T, or B, or both."""
    kinds = (["tail"], ["base"], ["tail", "base"])[int(planned.part * 3)]
    forget = partial(
        scene.arena.rows, "DELETE FROM taskbridge.tails WHERE kind = ANY(%(kinds)s) RETURNING kind", kinds=kinds
    )
    return _written(scene, planned, forget)


def poller_locked(scene: Scene, planned: Planned) -> Struck:
    """Lock T's row, so that passes can be made and not stored."""

    def lock() -> Connection:
        connection = scene.arena.engine.connect()
        connection.exec_driver_sql("SELECT FROM taskbridge.tails WHERE kind = 'tail' FOR UPDATE")
        return connection

    with scene.arena.in_spite_of_outages(lock):
        locked = time.monotonic()
        time.sleep(2.0 * planned.part)
        struck = _written(scene, planned)
    return Struck(struck.since, struck.tenants, time.monotonic() - locked, own=struck.own)


def hold_deleted(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    return _written(scene, planned, partial(scene.arena.redis.client.delete, *map(Keys().tailing, PIPELINES)))


def listeners_terminated(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN taskbridge'"
    return _written(scene, planned, partial(scene.arena.rows, statement))
