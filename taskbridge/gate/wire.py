"""One round trip to Redis by the shortest way.

What redis-py does around a command costs a producer more than the gate's script does. So a script is called on a
connection that this module keeps, with redis-py's own packing and parsing; whatever goes wrong there is left to
redis-py's client, which connects anew, tries again and loads scripts.

Events have a client of their own. Its connections share one deadline for all that a producer's call does, and redis-py
has time-outs for single steps only.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import BusyLoadingError, NoScriptError, ResponseError
from redis.retry import Retry

from taskbridge.common.server_errors import REDIS_AWAY, REDIS_SWITCHED, is_switched

__all__ = ["COMMAND", "Call", "Wire", "client", "deadline"]

CHUNK: Final = 500
"""Calls of one round trip."""
LONG: Final = 200
"""Words of a command that is sent before the next one is packed."""

_kept: WeakKeyDictionary[redis.ConnectionPool, tuple[int, deque[Any]]] = WeakKeyDictionary()

# redis-py before 5.3 asks for a command's name, and newer ones warn of it.
COMMAND: Final = ("EVALSHA",) if redis.__version__.startswith(("5.0.", "5.1.", "5.2.")) else ()

Call = tuple[Sequence[str], Sequence[str | float]]
"""Keys and arguments of one call."""


TIMEOUT: Final = 3.0
"""Seconds that a worker waits for an answer of Redis, up to four times: a connection may be lost without notice."""
INTERACTIVE_TIMEOUT: Final = 2.0
"""Seconds that a command or a page waits for an answer of Redis, up to twice."""


def client(url: str, seconds: float | None = None, *, interactive: bool = False) -> redis.Redis:
    """Return a client for `url`. It times out rather than hang where Redis does not answer.

    Where the server is not the one to talk to any more, its connection is made anew. With `max_connections` in the URL,
    whoever finds all of them in use waits for one.

    Args:
        url: where Redis is.
        seconds: seconds that its user has at the most; it waits no longer than the block of `deadline` around the call.
        interactive: somebody waits for what is asked here, so it gives up sooner than a worker.

    Raises:
        ValueError: the URL cannot be read.
    """
    tries_once_more = interactive or seconds is not None
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": INTERACTIVE_TIMEOUT if interactive else TIMEOUT,
        "socket_connect_timeout": INTERACTIVE_TIMEOUT if interactive else TIMEOUT,
        "retry": Retry(NoBackoff(), 1) if tries_once_more else Retry(ExponentialBackoff(cap=1, base=0.05), 3),
        "retry_on_error": list(REDIS_SWITCHED),
    }
    if url.startswith("unix:"):
        # Not every redis-py takes it for a socket of the file system.
        del options["socket_connect_timeout"]
    kind: type[redis.ConnectionPool] = redis.ConnectionPool
    if "max_connections=" in url:
        kind = redis.BlockingConnectionPool
        options["timeout"] = seconds or options["socket_timeout"]
    pool = kind.from_url(url, **options)
    if seconds is not None:
        pool.connection_class = _with_deadline(pool.connection_class)
    return redis.Redis.from_pool(pool)


class deadline:  # noqa: N801 - used as a function is
    """Give this thread so many seconds for all that it does on seconds connections in the block.

    A timeout for each step would be spent several times: by each address of a name, the greeting, another try.
    """

    # A generator would cost each event as much as the rest of it.
    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        _deadline.until = time.monotonic() + self._seconds

    def __exit__(self, *_: object) -> None:
        _deadline.until = math.inf


class _Deadline(threading.local):
    until = math.inf

    @property
    def left(self) -> float:
        """Seconds that are left; a socket with a timeout of 0 would not wait, and one with less would wait for ever."""
        return min(max(self.until - time.monotonic(), 0.001), 10.0)


_deadline: Final = _Deadline()


class _WithDeadline:
    """What a connection of redis-py does otherwise: each step has what is left of the time, and no longer."""

    _sock: Any

    socket_timeout = socket_connect_timeout = property(lambda _: _deadline.left, lambda _, _given: None)

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        if self._sock is not None:
            self._sock.settimeout(_deadline.left)
        above: Any = super()
        above.send_packed_command(*arguments, **options)


@cache
def _with_deadline(kind: type) -> type:
    return type(f"Deadline{kind.__name__}", (_WithDeadline, kind), {})


class Wire:
    """Calls scripts on connections kept of a client's pool: as many as threads ever called at the same time.

    A pool that may not have many gets them back after each call.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._keeps = not isinstance(self._pool, redis.BlockingConnectionPool)
        self._pid = 0
        self._connections: deque[Any] = deque()

    def call(self, script: Any, calls: Sequence[Call]) -> list[Any]:
        """Run a registered script once for each of `calls` and return the replies: one round trip for each 500.

        Where the connection breaks, all that it carried may run twice. Where the server is not the one to talk to any
        more, all connections are made anew and what it refused is sent once more.

        Raises: as redis-py's client, when all calls were made; the first error of several.
        """
        replies: list[Any] = []
        for start in range(0, len(calls), CHUNK):
            chunk = calls[start : start + CHUNK]
            answers = self._exchange(script.sha, chunk) or [NoScriptError()] * len(chunk)
            if any(map(is_switched, answers)):
                self._drop()
            replies += [
                script(*call) if isinstance(answer, NoScriptError) or is_switched(answer) else answer
                for call, answer in zip(chunk, answers, strict=True)
            ]
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    @property
    def _free(self) -> deque[Any]:
        """The connections that are kept. A forked child must not talk on its parent's, however it was forked."""
        pid = os.getpid()
        if self._pid != pid:
            owner, free = _kept.get(self._pool) or (0, deque())
            if owner != pid:
                free = deque()
                _kept[self._pool] = pid, free
            self._pid, self._connections = pid, free
        return self._connections

    def _drop(self) -> None:
        """Let the next calls connect anew."""
        free = self._free
        while free:
            self._pool.release(free.pop())
        if self._keeps:
            self._pool.disconnect(inuse_connections=False)

    def _exchange(self, sha: str, calls: Sequence[Call]) -> list[Any] | None:
        """Send the calls and read their replies, errors of the server among them; None: the connection broke."""
        free = self._free
        try:
            connection = free.pop()
        except IndexError:
            connection = self._pool.get_connection(*COMMAND)
        try:
            commands = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            for some in _sent_together(commands):
                connection.send_packed_command(connection.pack_commands(some))
            replies = [_reply(connection) for _ in calls]
        except BaseException as error:
            # A reply that was not read must not become the next call's.
            connection.disconnect()
            self._pool.release(connection)
            if isinstance(error, redis.TimeoutError) and not issubclass(self._pool.connection_class, _WithDeadline):
                # The others may be lost too, and each would be waited for as long.
                self._drop()
            if isinstance(error, REDIS_AWAY):
                return None
            raise
        if self._keeps:
            free.append(connection)
        else:
            if any(map(is_switched, replies)):
                # Itself: not every redis-py closes only those of such a pool that are free.
                connection.disconnect()
            self._pool.release(connection)
        return replies


def _sent_together(commands: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield the commands in parts: Redis works on a long one while this process packs the next."""
    start = 0
    for at, command in enumerate(commands, 1):
        if len(command) >= LONG or at == len(commands):
            yield commands[start:at]
            start = at


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except (ResponseError, BusyLoadingError) as error:
        return error
