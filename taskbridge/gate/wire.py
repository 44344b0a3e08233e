"""One round trip to Redis with little overhead.

What redis-py does around a command costs a producer more than the gate's script does. So a script is called on a
connection that this module keeps, with redis-py's packing and parsing. If anything goes wrong, redis-py's client takes
over: it reconnects, retries and loads scripts.

Events have a client of their own. Its connections share one deadline for everything that a producer's call does, since
redis-py has timeouts only for single steps.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import BusyLoadingError, NoScriptError, ResponseError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from taskbridge.common.sentinel import SentinelAddress, node_urls
from taskbridge.common.server_errors import (
    REDIS_AWAY,
    REDIS_SWITCHED,
    REDIS_URL,
    SENTINEL_DOWN,
    SENTINEL_LOGIN,
    SENTINEL_NAME,
    is_switched,
    note_variable,
)
from taskbridge.gate.cluster import Nodes, to_slot

__all__ = ["COMMAND", "Call", "Wire", "client", "deadline", "find_primary", "variable_of"]

CHUNK: Final = 500
"""Calls per round trip."""
LONG: Final = 200
"""A command of this many words is sent before the next one is packed."""

_kept: WeakKeyDictionary[redis.ConnectionPool, tuple[int, deque[Any]]] = WeakKeyDictionary()

# redis-py before 5.3 requires a command name, and newer versions warn about it.
COMMAND: Final = ("EVALSHA",) if redis.__version__.startswith(("5.0.", "5.1.", "5.2.")) else ()

Call = tuple[Sequence[str], Sequence[str | float]]
"""Keys and arguments of one call."""

TIMEOUT: Final = 3.0
"""Seconds that a worker waits for a reply of Redis, up to four times: a connection may be lost without notice."""
ASK_SENTINELS_EVERY: Final = 2.0
"""Seconds after which a process that uses its connections asks for the primary again."""
SENTINEL_ANSWERS_WITHIN: Final = 0.05
INTERACTIVE_TIMEOUT: Final = 2.0
"""Seconds that a command or a page waits for a reply of Redis, up to twice."""


def client(
    url: str,
    seconds: float | None = None,
    *,
    interactive: bool = False,
    slot_key: str | None = None,
    variable: str = REDIS_URL,
) -> redis.Redis:
    """Return a client for `url`. It times out instead of hanging if Redis does not answer.

    If the server is no longer the one to use (after a failover), it reconnects. With `max_connections` in the URL,
    callers wait for a free connection. `taskbridge.common.sentinel` describes the URL of a primary behind Sentinel.

    Args:
        url: where Redis is.
        seconds: the longest time that a call may take; the block of `deadline` around the call sets the actual limit.
        interactive: a person waits for the reply, so the client gives up sooner than that of a worker.
        slot_key: a key; if the server is a node of a cluster, the client uses the node with the slot of this key.
        variable: the variable with the URL, which error messages name.

    Raises:
        ValueError: the URL cannot be read.
    """
    if seconds is not None:
        # After a timeout, too little of the deadline is left for another attempt.
        retry = Retry(NoBackoff(), 0)
    else:
        retry = Retry(NoBackoff(), 1) if interactive else Retry(ExponentialBackoff(cap=1, base=0.05), 3)
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": INTERACTIVE_TIMEOUT if interactive else TIMEOUT,
        "socket_connect_timeout": INTERACTIVE_TIMEOUT if interactive else TIMEOUT,
        "retry": retry,
        "retry_on_error": list(REDIS_SWITCHED),
    }
    if url.startswith("unix:"):
        # Not every redis-py version accepts it for a Unix socket.
        del options["socket_connect_timeout"]
    kind: type[redis.ConnectionPool] = redis.ConnectionPool
    if "max_connections=" in url:
        kind = redis.BlockingConnectionPool
        options["timeout"] = seconds or options["socket_timeout"]
    address = SentinelAddress.of(url)
    urls = node_urls(url)
    pool = kind.from_url(urls[0], **options) if address is None else _primary(address, options, seconds)
    if slot_key is not None and url.startswith("redis"):
        pool.connection_class = to_slot(pool.connection_class)
        pool.connection_kwargs["nodes"] = Nodes(urls, slot_key)
    if seconds is not None:
        pool.connection_class = _with_deadline(pool.connection_class)
    if variable != REDIS_URL:
        pool.connection_class = type("NamedConnection", (_Named, pool.connection_class), {"variable": variable})
    return redis.Redis.from_pool(pool)


def variable_of(client: redis.Redis) -> str:
    """Return the variable with the URL of a client."""
    return str(getattr(client.connection_pool.connection_class, "variable", REDIS_URL))


def _primary(address: SentinelAddress, options: dict[str, Any], seconds: float | None) -> redis.ConnectionPool:
    """Return a pool of connections to a primary; Sentinel is asked where that is before each new connection.

    All Sentinels together have as long to answer as one command.
    """
    each = (seconds or options["socket_timeout"]) / len(address.sentinels)
    asking: dict[str, Any] = {
        **options,
        "socket_timeout": each,
        "socket_connect_timeout": each,
        "retry": Retry(NoBackoff(), 0),
        "password": address.sentinel_password,
        **address.tls_options,
    }
    sentinels: Any = _Sentinels
    names = {"db": address.db, "username": address.username, "password": address.password, **address.tls_options}
    primary = sentinels(address.sentinels, sentinel_kwargs=asking).master_for(
        address.master_name, connection_pool_class=PrimaryPool, **names, **options
    )
    pool: redis.ConnectionPool = primary.connection_pool
    return pool


class PrimaryPool(SentinelConnectionPool):
    """Connections to the primary, which notice when the Sentinels have made another server the primary.

    If the old one cannot be reached by the Sentinels, but by this process, then nobody closes its connections.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._asks_at = 0.0

    def is_old(self, connection: Any) -> bool:
        """Whether a connection leads to another server; every few seconds a thread asks for the primary again."""
        now = time.monotonic()
        if now >= self._asks_at:
            self._asks_at = now + ASK_SENTINELS_EVERY
            asking = threading.Thread(target=self._ask, name="taskbridge-sentinel", daemon=True)
            with suppress(RuntimeError):  # the interpreter is shutting down
                asking.start()
                if not issubclass(self.connection_class, _WithDeadline):
                    # Usually it is answered by then; a producer does not wait for it.
                    asking.join(SENTINEL_ANSWERS_WITHIN)
        return bool((connection.host, connection.port) != self.master_address)

    def owns_connection(self, connection: Any) -> bool:
        """Whether this process opened the connection, also if it leads to an old primary.

        redis-py 6 to 8.0 never stop counting a connection that does not belong to the pool, and 8.0 has a maximum.
        """
        return bool(connection.pid == self.pid)

    def _ask(self) -> None:
        with suppress(redis.RedisError):
            self.get_master_address()  # type: ignore[no-untyped-call]


class _Sentinels(Sentinel):
    def discover_master(self, service_name: str) -> Any:
        """See `find_primary`."""
        return find_primary(self, service_name)


def find_primary(manager: Sentinel, name: str) -> tuple[str, int]:
    """Return the address of the primary after the latest failover that a majority of the Sentinels knows of.

    redis-py takes the first answer, which may be that of a Sentinel that is cut off together with an old primary. If no
    majority answers, the latest of the answers counts. A Sentinel that does not answer is asked last from then on.

    Raises:
        MasterNotFoundError: its text is a cause that `taskbridge.common.server_errors` translates; redis-py's own text
            quotes the options of all connections.
        redis.TimeoutError: no Sentinel has answered in time.
    """
    count = len(manager.sentinels)
    failures: list[redis.RedisError] = []
    answers: list[tuple[int, bool, str, int]] = []
    for sentinel in [*manager.sentinels]:
        try:
            primaries: Any = sentinel.sentinel_masters()
        except REDIS_AWAY as error:
            failures.append(error)
            manager.sentinels = [*(other for other in manager.sentinels if other is not sentinel), sentinel]
            continue
        if state := primaries.get(name):
            is_up: bool = manager.check_master_state(state, name)  # type: ignore[no-untyped-call]
            answers.append((state["config-epoch"], is_up, state["ip"], state["port"]))
            if len(answers) > count // 2 and max(answers)[1]:
                break
    _, is_up, host, port = max(answers, default=(0, False, "", 0))
    if is_up:
        return host, port
    if answers:
        raise MasterNotFoundError(SENTINEL_DOWN)
    if len(failures) < count:
        raise MasterNotFoundError(SENTINEL_NAME)
    if any(isinstance(failure, redis.AuthenticationError) for failure in failures):
        raise MasterNotFoundError(SENTINEL_LOGIN)
    if any(isinstance(failure, redis.TimeoutError) for failure in failures):
        raise redis.TimeoutError("no Sentinel has answered in time")
    raise MasterNotFoundError("no Sentinel can be reached")


class deadline:  # noqa: N801 - used like a function
    """Give this thread so many seconds for everything in the block on connections of a client with `seconds`.

    A timeout for each step could be spent several times: for each address of a host, the greeting, a retry.
    """

    # A generator would cost as much as the rest of an event.
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
        """Seconds that are left. A socket timeout of 0 would mean not to wait, a negative one to wait forever."""
        return min(max(self.until - time.monotonic(), 0.001), 10.0)


_deadline: Final = _Deadline()


class _WithDeadline:
    """Overrides of a redis-py connection: each step may take only what is left until the deadline."""

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


class _Named:
    """Mixin for a redis-py connection to a named server: its errors say which variable has the URL."""

    variable: str

    def connect(self) -> None:
        above: Any = super()
        with note_variable(self.variable):
            above.connect()

    def send_packed_command(self, *arguments: Any, **options: Any) -> None:
        above: Any = super()
        with note_variable(self.variable):
            above.send_packed_command(*arguments, **options)

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        above: Any = super()
        with note_variable(self.variable):
            return above.read_response(*arguments, **options)


class Wire:
    """Calls scripts on connections that it keeps from a client's pool: as many as threads ever called at the same time.

    Connections of a pool with a maximum are returned after each call.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._keeps = not isinstance(self._pool, redis.BlockingConnectionPool)
        self._pid = 0
        self._connections: deque[Any] = deque()

    def call(self, script: Any, calls: Sequence[Call]) -> list[Any]:
        """Run a registered script once for each of `calls` and return the replies, with one round trip per 500.

        If the connection breaks, calls that were sent may run twice. If the server is no longer the one to use, all
        connections are replaced and the calls that it refused are sent again.

        Raises: as redis-py's client. If scripts reply with errors, the first one is raised after all calls were made.
            If redis-py's client takes over, its error is raised at once, and the remaining calls are not repeated.
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
        """The connections that are kept. A forked child must not use its parent's, however it was forked."""
        pid = os.getpid()
        if self._pid != pid:
            owner, free = _kept.get(self._pool) or (0, deque())
            if owner != pid:
                free = deque()
                _kept[self._pool] = pid, free
            self._pid, self._connections = pid, free
        return self._connections

    def _drop(self) -> None:
        """Close the connections, so that the next calls reconnect."""
        free = self._free
        while free:
            self._pool.release(free.pop())
        if self._keeps:
            self._pool.disconnect(inuse_connections=False)

    def _exchange(self, sha: str, calls: Sequence[Call]) -> list[Any] | None:
        """Send the calls and return their replies, including errors of the server; None: the connection broke."""
        free = self._free
        try:
            connection = free.pop()
        except IndexError:
            connection = self._pool.get_connection(*COMMAND)
        if isinstance(self._pool, PrimaryPool) and self._pool.is_old(connection):
            connection.disconnect()
            self._pool.release(connection)
            connection = self._pool.get_connection(*COMMAND)
        try:
            commands = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            for part in _sent_together(commands):
                connection.send_packed_command(connection.pack_commands(part))
            replies = [_reply(connection) for _ in calls]
        except BaseException as error:
            # The next call must not read a reply of this one.
            connection.disconnect()
            self._pool.release(connection)
            if isinstance(error, redis.TimeoutError) and not issubclass(self._pool.connection_class, _WithDeadline):
                # The others may be lost too, and each would wait as long.
                self._drop()
            if isinstance(error, REDIS_AWAY):
                return None
            raise
        if self._keeps:
            free.append(connection)
        else:
            if any(map(is_switched, replies)):
                # This one too: not every redis-py version closes only the free connections of such a pool.
                connection.disconnect()
            self._pool.release(connection)
        return replies


def _sent_together(commands: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield the commands in parts, so that Redis can work on a long one while this process packs the next."""
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
