"""The ticker: starts what is due, and replaces runs that died. Beside it run the rounds of `taskbridge.worker.poller`.

It is part of every worker, whatever its pool, and runs in the worker's main process. The tickers of many workers
share the work without a leader: acting on a deadline is atomic in the gate, so the second one finds nothing to do.
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
"""Deadlines that one tick acts on."""
TURN_ARRIVES: Final = 0.2
"""Seconds in which a message reaches a free slot."""
AFTER_ERROR: Final = 1.0
OWNS_EVERY: Final = 2.0
"""Seconds between two times that a worker says whose the gate is; see `Constant.OWNER_MS`."""


def fire_due(runtime: Runtime) -> float:
    """Act on every deadline that has passed; return the seconds until it is worth looking again."""
    wait, waiting = runtime.settings.ticker_interval, 0
    for pipeline in runtime.pipelines.names():
        if runtime.resting.get(pipeline, 0.0) > time.monotonic():
            continue
        try:
            due = _fire(runtime, pipeline)
        except Exception as error:
            if isinstance(error, REDIS_AWAY) or is_refused(error):
                raise  # the other pipelines need the same Redis
            log.warning("%s: its deadlines wait: %s", pipeline, error_line(error))
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
    """Give as many tenants their turn as slots are free. A run that ends gives the next turn; here idle slots do.

    Turns of the last 0.2 s are on their way to these slots, so they are taken off. An older one may lie with a worker
    that has no free slot.
    """
    now, lately = time.monotonic(), runtime.turns_given
    while lately and lately[0] < now - TURN_ARRIVES:
        lately.popleft()
    if members := runtime.gate.fair_queue(runtime.idle_slots() - len(lately)):
        runtime.gate.publish_waiting(members)
        lately.extend(now for _ in members)


def free_for_turns(runtime: Runtime, served: Collection[str], idle: int) -> int:
    """Return how many `idle` slots of a worker that serves the queues `served` are for those who wait for their turn.

    0 while first events wait: an idle slot is about to take one of them.
    """
    first, following = runtime.keys.queues
    if idle <= 0 or following not in served or (first in served and runtime.gate.first_events()):
        return 0
    return idle


def keep_gate(runtime: Runtime) -> float:
    """Keep the gate for this deployment; end the worker if another one had it first. Return the seconds to wait."""
    try:
        runtime.own_gate()
    except ForeignGate as error:
        log.critical("this worker ends: %s", error)
        state: Any = worker_state
        state.should_stop = error.exit_status
    return OWNS_EVERY


class TickerStep(bootsteps.StartStopStep):
    """Starts the threads in a worker: several, so that neither ticks nor the tail wait for a slow page of the base."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        # Before the pool's processes are forked, so that they know it too.
        runtime = runtime_of(worker.app)
        runtime.slots = max(1, worker.concurrency)
        runtime.worker = str(worker.hostname)
        if runtime.publishes_in_gate:
            runtime.taken_from = frozenset(worker.app.amqp.queues.consume_from)

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
        poller = Poller(runtime)
        loops = {
            "owner": partial(keep_gate, runtime),
            "ticker": partial(fire_due, runtime),
            "tail": poller.poll_pages,
            "base": poller.reconcile_pages,
            "hold": poller.renew_holds,
        }
        if runtime.settings.tail_listens:
            loops["listener"] = poller.listen
        for name, look in loops.items():
            thread = threading.Thread(target=self._loop, args=(name, look), name=f"taskbridge-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """Tell the runs that the worker stops, whatever the reason: no signal announces one by remote control."""
        note_stop()

    def stop(self, worker: Any) -> None:  # noqa: ARG002 - Celery passes it
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def terminate(self, worker: Any) -> None:
        """End the threads; Celery calls this in a cold shutdown."""
        self.stop(worker)

    def _loop(self, name: str, look: Callable[[], float]) -> None:
        wait, failed = 0.0, ""
        while not self._stopping.wait(wait):
            try:
                wait = look()
            except Exception as error:
                # Redis or Postgres is away. Whatever is due stays due.
                if (text := error_line(error)) != failed:
                    log.warning("%s: %s", name, text)
                wait, failed = AFTER_ERROR, text
            else:
                if failed:
                    log.warning("%s: works again", name)
                failed = ""
