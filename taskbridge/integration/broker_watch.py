"""Detect connections to the broker that were lost silently: never closed, never answered.

Without a timeout, redis-py blocks on such a connection until the operating system gives up, and so does the worker's
main process. A socket timeout would also drop connections to a server that is merely slow, and lose the message of a
`BRPOP` that is answered late. So a thread looks for overdue replies and pings the broker on a new connection. If the
ping is answered and the old connections stay silent, it shuts their sockets down: the blocked call raises, and Celery
reconnects as usual.

The same happens if the Sentinels have made another server the primary, and the old one still answers this worker.
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
"""Seconds after which a missing reply is suspicious."""
LOOK_EVERY: Final = 1.0
CONFIRM_AFTER: Final = 0.5
"""Seconds that a suspect connection has to reply once the broker has answered a ping."""
PROBE_TIMEOUT: Final = 1.0
CLOSES_WITHIN: Final = 30.0
"""Seconds for which the thread outlives the worker's steps: Celery closes its connections after stopping them."""

_connections: WeakValueDictionary[int, _Watched] = WeakValueDictionary()


class _Watched:
    """Mixin for a redis-py connection that tracks when the next reply is due."""

    plain: ClassVar[type]
    """redis-py's own class."""
    _sock: Any

    # kombu looks for this parameter by its name.
    def __init__(self, *arguments: Any, health_check_interval: float = 0, **options: Any) -> None:
        self.due = math.inf
        """When the reply is due, by the monotonic clock; infinite if none is expected."""
        self.heard = time.monotonic()
        """When the last reply arrived."""
        self.options = options
        super().__init__(*arguments, health_check_interval=health_check_interval, **options)  # type: ignore[call-arg]
        _connections[id(self)] = self

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        # Before, because sending may block; again afterwards, because sending may itself exchange commands.
        self.due = time.monotonic()
        super().send_packed_command(*arguments, **options)  # type: ignore[misc]
        self.due = time.monotonic()

    def send_command(self, *arguments: Any, **options: Any) -> None:
        super().send_command(*arguments, **options)  # type: ignore[misc]
        if arguments[0] == "BRPOP":
            self.due += float(arguments[-1]) or math.inf

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        # In a pipeline, each reply is waited for in turn.
        self.due = min(self.due, time.monotonic())
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        finally:
            self.due, self.heard = math.inf, time.monotonic()


def watched(kind: Any) -> type:
    """Return a subclass of a redis-py connection class that can be watched."""
    return type(f"Watched{kind.__name__}", (_Watched, kind), {"plain": kind})


def _is_readable(sock: socket.socket) -> bool:
    """Whether there is unread data on this socket, for example because the main thread is busy."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _sockets(*, due_before: float, heard_before: float = -math.inf) -> dict[int, tuple[_Watched, socket.socket, float]]:
    """Return silent connections by id, each with its socket and when its reply was due.

    Args:
        due_before: include connections whose reply was due before this time.
        heard_before: also include connections that expect no reply and got their last one before this time.
    """
    found = {}
    for reference in _connections.valuerefs():
        one = reference()
        sock: socket.socket | None = getattr(one, "_sock", None)
        if one is None or sock is None:
            continue
        due = one.due
        if due < due_before or (due == math.inf and one.heard < heard_before):
            # Another thread may close it at any time.
            with suppress(OSError, ValueError):
                if not _is_readable(sock):
                    found[id(one)] = (one, sock, due)
    return found


def _answers(one: _Watched) -> bool:
    """Whether the broker answers a ping on a new connection of the same kind."""
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


def _leave_old_primaries() -> None:
    """Shut down the sockets that lead to another server than the one that the Sentinels name."""
    found: dict[str, Any] = {}
    for one, sock in _behind_sentinel():
        primary = one.connection_pool
        with suppress(redis.RedisError, OSError):
            if primary.service_name not in found:
                found[primary.service_name] = primary.get_master_address()
            if found[primary.service_name] != (one.host, one.port):
                log.warning("another server is the broker's primary now: this worker reconnects")
                sock.shutdown(socket.SHUT_RDWR)


def _behind_sentinel() -> list[tuple[Any, socket.socket]]:
    """Return the open connections to a primary that Sentinel watches over, each with its socket."""
    connections: list[Any] = [reference() for reference in _connections.valuerefs()]
    open_ones = [(one, getattr(one, "_sock", None)) for one in connections if hasattr(one, "connection_pool")]
    return [(one, sock) for one, sock in open_ones if sock is not None]


class BrokerWatchStep(bootsteps.StartStopStep):
    """Watches the connections of our transports, in a thread of the worker's main process."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Whether the worker serves our queues."""
        return serves(worker.app)

    def start(self, worker: Any) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, args=(worker,), name="taskbridge-broker", daemon=True).start()

    def _watch(self, worker: Any) -> None:
        # Keep watching after this step is stopped: it is the first, and the others may wait for the broker.
        ends = math.inf
        asking = threading.Thread()
        while time.monotonic() < ends:
            time.sleep(LOOK_EVERY)
            try:
                self._look()
            except Exception as error:
                log.warning("checking the broker connections failed: %s", error_line(error))
            if _behind_sentinel() and not asking.is_alive():
                # Not in this thread: an app may have set no timeout for its Sentinels.
                asking = threading.Thread(target=_leave_old_primaries, name="taskbridge-sentinel", daemon=True)
                asking.start()
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
        # Close every connection that has been silent since, or the main thread would run into one after another.
        silent = _sockets(due_before=time.monotonic() - LOOK_EVERY, heard_before=min(lost))
        log.warning(
            "the broker has not replied for %.0f s but answers on a new connection: closing %d silently lost "
            "connections so that this worker reconnects",
            time.monotonic() - min(lost),
            len(silent),
        )
        for _, sock, _ in silent.values():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
