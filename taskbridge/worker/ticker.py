"""The ticker: starts runs that are due, and replaces runs that died. `taskbridge.worker.poller` runs beside it.

The ticker is part of every worker, whatever its pool, and runs in the worker's main process. The tickers of many
workers share the work without a leader: acting on a deadline is atomic in the gate, so a second one finds nothing to
do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from celery import bootsteps
from celery.worker import state as worker_state

from taskbridge.common.server_errors import REDIS_AWAY, is_refused
from taskbridge.common.texts import error_line
from taskbridge.errors import ForeignGate
from taskbridge.gate import Due
from taskbridge.process.runtime import Runtime, runtime_of, serves
from taskbridge.process.shutdown import note_stop, notice_signals
from taskbridge.worker.poller import Poller

__all__ = ["TickerStep", "fire_due", "free_for_turns"]

log = logging.getLogger(__name__)

AT_ONCE: Final = 200
"""How many deadlines one tick acts on."""
TURN_ARRIVES: Final = 0.2
"""Seconds within which a message reaches a free slot."""
AFTER_ERROR: Final = 1.0
OWNS_EVERY: Final = 2.0
"""Seconds between two renewals of the gate's ownership; see `Constant.OWNER_MS`."""


def fire_due(runtime: Runtime) -> float:
    """Act on every deadline that has passed; return the seconds until the next tick."""
    wait, waiting = runtime.settings.ticker_interval, 0
    for pipeline in runtime.names():
        if runtime.resting.get(pipeline, 0.0) > time.monotonic():
            continue
        try:
            due = _fire(runtime, pipeline)
        except Exception as error:
            if isinstance(error, REDIS_AWAY) or is_refused(error):
                raise  # the other pipelines need the same Redis
            log.warning("%s: deadlines are delayed: %s", pipeline, error_line(error))
            runtime.resting[pipeline] = time.monotonic() + AFTER_ERROR
            continue
        waiting = due.waiting
        if due.next_ms is not None:
            wait = min(wait, due.next_ms / 1000)
    if waiting:
        _fill_slots(runtime)
    return max(wait, 0.001)


def _fire(runtime: Runtime, pipeline: str) -> Due:
    """Act on the deadlines of one pipeline; return what its last tick found."""
    while True:
        due = runtime.gate.tick(pipeline, AT_ONCE)
        if due.late_ms is not None:
            runtime.lateness[pipeline].observe(due.late_ms)
        runtime.gate.expire(pipeline, due.tenants)
        if len(due.tenants) < AT_ONCE:
            return due


def _fill_slots(runtime: Runtime) -> None:
    """Give a turn to as many tenants as slots are idle. A run that ends gives the next turn itself.

    Turns of the last 0.2 s are still on their way to these slots, so they are subtracted. An older one may be with a
    worker that has no free slot.
    """
    now, recent = time.monotonic(), runtime.turns_given
    while recent and recent[0] < now - TURN_ARRIVES:
        recent.popleft()
    if members := runtime.gate.fair_queue(runtime.idle_slots() - len(recent)):
        runtime.gate.publish_waiting(members)
        recent.extend(now for _ in members)


def free_for_turns(runtime: Runtime, served: Collection[str], idle: int) -> int:
    """Return how many `idle` slots of a worker that serves the queues `served` are for tenants in the fair queue.

    0 while first events wait: an idle slot is about to take one of them.
    """
    first, following = runtime.keys.queues
    if idle <= 0 or following not in served or (first in served and runtime.gate.has_waiting_first_event()):
        return 0
    return idle


def keep_gate(runtime: Runtime) -> float:
    """Keep the gate for this deployment, or end the worker if another one has it. Return the seconds to wait."""
    try:
        runtime.own_gate()
    except ForeignGate as error:
        log.critical("this worker ends: %s", error)
        state: Any = worker_state
        state.should_stop = error.exit_status
    return OWNS_EVERY


class TickerStep(bootsteps.StartStopStep):
    """Starts the threads in a worker: several, so that neither ticker nor poller waits for a slow reconciliation."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        # Before the pool's processes are forked, so that they inherit it.
        runtime = runtime_of(worker.app)
        runtime.slots = max(1, worker.concurrency)
        runtime.worker = str(worker.hostname)
        runtime.serves = frozenset(worker.app.amqp.queues.consume_from)
        if runtime.publishes_in_gate:
            runtime.taken_from = runtime.serves

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Start the threads."""
        notice_signals()
        runtime, served = runtime_of(worker.app), worker.app.amqp.queues.consume_from
        runtime.idle_slots = lambda: free_for_turns(
            runtime, served, int(worker.pool.num_processes) - len(worker_state.reserved_requests)
        )
        runtime.busy_slots = lambda: (
            min(len(worker_state.active_requests), int(worker.pool.num_processes)),
            int(worker.pool.num_processes),
        )
        poller = Poller(runtime)
        loops = {
            "owner": partial(keep_gate, runtime),
            "ticker": partial(fire_due, runtime),
            "poller": poller.poll_pages,
            "reconciler": poller.reconcile_pages,
            "hold": poller.renew_holds,
        }
        if runtime.settings.tail_listens:
            loops["listener"] = poller.listen
        for name, step in loops.items():
            arguments = (runtime, name, step)
            thread = threading.Thread(target=self._loop, args=arguments, name=f"taskbridge-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """Tell the runs that the worker stops, whatever the reason: a stop by remote control sends no signal."""
        note_stop()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def terminate(self, worker: Any) -> None:
        """End the threads; Celery calls this in a cold shutdown."""
        self.stop(worker)

    def _loop(self, runtime: Runtime, name: str, step: Callable[[], float]) -> None:
        wait, failed = 0.0, ""
        while not self._stopping.wait(wait):
            runtime.note_progress()
            try:
                wait = step()
            except Exception as error:
                # Redis or Postgres is unavailable. Whatever is due stays due.
                if (text := error_line(error)) != failed:
                    log.warning("%s: %s", name, text)
                wait, failed = AFTER_ERROR, text
            else:
                if failed:
                    log.warning("%s: recovered", name)
                failed = ""
