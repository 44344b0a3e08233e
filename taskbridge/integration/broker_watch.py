"""A worker's connections to the broker that were lost without notice: nothing was closed, and no answer comes.

Without a time-out, redis-py waits for an answer on such a connection until the system gives it up, and the worker's
main process with it. A time-out for all sockets would also end connections to a server that is merely slow, and with
them the message of a `BRPOP` that it answers late. So a thread looks for answers that are overdue and asks the broker
on a new connection. If that is answered and the old ones stay silent, it shuts their sockets down: whoever waits on
them gets the error of a closed connection, and Celery reconnects as it always does.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

import redis
from celery import bootsteps
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbridge.common.texts import error_line
from taskbridge.process.runtime import serves

__all__ = ["BrokerWatchStep", "watched"]

log = logging.getLogger(__name__)

OVERDUE: Final = 2.0
"""Seconds after which an answer that has not come raises suspicion."""
LOOK_EVERY: Final = 1.0
CONFIRM_AFTER: Final = 0.5
"""Seconds that a suspect has for its answer once the broker has answered on a new connection."""
PROBE_TIMEOUT: Final = 1.0
CLOSES_WITHIN: Final = 30.0
"""Seconds for which the watch outlasts the steps of a worker: it closes its connections after they have stopped."""

_connections: WeakValueDictionary[int, _Watched] = WeakValueDictionary()


class _Watched:
    """What a connection of redis-py does besides: it knows when the next answer is due."""

    plain: ClassVar[type]
    """The class of redis-py."""
    _sock: Any

    # kombu looks for this parameter by its name.
    def __init__(self, *arguments: Any, health_check_interval: float = 0, **options: Any) -> None:
        self.due = math.inf
        """When the answer to what was sent is due, in seconds of the monotonic clock."""
        self.heard = time.monotonic()
        """When the last answer came."""
        self.options = options
        above: Any = super()
        above.__init__(*arguments, health_check_interval=health_check_interval, **options)
        _connections[id(self)] = self

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        # Before, since it may have to wait until it can send; after, since it may ask for something itself.
        self.due = time.monotonic()
        above: Any = super()
        above.send_packed_command(*arguments, **options)
        self.due = time.monotonic()

    def send_command(self, *arguments: Any, **options: Any) -> None:
        above: Any = super()
        above.send_command(*arguments, **options)
        if arguments[0] == "BRPOP":
            self.due += float(arguments[-1]) or math.inf

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        # Of several answers each is waited for.
        self.due = min(self.due, time.monotonic())
        above: Any = super()
        try:
            return above.read_response(*arguments, **options)
        finally:
            self.due, self.heard = math.inf, time.monotonic()


def watched(kind: Any) -> type:
    """Return the class of a redis-py connection with what the watch needs."""
    return type(f"Watched{kind.__name__}", (_Watched, kind), {"plain": kind})


def _is_readable(sock: socket.socket) -> bool:
    """Whether something came on this socket that nobody has read, as while the main thread is busy."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _sockets(*, due_before: float, heard_before: float = -math.inf) -> dict[int, tuple[_Watched, socket.socket, float]]:
    """Return silent connections by id, each with its socket and when its answer was due.

    Args:
        due_before: those whose answer was due before this time.
        heard_before: besides, those that wait for no answer and had their last one before this time.
    """
    found = {}
    for reference in _connections.valuerefs():
        one = reference()
        sock: socket.socket | None = getattr(one, "_sock", None)
        if one is None or sock is None:
            continue
        due = one.due
        if due < due_before or (due == math.inf and one.heard < heard_before):
            # It may be closed at any time.
            with suppress(OSError, ValueError):
                if not _is_readable(sock):
                    found[id(one)] = (one, sock, due)
    return found


def _answers(one: _Watched) -> bool:
    """Whether the broker answers on a new connection of the same kind."""
    timeouts = {"socket_timeout": PROBE_TIMEOUT, "socket_connect_timeout": PROBE_TIMEOUT}
    probe: Any = one.plain(**one.options | timeouts | {"retry": Retry(NoBackoff(), 0)})
    try:
        probe.connect()
        probe.send_command("PING")
        with suppress(redis.ResponseError):
            probe.read_response()
    except (redis.RedisError, OSError):
        return False
    finally:
        probe.disconnect()
    return True


class BrokerWatchStep(bootsteps.StartStopStep):
    """Watches connections of the transports of `taskbridge.integration.transport`, in a thread of the main process."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, args=(worker,), name="taskbridge-broker", daemon=True).start()

    def _watch(self, worker: Any) -> None:
        # Not until this step is stopped, which is the first: the others may wait for the broker as they stop.
        ends = math.inf
        while time.monotonic() < ends:
            time.sleep(LOOK_EVERY)
            try:
                self._look()
            except Exception as error:
                log.warning("the look at the broker's connections failed: %s", error_line(error))
            if worker.blueprint.shutdown_complete.is_set():
                ends = min(ends, time.monotonic() + CLOSES_WITHIN)

    def _look(self) -> None:
        suspects = _sockets(due_before=time.monotonic() - OVERDUE)
        if not suspects or not _answers(next(iter(suspects.values()))[0]):
            return
        time.sleep(CONFIRM_AFTER)
        still = _sockets(due_before=time.monotonic() - OVERDUE)
        lost = [due for key, (_, sock, due) in suspects.items() if key in still and still[key][1:] == (sock, due)]
        if not lost:
            return
        # All that were silent since go with it. Else the main thread would find one lost connection after another.
        silent = _sockets(due_before=time.monotonic() - LOOK_EVERY, heard_before=min(lost))
        log.warning(
            "the broker has not answered for %.0f s, and answers on a new connection: %d connections were lost without "
            "notice and are closed, so that this worker reconnects",
            time.monotonic() - min(lost),
            len(silent),
        )
        for _, sock, _ in silent.values():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
