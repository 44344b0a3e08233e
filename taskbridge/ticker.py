"""The ticker: starts what is due, restarts what died, finds what was forgotten.

It is part of every worker, whatever its pool, and runs in the worker's main process. The tickers of many workers
share the work without a leader: acting on a deadline is atomic in the gate, so the second one finds nothing to do, and
one of them per interval looks for forgotten records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

import redis
from celery import Celery, bootsteps
from celery.worker import state as worker_state
from sqlalchemy.exc import DBAPIError

from taskbridge.gate import Due, Spacing, State
from taskbridge.runtime import Runtime, runtime, serves
from taskbridge.store import Waiting

__all__ = ["TickerStep", "fire_due", "reconcile"]

log = logging.getLogger(__name__)

AT_ONCE: Final = 200
MOST_TOGETHER: Final = 16
HANDED_ARRIVES: Final = 0.2
"""Seconds in which a message reaches a free slot."""
AFTER_ERROR: Final = 1.0
RECONCILE_CHECK: Final = 1.0
AFTER_FAILED_LOOK: Final = 5.0


def fire_due(here: Runtime) -> float:
    """Act on every deadline that has passed; return the seconds until it is worth looking again."""
    wait, turns = here.settings.ticker_interval, 0
    for pipeline in here.pipelines.names():
        if here.resting.get(pipeline, 0.0) > time.monotonic():
            continue
        try:
            due = _fire(here, pipeline)
        except (redis.ConnectionError, redis.TimeoutError):
            raise  # there is nothing to be had for the others either
        except Exception as error:
            # One pipeline's trouble is not the others'.
            log.warning("%s: its deadlines wait: %s: %s", pipeline, type(error).__name__, error)
            here.resting[pipeline] = time.monotonic() + AFTER_ERROR
            continue
        turns = due.turns
        if due.next_ms is not None:
            wait = min(wait, due.next_ms / 1000)
    if turns:
        _fill_slots(here)
    return max(wait, 0.001)


def _fire(here: Runtime, pipeline: str) -> Due:
    """Act on the deadlines of one pipeline; return how its last tick found it."""
    while True:
        due = here.gate.tick(pipeline, AT_ONCE)
        if due.late_ms is not None:
            here.lateness[pipeline].observe(due.late_ms)
        _start(here, pipeline, due.tenants)
        if len(due.tenants) < AT_ONCE:
            return due


def _fill_slots(here: Runtime) -> None:
    """Give as many tenants their turn as slots are free. Runs that end do the same; this is for slots that had none.

    What was given lately and has not arrived is for these slots too. Whatever is older may lie with a worker that has
    no free slot.
    """
    now, lately = time.monotonic(), here.handed
    while lately and lately[0] < now - HANDED_ARRIVES:
        lately.popleft()
    if here.idle_slots is None:
        handed, members = here.gate.turns(1)
        free = 1 - handed
    else:
        free = here.idle_slots() - len(lately)
        members = here.gate.turns(free)[1] if free > 0 else []
    if free > 0:
        here.gate.hand_over(members)
        lately.extend(now for _ in members)


def free_for_turns(here: Runtime, served: Collection[str], idle: int) -> int:
    """Return how many of a worker's `idle` slots are for those who wait for their turn; it serves the queues `served`.

    Where first events wait, a slot that is idle for a moment is theirs.
    """
    first, following = here.keys.queues
    if idle <= 0 or following not in served or (first in served and here.gate.first_events()):
        return 0
    return idle


def _start(here: Runtime, pipeline: str, tenants: list[str]) -> None:
    """Act on the deadlines of `tenants`. Where many are due, several share a message: it costs more than a short run.

    Each message has an eighth of them at the most, so that several workers get some.
    """
    together = min(MOST_TOGETHER, len(tenants) // 8)
    if together < 2:
        here.gate.expire(pipeline, tenants)
        return
    runs = here.gate.expire_together(pipeline, tenants)
    for first in range(0, len(runs), together):
        here.publish_together(pipeline, runs[first : first + together])


def reconcile(here: Runtime, pipeline: str) -> list[str]:
    """Give every tenant with records to take and no runner one; return those tenants.

    Such tenants are left by a producer that died between its commit and its notify, and by a Redis that lost its data.
    Tenants that wait for their delay are looked at after such a loss, when the longest delay is another than it was,
    and once a day; else only those that are due. In those cases idle tenants' last runs are restored as well.
    """
    criteria = here.pipelines[pipeline].criteria
    rebuild = criteria is not None and here.gate.rebuilt_for(pipeline) != criteria.spacing.last_ttl
    if criteria is not None and rebuild:
        last_runs = here.records.last_runs(pipeline, criteria.spacing.last_ttl)
        here.gate.remember_last(pipeline, last_runs, criteria.spacing)
    forgotten, events = _without_runner(here, pipeline, every=rebuild), []
    for waiting, spacing, state in forgotten:
        if state is not State.IDLE:
            here.gate.adopt(pipeline, waiting.tenant)
            continue
        if waiting.last_ms is not None:
            here.gate.remember_last(pipeline, [(waiting.tenant, waiting.last_ms)], spacing)
        events.append((pipeline, waiting.tenant, spacing))
    here.gate.notify_many(events, found=True)
    if criteria is not None and rebuild:
        here.gate.mark_rebuilt(pipeline, criteria.spacing.last_ttl)
    return [waiting.tenant for waiting, _, _ in forgotten]


def _without_runner(here: Runtime, pipeline: str, *, every: bool) -> list[tuple[Waiting, Spacing, State]]:
    """Return the tenants that have records to take and no deadline, each with its spacing and its runner's state.

    Postgres and Redis are asked one after the other, and a run may end in between, with nothing left. So who had a
    runner before is looked at once more.
    """
    for _ in range(2):
        had_runner = set(here.gate.active(pipeline))
        pending = _pending(here, pipeline, every=every)
        runners = here.gate.look(pipeline, [waiting.tenant for waiting, _ in pending])
        idle = [
            (waiting, spacing, runner.state)
            for (waiting, spacing), runner in zip(pending, runners, strict=True)
            if runner.deadline_ms is None
        ]
        certain = [one for one in idle if one[0].tenant not in had_runner]
        if len(certain) == len(idle):
            break
    return certain


def _pending(here: Runtime, pipeline: str, *, every: bool) -> list[tuple[Waiting, Spacing]]:
    """Return the tenants that have records to take now, or with `every` ever, each with its spacing."""
    declared = here.pipelines[pipeline]
    if declared.criteria is None:
        spacing = declared.policy.spacing
        return [(Waiting(tenant, spacing.delay, None), spacing) for tenant in here.cursors.pending_tenants(pipeline)]
    waiting = here.records.waiting_tenants(pipeline, every=every)
    return [(one, declared.criteria.spacing_for(one.delay_ms)) for one in waiting]


def _reconcile(here: Runtime, pipeline: str) -> list[str]:
    """Reconcile; where the session broke while it lay in the pool, once more, since nobody looks again for a while."""
    try:
        return reconcile(here, pipeline)
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        return reconcile(here, pipeline)


def reconcile_in_turn(here: Runtime) -> float:
    """Reconcile the pipelines that nobody looked after lately; return the seconds until it is worth looking again.

    The mark that says so lies in Redis, so a Redis that lost its data is repaired at once.
    """
    for pipeline in here.pipelines.names():
        if here.gate.claim_reconcile(pipeline, here.settings.reconcile_interval):
            try:
                forgotten = _reconcile(here, pipeline)
            except Exception as error:
                # Nobody has looked, so the next look comes before the interval is over. One worker makes it: one that
                # takes its whole time-out would fail in all of them. The other pipelines have their turn now.
                log.warning("%s: no look for pending records: %s: %s", pipeline, type(error).__name__, error)
                with suppress(redis.RedisError):
                    rest = min(AFTER_FAILED_LOOK, here.settings.reconcile_interval)
                    here.gate.postpone_reconcile(pipeline, rest)
                continue
            if forgotten:
                here.forgotten[pipeline] += len(forgotten)
                log.warning("%s: %d tenants had pending records and no runner", pipeline, len(forgotten))
    return RECONCILE_CHECK


class TickerStep(bootsteps.StartStopStep):
    """Celery's way in: two threads, since a look through Postgres must not hold up a tick."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        # Before the pool's processes are forked, so that they know it too.
        runtime(worker.app).slots = max(1, worker.concurrency)

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues. One that was told to serve others only has nothing to do with us."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Start both threads. Forgotten records are looked for soon after a worker starts, whoever looked last."""
        app: Celery = worker.app
        here, served = runtime(app), app.amqp.queues.consume_from
        here.idle_slots = lambda: free_for_turns(
            here, served, int(worker.pool.num_processes) - len(worker_state.reserved_requests)
        )
        with suppress(redis.RedisError):
            for pipeline in here.pipelines.names():
                here.gate.release_reconcile(pipeline)
        for turn in (fire_due, reconcile_in_turn):
            thread = threading.Thread(
                target=self._loop, args=(turn, app), name=f"taskbridge-{turn.__name__}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """End both threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def terminate(self, worker: Any) -> None:
        """End both threads; Celery calls this in a cold shutdown."""
        self.stop(worker)

    def _loop(self, turn: Callable[[Runtime], float], app: Celery) -> None:
        here = runtime(app)
        wait = 0.0
        while not self._stopping.wait(wait):
            try:
                wait = turn(here)
            except Exception as error:
                # Redis or Postgres is away. Whatever is due stays due.
                log.warning("%s: %s: %s", turn.__name__, type(error).__name__, error)
                wait = AFTER_ERROR
