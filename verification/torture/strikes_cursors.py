"""Cursors that another session has locked: how that is made, and for how long it may hold up whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sqlalchemy import Connection

from taskbridge import app
from taskbridge.errors import Unavailable
from taskbridge.producer.notify import notify_many
from verification.torture.arena import FIRST_WORKERS
from verification.torture.kinds import PIPELINES, by_pipeline
from verification.torture.ledger import Delivery
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import Planned

__all__ = ["CIRCUIT_OPENS_FOR", "cursors_locked", "held_by_locks"]

CIRCUIT_OPENS_FOR: Final = 1.0  # CIRCUIT_WAIT_MS of circuit.lua
MOST_LOCKED: Final = 8
OTHERS: Final = 60
EARLY: Final = 40
"""Others that have their events together with those that are locked."""
BEHIND: Final = 24
"""Of these, how many come before the first that is locked. Slots begin with these and take the next together."""
CALL: Final = 0.04
"""Seconds of a call in which its tenant's cursor is locked."""
LOCK_TRIED: Final = 0.05
"""Seconds for which runs that began together try a lock: `SHORT_WAIT` of taskbridge/store/db.py."""
RUN: Final = 0.05
"""Seconds that each of them may have a slot to itself: `SLICE` of taskbridge/worker/delivery.py."""
LEAST_SLOTS: Final = len(FIRST_WORKERS)
FIRST_RUNS_TAKE: Final = 15.0
SETTLED_AFTER: Final = 0.4
"""Seconds from the handler's end after which a run is settled and the next may begin at once."""


def cursors_locked(scene: Scene, planned: Planned) -> Struck:
    """Lock cursors of some tenants that have a new event, while others have one too, of both pipelines.

    Most of the others have theirs with those that are locked, the rest while runs of those already wait. Half of the
    times the lock comes before the events, and runs meet it when they claim. Else it comes while a handler is called,
    whose run meets it when it advances.
    """
    count, seconds = 1 + int(MOST_LOCKED * planned.part**2), 0.5 + 2.5 * (planned.part * 100 % 1.0)
    tenants = [scene.new_tenant() for _ in range(count + OTHERS)]
    locked, early, late = tenants[:count], tenants[count : count + EARLY], tenants[count + EARLY :]
    mixed = [*early[:BEHIND], *(one for pair in zip(locked, early[BEHIND:], strict=False) for one in pair)]
    mixed += [one for one in early if one not in mixed]
    committed: dict[str, float] = {}
    is_later = round(planned.part * 1000) % 2 == 1
    may_write = threading.Event()

    def send(those: Sequence[str], number: str) -> None:
        slow = {tenant: {"seconds": CALL} for tenant in locked if is_later and number == "second"}
        invoices = [scene.writer.invoice(one, number, behaviour=slow.get(one, {})) for one in those]
        when = scene.writer.commit(*invoices)
        committed.update(dict.fromkeys(those, when or time.monotonic()))
        for pipeline, ours in by_pipeline([*those]).items():
            with suppress(Unavailable):  # another fault may strike Redis; then the poller finds them
                notify_many(app, ours, pipeline)

    def send_both() -> None:
        may_write.wait()
        send(mixed, "second")
        time.sleep(seconds / 2)
        send(late, "second")

    send(tenants, "first")
    _await_first_runs(scene, tenants)
    scene.arena.workers.wait_until_ready(LEAST_SLOTS)
    sending = threading.Thread(target=send_both, daemon=True)
    sending.start()
    if is_later:
        before = time.monotonic()
        may_write.set()
        _await_call(scene, locked, before)
    with scene.arena.in_spite_of_outages(lambda: _lock(scene, locked)):
        began = time.monotonic()
        may_write.set()
        time.sleep(seconds)
    released = time.monotonic()
    sending.join()
    own = committed | {tenant: max(released, committed[tenant]) for tenant in locked}
    lock, queue = released - began, len(tenants) * RUN / LEAST_SLOTS
    longer = held_by_locks(count, lock)
    return Struck(
        min(own.values()),
        tuple(tenants),
        lock,
        own=own,
        longer={tenant: queue + (CIRCUIT_OPENS_FOR if tenant in locked else longer) for tenant in tenants},
        holds_others=lock + CIRCUIT_OPENS_FOR + queue,
    )


def held_by_locks(count: int, lock: float) -> float:
    """Return the seconds for which `count` cursors that are locked for `lock` seconds may hold up other tenants.

    Runs that began together claim in one exchange for each source, and then, where a lock did not come, one by one. So
    it is for their advances. Who is locked comes last, and waits in the slot as long as a run that is alone: so many
    slots are not free. Where that may be all of a worker, messages that it has wait with them; and where so many fail
    the circuit may open.
    """
    exchanges = 2 * (len(PIPELINES) + count) * LOCK_TRIED
    return exchanges + (0.0 if count < LEAST_SLOTS else lock + CIRCUIT_OPENS_FOR)


def _await_first_runs(scene: Scene, tenants: Sequence[str]) -> None:
    deadline = time.monotonic() + FIRST_RUNS_TAKE
    for tenant in tenants:
        scene.arena.ledger.wait_for(tenant, _has_ended, max(0.0, deadline - time.monotonic()))
    time.sleep(SETTLED_AFTER)


def _await_call(scene: Scene, tenants: Sequence[str], since: float) -> None:
    """Wait until a handler is called for one of them, or for 2 s."""
    while time.monotonic() < since + 2.0:
        if any(one.began >= since for tenant in tenants for one in scene.arena.ledger.of(tenant)):
            return
        time.sleep(0.002)


def _has_ended(found: list[Delivery]) -> bool:
    return any(one.ended is not None for one in found)


def _lock(scene: Scene, tenants: Sequence[str]) -> Connection:
    connection = scene.arena.engine.connect()
    statement = "SELECT FROM taskbridge.sync_cursors WHERE tenant = ANY(%(tenants)s) ORDER BY tenant FOR UPDATE"
    connection.exec_driver_sql(statement, {"tenants": [*tenants]})
    return connection
