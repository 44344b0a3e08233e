"""Faults of messages, producers, handlers and records, and work without end: how each is made."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis

from taskbridge import LatencyNeutral, app
from taskbridge.declaring.failures import FIRST_BACKOFF
from taskbridge.gate import Queue, RunnerStatus, State
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify_many
from tests.waiting import wait_until
from verification.torture.acts import ACTS, UNDECODABLE
from verification.torture.kinds import INVOICES, by_pipeline, kind_of, pipeline_of, tenant_named
from verification.torture.ledger import Delivery
from verification.torture.producer import Expected
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import Planned

POLICY: Final = LatencyNeutral()
QUEUES: Final = [queue.value for queue in Queue]


class _Thieves:
    """Take run messages out of both queues before the workers do, while the `with` block lasts."""

    COUNT = 20  # Redis serves who has waited longest, and a thief that got something waits anew

    def __init__(self, server: redis.Redis) -> None:
        self.stolen: list[tuple[str, str]] = []
        self._server = server
        self._connect: Callable[[], Any] = server.client
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
        return [_tenant_in(message) for _, message in self.stolen]

    def _steal(self) -> None:
        while not self._done.is_set():
            # Another fault may strike Redis at the same time, also while this connects.
            with suppress(redis.RedisError), self._connect() as client:
                self._ids.append(client.client_id())
                while not self._done.is_set():
                    found: Any = client.brpop(QUEUES, timeout=2)
                    self.stolen += [found] if found else []
            self._done.wait(0.05)


def _rob(scene: Scene, seconds: float) -> tuple[_Thieves, Struck]:
    """Steal messages, those of two new tenants among them."""
    tenants, began = (scene.new_tenant(), scene.new_tenant()), time.monotonic()
    with _Thieves(scene.arena.redis.client) as thieves:
        for tenant in tenants:
            scene.writer.commit(*scene.some(tenant))
            scene.writer.notify(tenant, tries=50)
        sent = time.monotonic()
        time.sleep(seconds)
    robbed = tuple(tenant for tenant in tenants if thieves.tenants().count(tenant) == 1)
    again = _published_again(scene.arena.settings.republish_after, time.monotonic() - began)
    return thieves, Struck(sent, robbed, holds_others=again)


def _published_again(republish_after: float, losing: float) -> float:
    """Return the seconds until a message is published again that is lost more than once, while so long all are lost.

    Each time it takes twice as long. The first time is in the fault's own bound.
    """
    first, wait, more = republish_after, republish_after, 0.0
    while first + more < losing:
        wait *= 2
        more += wait
    return more


def messages_lost(scene: Scene, planned: Planned) -> Struck:
    return _rob(scene, 0.2 + planned.part)[1]


def messages_doubled(scene: Scene, planned: Planned) -> Struck:
    """What was stolen comes late, twice, and once more when the tenant is elsewhere."""
    thieves, struck = _rob(scene, 0.1)
    for again in range(2):
        for queue, message in thieves.stolen:
            with suppress(redis.RedisError):  # another fault may strike it at the same time
                scene.arena.redis.client.lpush(queue, *[message] * (2 - again))
        time.sleep(2 * planned.part)
    return struck


def producer_died(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    tenant = scene.orphaned()
    return Struck(time.monotonic(), (tenant,))


def notified_first(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.new_tenant()
    scene.writer.notify(tenant, tries=50)
    time.sleep(0.05 + planned.part * (POLICY.lease - 0.2))
    committed = scene.writer.commit(*scene.some(tenant))
    return Struck(committed or time.monotonic(), (tenant,))


def committed_late(scene: Scene, planned: Planned) -> Struck:
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


def lease_outlasted(scene: Scene, planned: Planned) -> Struck:
    """Events come while a handler outlasts the lease, in the first run of its burst or in the one after it."""
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


def handler_failed(scene: Scene, planned: Planned) -> Struck:
    tenant = scene.new_tenant()
    error = "connection" if planned.part < 0.5 else "other"
    scene.writer.commit(*scene.some(tenant, count=1, fails=1, error=error))
    scene.writer.notify(tenant, tries=50)
    scene.arena.ledger.wait_for(tenant, bool, 5.0)
    found: list[Delivery] = scene.arena.ledger.of(tenant)
    return Struck(found[0].began + 0.001 if found else time.monotonic(), (tenant,))


def downstream_down(scene: Scene, planned: Planned) -> Struck:
    """Whatever tenant, the handler cannot reach what it calls."""
    tenants = tuple(scene.new_tenant() for _ in range(3))
    began = time.monotonic()
    with scene.arena.marked("downstream-is-down"):
        for tenant in tenants:
            scene.writer.commit(*scene.some(tenant))
            scene.writer.notify(tenant, tries=50)
        time.sleep(0.5 + planned.part)
    return Struck(time.monotonic(), tenants, time.monotonic() - began)


RECORDS_OF_FATAL: Final = 3


def record_acts(act: str) -> Callable[[Scene, Planned], Struck]:
    """Give a new tenant some records, one of which does this to its handler."""

    def strike(scene: Scene, planned: Planned) -> Struck:
        time.sleep(planned.moment)
        behaviour = {"act": act, "variant": round(planned.part * 1000) % len(ACTS[act].variants)}
        # What a handler of parcels has done is done, whether its transaction commits or not.
        pipeline = INVOICES if act == "commits_badly" else None
        return _beside_others(scene, planned, pipeline, behaviour=behaviour, expected=ACTS[act].end)

    return strike


def record_undecodable(scene: Scene, planned: Planned) -> Struck:
    time.sleep(planned.moment)
    text = UNDECODABLE[round(planned.part * 1000) % len(UNDECODABLE)]
    return _beside_others(scene, planned, None, undecodable=text, expected=Expected.QUARANTINED)


def _beside_others(scene: Scene, planned: Planned, pipeline: str | None, **what: Any) -> Struck:
    tenant = scene.new_tenant(pipeline)
    records = scene.some(tenant, RECORDS_OF_FATAL - 1)
    # Never the last: what comes after it shows that it is the record and not the downstream.
    records.insert(int(planned.part * (RECORDS_OF_FATAL - 1)), scene.writer.invoice(tenant, "odd", **what))
    scene.writer.commit(*records)
    scene.writer.notify(tenant, tries=50)
    return Struck(time.monotonic(), (tenant,), to_the_end=True)


ON: Final = (State.QUEUED, State.RUNNING)
FLOOD_RECORDS: Final = 6
FLOOD_SECONDS: Final = 0.05
"""So that a run's budget is over before a tenant's records are."""
FLOOD_CALL: Final = FLOOD_RECORDS * FLOOD_SECONDS
"""The longest call of the handler in a flood."""
TOGETHER: Final = 500
"""Tenants of a flood that one transaction commits: a machine that is busy takes long for all of them."""
FLOOD_STANDS: Final = 30.0
"""Seconds without progress after which nobody waits any longer for the end of a flood."""
NOTIFIED: Final = 0.2
"""Seconds before it let producers notify the flood; they are drawn from 0 to 0.4."""


def tenants_flood(scene: Scene, planned: Planned) -> Struck:
    """Let hundreds or thousands of tenants have a backlog, and look at deadlines of others: ticks and a back-off."""
    count = 10_000 if planned.part > 0.97 else round(150 + 300 * planned.part)
    flood = [tenant_named(f"{scene.prefix}flood", number, kind_of(number)) for number in range(count)]
    each = max(2, FLOOD_RECORDS * 500 // max(count, 500))
    deadlines: dict[str, float] = {}

    def second_event() -> None:
        # Who has more to do than a run gets through waits for its turn, like the flood; on a busy machine even one
        # record may use up the run's budget.
        for _ in range(5):
            tenant = scene.busy(1)
            scene.arena.ledger.wait_for(tenant, _has_ended, 5.0)
            if not _once_settled(scene, tenant).waits_for_turn:
                break
        committed = scene.writer.commit(scene.writer.invoice(tenant, "second"))
        scene.writer.notify(tenant, tries=50)
        deadlines[tenant] = committed or time.monotonic()

    def second_try() -> None:
        tenant = scene.busy(1, fails=1, error="other")
        scene.arena.ledger.wait_for(tenant, bool, 5.0)
        deadlines[tenant] = time.monotonic() + FIRST_BACKOFF

    with scene.arena.marked("flood"):
        _write_flood(scene, flood, each)
        if planned.moment < NOTIFIED:
            scene.arena.in_spite_of_outages(partial(_notify, flood))
        scene.arena.wait_for_runs(flood)  # where nobody notified they are found, all of them at once
        if planned.moment < NOTIFIED:
            # Other first events come in their order, behind those of the flood. Then it has its turns.
            first = partial(scene.arena.redis.client.llen, Queue.FIRST.value)
            most = 120 + count * each * FLOOD_SECONDS
            wait_until(lambda: not scene.arena.in_spite_of_outages(first), "first events are over", most)
        monitor = [threading.Thread(target=look) for look in (second_event, second_event, second_try)]
        for thread in monitor:
            thread.start()
        for thread in monitor:
            thread.join()
        for tenant, deadline in deadlines.items():
            scene.arena.ledger.wait_for(tenant, partial(_has_begun, deadline), 10.0)
    return Struck(
        min(deadlines.values()), tuple(deadlines), own=deadlines, crowd=count, undo=partial(_outlast, scene, count)
    )


def _write_flood(scene: Scene, tenants: list[str], each: int) -> None:
    for start in range(0, len(tenants), TOGETHER):
        scene.writer.commit(
            *(
                scene.writer.invoice(tenant, str(number), behaviour={"flood": FLOOD_SECONDS})
                for tenant in tenants[start : start + TOGETHER]
                for number in range(each)
            )
        )


def _notify(tenants: list[str]) -> None:
    for pipeline, those in by_pipeline(tenants).items():
        notify_many(app, those, pipeline)


def _once_settled(scene: Scene, tenant: str) -> RunnerStatus:
    """Return how the tenant stands when its run has settled, or after 5 s."""
    look = partial(runtime_of(app).gate.look, pipeline_of(tenant), [tenant])
    deadline = time.monotonic() + 5.0
    while (looked := scene.arena.in_spite_of_outages(look)[0]).state in ON and time.monotonic() < deadline:
        time.sleep(0.03)
    return looked


def _outlast(scene: Scene, left: int) -> None:
    """Wait until the flood is handled: the next faults' tenants would wait for their turns behind it."""
    deadline = time.monotonic() + FLOOD_STANDS
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        now = scene.arena.count_unsettled(f"{scene.prefix}flood")
        if now != left:
            left, deadline = now, time.monotonic() + FLOOD_STANDS


def _has_ended(found: list[Delivery]) -> bool:
    return any(one.ended is not None for one in found)


def _has_begun(since: float, found: list[Delivery]) -> bool:
    return bool(found) and found[-1].began >= since


def _tenant_in(text: str) -> str:
    """Return the tenant of a run's message, as it is stored in Redis."""
    message = json.loads(text)
    # A message that kombu published holds its body in base64; one that a script pushed, as it is.
    encoded = message["properties"].get("body_encoding") == "base64"
    (_, tenant, _), _, _ = json.loads(base64.b64decode(message["body"]) if encoded else message["body"])
    return str(tenant)
