"""The course of one schedule: traffic, faults, recovery, quiet, verdict."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Final

from verification.torture.arena import FIRST_WORKERS, Arena
from verification.torture.faults import FAULTS, ONE_MORE_OUTAGE, OUTAGES
from verification.torture.kinds import kind_of, tenant_named
from verification.torture.producer import Producer, Truth, Writer
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import Planned, Schedule
from verification.torture.strikes_work import FLOOD_CALL
from verification.torture.users import Users
from verification.torture.verdict import judge, judge_goods, leftovers

__all__ = ["HARNESS_FAILED", "Recovery", "Result", "harness_failed", "run"]

WAITED_BEYOND = 10.0
LEAST_SLOTS = len(FIRST_WORKERS)
HARNESS_FAILED: Final = "harness failed"
STUCK_AFTER = 60.0
"""Seconds without faults, traffic and progress after which a schedule that is not quiet counts as stuck."""


@dataclass(frozen=True)
class Recovery:
    """How long it took until a fault's tenants went on; `together` with another fault the bounds add up."""

    fault: str
    bound: float
    recovered: float | None
    """Seconds; None: no tenant that it met had work that was held up."""
    stalled: float
    """Seconds of these in which the machine stood still; see `verification.torture.stalls`."""
    together: bool

    @property
    def beyond(self) -> float:
        """By how many seconds it was later than its bound and the machine's stalls; less than 0: it was in time."""
        return (self.recovered or 0.0) - self.bound - self.stalled

    @property
    def is_late(self) -> bool:
        return self.beyond > 0

    @property
    def was_stalled(self) -> bool:
        """Whether it is not late only because the machine stood still."""
        return self.recovered is not None and self.bound < self.recovered <= self.bound + self.stalled


@dataclass
class Result:
    """One schedule's outcome."""

    seed: int
    recoveries: list[Recovery] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    self_exits: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    committed: int = 0
    delivered: int = 0
    user_transactions: int = 0
    """Of the users of the adopted table."""
    seconds: float = 0.0

    @property
    def came_to_nothing(self) -> bool:
        """Whether there is no verdict, because the harness failed."""
        return any(violation.startswith(HARNESS_FAILED) for violation in self.violations)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def harness_failed(seed: int, why: str) -> Result:
    """Return the outcome of a schedule that came to no verdict because its own means failed."""
    return Result(seed, violations=[f"{HARNESS_FAILED}: {why}"])


def run(arena: Arena, schedule: Schedule, margin: float) -> Result:
    """Run `schedule`; `margin` is added to each bound."""
    began = time.monotonic()
    result = Result(schedule.seed)
    prefix = f"s{schedule.seed}-"
    truth = Truth()
    users = Users(arena.postgres.url, f"u{schedule.seed}-")
    scene = Scene(arena, Writer(truth), prefix, schedule.seed, users)
    tenants, plain = (
        [tenant_named(f"{prefix}{what}", number, kind_of(first + number)) for number in range(schedule.tenants)]
        for what, first in (("tenant", schedule.seed), ("plain", schedule.seed + 1))
    )
    # Where the circuit opens, an invoice that fails by itself may be its probe and keep it open for longer.
    outages = not any(FAULTS[planned.fault].opens_circuit for group in schedule.groups for planned in group)
    producers = [
        Producer(f"p{number}", f"{schedule.seed}/{number}", tenants, scene.writer, outages=outages)
        for number in range(2)
    ]
    producers.append(Producer("sql", f"{schedule.seed}/sql", plain, scene.writer, outages=outages, plain=True))
    for producer in producers:
        producer.start()
    with users.working(1, f"{schedule.seed}/user"):
        for group in schedule.groups:
            strikes_users = any(FAULTS[planned.fault].strikes_users for planned in group)
            with users.excused() if strikes_users else nullcontext():
                recoveries, violations = _strike(scene, group, margin)
            result.recoveries += recoveries
            result.violations += violations
    for producer in producers:
        producer.stop()
    _await_quiet(arena, prefix, users.prefix, result)
    result.violations += judge(arena, prefix, truth, sum(map(len, schedule.groups)))
    result.violations += [*users.violations(arena.stalls), *judge_goods(arena, users)]
    result.user_transactions = users.transactions
    arena.forget_goods()
    result.violations += [
        f"late: {one.fault} recovered after {one.recovered:.1f} s, bound {one.bound:.1f} s, stalled {one.stalled:.1f} s"
        for one in result.recoveries
        if one.is_late
    ]
    result.committed = len(truth.facts())
    result.delivered = sum(len(arena.ledger.of(tenant)) for tenant in {tenant for tenant, _ in truth.facts()})
    result.self_exits, result.refusals, hung, died = arena.workers.take_notes()
    result.violations += [*(f"stuck: {text}" for text in hung), *(f"died: {text}" for text in died)]
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _strike(scene: Scene, group: tuple[Planned, ...], margin: float) -> tuple[list[Recovery], list[str]]:
    """Let the faults of a group strike at once, and wait until all tenants that they met go on.

    Return also what the strikes saw that must not be.
    """

    def strike(planned: Planned) -> Struck:
        time.sleep(planned.pause)
        return FAULTS[planned.fault].strike(scene, planned)

    with ThreadPoolExecutor(len(group)) as pool:
        struck = dict(zip([planned.fault for planned in group], pool.map(strike, group), strict=True))
    settings = scene.arena.settings
    bounds = {name: FAULTS[name].bound.seconds(settings, one.lasted) + margin for name, one in struck.items()}
    crowd = max(one.crowd for one in struck.values())
    turns = crowd * (settings.run_budget + FLOOD_CALL) / LEAST_SLOTS
    more = max(one.holds_others for one in struck.values())
    if any(FAULTS[name].bound is OUTAGES for name in struck) and any(FAULTS[name].opens_circuit for name in struck):
        more += ONE_MORE_OUTAGE
    together = len(group) > 1
    since = max(one.since for one in struck.values())
    recoveries = []
    for name, one in struck.items():
        # Where the circuit was open, or deadlines got lost, the crowd and its witnesses stand in one line.
        behind = not one.crowd or any(FAULTS[other].opens_circuit or FAULTS[other].forgets for other in struck)
        bound = (sum(bounds.values()) + more if together else bounds[name]) + (turns if behind else 0.0)
        known: list[Recovery] = []
        if one.took is not None:
            stalled = scene.arena.stalls.between(one.since, one.since + one.took)
            known.append(Recovery(name, round(bound, 3), round(one.took, 3), round(stalled, 3), together))
        for tenant in one.tenants:
            own_bound = bound + one.longer.get(tenant, 0.0)
            counted_from = max(since if together else one.since, one.own.get(tenant, 0.0))
            seconds = _recovery(scene, one, tenant, counted_from, own_bound, margin)
            if seconds is not None:
                stalled = scene.arena.stalls.between(counted_from, counted_from + seconds)
                known.append(Recovery(name, round(own_bound, 3), round(seconds, 3), round(stalled, 3), together))
        none = Recovery(name, round(bound, 3), None, 0.0, together)
        recoveries.append(max(known, key=lambda recovery: recovery.beyond, default=none))
    for one in struck.values():
        one.undo()
    return recoveries, [violation for one in struck.values() for violation in one.violations]


def _recovery(scene: Scene, one: Struck, tenant: str, since: float, bound: float, margin: float) -> float | None:
    """Return the seconds from `since` to the tenant's next delivery, or to the end of the one that was under way.

    Seconds in which fewer than two workers were ready do not count. For one beyond its bound, nor does a time in which
    all were in long calls when its run became due, which is `margin` before the bound; one of several runs may have
    been due at any time. None: nothing of it was held up. It is waited for well past the bound, so that a late one is
    told from none at all.
    """
    workers = scene.arena.workers
    deadline = time.monotonic() + bound + WAITED_BEYOND

    def excused(until: float) -> float:
        without = workers.seconds_without(since, until)
        latest = since + bound + without
        if until <= latest:
            return without
        due = since if one.to_the_end else latest - margin
        return without + workers.seconds_full(due, latest, until, scene.arena.ledger)

    def counted(until: float) -> float:
        return until - since - excused(until)

    while True:
        if one.to_the_end:
            # A handler of parcels may have ended after its run was replaced: then no cursor has passed them.
            if not scene.arena.count_unsettled(tenant) and not scene.arena.count_pending(tenant):
                return counted(time.monotonic())
        else:
            found = scene.arena.ledger.of(tenant)
            later = [entry.began for entry in found if entry.began >= since]
            if later:
                return counted(later[0])
            if not scene.arena.count_unsettled(tenant):
                ended = max((entry.ended for entry in found if entry.ended is not None), default=0.0)
                return counted(ended) if ended > since else None
        now = time.monotonic()
        if now > deadline and now > deadline + excused(now):
            return counted(now)
        time.sleep(0.2 if one.to_the_end else 0.05)


def _await_quiet(arena: Arena, prefix: str, of_users: str, result: Result) -> None:
    """Wait until all is handled and nothing is left; a schedule that gets no further for a while is stuck."""
    deadline, fewest = time.monotonic() + STUCK_AFTER, math.inf
    while True:
        left, unsettled = leftovers(arena), arena.count_unsettled(prefix) + arena.count_goods(of_users)
        if not left and not unsettled:
            unsettled = arena.count_pending(prefix) + arena.count_pending(of_users)
        if not left and not unsettled:
            return
        if len(left) + unsettled < fewest:
            deadline, fewest = time.monotonic() + STUCK_AFTER, len(left) + unsettled
        if time.monotonic() > deadline:
            result.violations.append(f"stuck: {unsettled} not handled, left: {left[:10]}")
            return
        time.sleep(0.2)
