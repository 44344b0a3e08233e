"""kombu's Redis transports, without the bookkeeping in Redis for run messages.

kombu stores each unacknowledged message in a hash and a sorted set, which costs two transactions per message, so that
it is redelivered after the visibility timeout if its worker is killed. Run messages do not need this: a lost one is
republished by its deadline within seconds. So the worker keeps them in memory only, for the prefetch limit and for a
warm shutdown. All other messages, including those of `record_event`, are treated as in kombu.

Celery chooses a transport by the setting `broker_transport`; kombu lets subclasses replace `Transport.Channel` and
`Channel.QoS`.

Redis may refuse commands for a while: its disk is full (MISCONF), it has too few replicas (NOREPLICAS), or it is a
replica (READONLY). kombu treats such a reply as a bug in the program, and the worker ends. Here the worker waits, and
repeats later what was refused.

One gap remains: a Redis that is out of memory lets a worker take a message but refuses to store its entry. Until the
entry is stored, seconds after Redis has memory again, the message exists only in the worker, and a kill loses it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any, Final

from celery import Celery
from kombu import Connection
from kombu.exceptions import VersionMismatch
from kombu.transport import redis, virtual
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import counted, error_line
from taskbridge.gate.message import RUN_TASK
from taskbridge.gate.wire import find_primary
from taskbridge.integration.broker_watch import watched
from taskbridge.process.connections import broker_connection

__all__ = [
    "BOUNDED_CONNECTIONS",
    "BROKER_SECONDS",
    "DECLARED_COMMAND",
    "REDIS_SCHEMES",
    "TRANSPORTS",
    "FailoverConnection",
    "SentinelTransport",
    "Transport",
    "bounded",
    "check_versions",
    "scheme_of_broker",
    "transport_of",
]

DECLARED_COMMAND: Final = "taskbridge_pipelines"
"""The remote control command that returns the pipelines which a worker declares."""
BROKER_SECONDS: Final = 5
BOUNDED_CONNECTIONS: Final = {"socket_timeout": 30, "socket_connect_timeout": BROKER_SECONDS, "socket_keepalive": True}
"""Broker options with which no process blocks forever on a silently lost connection.

Workers detect such a connection sooner. A shorter timeout would also drop connections to a slow server.
"""
REFUSED_WAIT: Final = 1.0
"""Seconds until a refused command is sent again."""

log = logging.getLogger(__name__)


class Refusals:
    """Logs when the broker starts to refuse commands, and when it accepts them again."""

    def __init__(self) -> None:
        self._refuses = False

    def refused(self, error: ResponseError) -> None:
        """The broker refused a command."""
        if not self._refuses:
            log.warning("the broker refuses commands, and this worker waits: %s", error_line(error))
        self._refuses = True

    def taken(self) -> None:
        """The broker accepted a command of the kind that it refused."""
        if self._refuses:
            log.warning("the broker accepts commands again")
        self._refuses = False


class QoS(redis.QoS):
    """The unacknowledged messages of a worker."""

    # Types that kombu's stubs lack.
    channel: Any
    _delivered: Any
    _flush: Callable[[], None]
    _remove_from_indices: Callable[..., Any]
    # Shared by the process: a new connection continues where the previous one was.
    _refusals = Refusals()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._only_here: set[str] = set()
        """The messages that have no entry in Redis."""
        self._owed: OrderedDict[str, Callable[[], object]] = OrderedDict()
        """Changes that Redis refused, by message. They can be repeated in any order."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Keep a message. It is no longer in any queue, so keep it even if Redis refuses its entry."""
        self._only_here.add(delivery_tag)
        virtual.QoS.append(self, message, delivery_tag)
        if not _is_run(message):
            self._change(delivery_tag, partial(self._enter, message, delivery_tag))

    def ack(self, delivery_tag: str) -> None:
        """Forget a message."""
        if delivery_tag in self._only_here:
            self._owed.pop(delivery_tag, None)
            self._only_here.discard(delivery_tag)
        else:
            self._change(delivery_tag, partial(self._remove, delivery_tag))
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message; with `requeue`, return it to its queue."""
        if not requeue:
            self.ack(delivery_tag)
            return
        if delivery_tag in self._only_here:
            self._put_back(delivery_tag)
        else:
            self._change(delivery_tag, partial(self.restore_by_tag, delivery_tag, leftmost=True))
        virtual.QoS.ack(self, delivery_tag)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Requeue the messages of dead workers, and repeat refused changes."""
        self.make_up()
        try:
            super().restore_visible(*args, **options)
        except ResponseError as error:
            self._refusals.refused(error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Requeue all messages when the worker or its connection ends, and log what Redis refused."""
        try:
            if not self._is_given_up():
                self.make_up()
            super().restore_unacked_once(stderr)
        finally:
            self._log_owed()

    def restore_unacked(self, client: Any = None) -> Any:
        """Return all messages of the worker to their queues.

        If the connection was abandoned or Redis refuses, they are not requeued: a run is republished by its deadline,
        and any other message is redelivered after the visibility timeout.
        """
        self._flush()
        if not self._is_given_up():
            # Those without entries go to the head of the queue, the oldest one last, so that it is taken first.
            for tag in [tag for tag in reversed(self._delivered) if tag in self._only_here]:
                self._put_back(tag)
            for tag in [tag for tag in self._delivered if tag not in self._only_here]:
                self._change(tag, partial(self.restore_by_tag, tag, client=client))
        self._delivered.clear()

    def make_up(self) -> None:
        """Repeat refused changes, the latest first, until Redis refuses one."""
        tag = ""
        try:
            while self._owed:
                tag, change = next(reversed(self._owed.items()))
                change()
                del self._owed[tag]
        except ResponseError as error:
            # Redis may refuse one kind of change and accept others, so try another one next time.
            self._owed.move_to_end(tag, last=False)
            self._refusals.refused(error)
        else:
            self._refusals.taken()

    def _change(self, delivery_tag: str, change: Callable[[], object]) -> None:
        """Change a message in Redis now, or later if Redis refuses; `change` must be repeatable."""
        if self._is_given_up():
            # A task outlived its connection. Its message is redelivered, like all that were lost with the connection.
            return
        self._owed[delivery_tag] = change
        self._owed.move_to_end(delivery_tag)
        self.make_up()

    def _enter(self, message: Any, delivery_tag: str) -> None:
        super().append(message, delivery_tag)
        self._only_here.discard(delivery_tag)

    def _remove(self, delivery_tag: str) -> None:
        # Built again for each attempt: a pipeline discards its commands when they are refused.
        self._remove_from_indices(delivery_tag).execute()

    def _put_back(self, delivery_tag: str) -> None:
        """Return a message without an entry to the head of its queue."""
        message = self._delivered[delivery_tag]
        info = message.delivery_info

        def put_back() -> None:
            with self.pipe_or_acquire() as pipe:
                # It does have an entry if the reply to storing it was lost.
                self._remove_from_indices(delivery_tag, pipe)
                self.channel._do_restore_message(message._raw, info["exchange"], info["routing_key"], pipe)
                pipe.execute()
            self._only_here.discard(delivery_tag)

        self._change(delivery_tag, put_back)

    def _is_given_up(self) -> bool:
        """Whether the connection was abandoned. kombu would raise AttributeError, which ends a worker."""
        return self.channel.connection is None or self.channel.connection.client is None

    def _log_owed(self) -> None:
        without = sum(tag in self._only_here for tag in self._owed)
        if again := len(self._owed) - without:
            log.warning(
                "the broker refused to acknowledge or requeue %s before the connection ended: they will be redelivered "
                "after the visibility timeout",
                counted(again, "message"),
            )
        if without:
            log.error(
                "%s could not be returned to the broker: runs are republished by their deadlines, others are lost",
                counted(without, "message", "messages"),
            )
        self._owed.clear()
        self._only_here.clear()


def _is_run(message: Any) -> bool:
    return bool(message.headers.get("task") == RUN_TASK)


class _WaitingChannel:
    """Mixin for a channel that waits while Redis refuses commands."""

    QoS: Any = QoS
    unacked_mutex_key: str
    _create_client: Callable[[], Any]
    qos: Any
    _refusals = Refusals()

    # The app's own options override these.
    socket_connect_timeout: Any = BROKER_SECONDS
    socket_keepalive: Any = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._in_poll: Any = False
        self._asks_again = 0.0
        super().__init__(*args, **options)
        # An error reply does not mean that the connection is broken.
        self.connection_errors = redis.Transport.connection_errors

    def wait_until_writable(self) -> None:
        """Wait while Redis refuses writes, unless the worker is told to stop."""
        from celery.worker.state import maybe_shutdown  # noqa: PLC0415 - only workers need it

        while True:
            client = self._create_client()
            try:
                # kombu's own mutex: the key expires by itself, and nothing changes if another worker holds it.
                client.set(self.unacked_mutex_key, "", nx=True, px=1)
            except ResponseError as error:
                self._refusals.refused(error)
                maybe_shutdown()
                # Reconnect for the next attempt: after a failover another server has the address.
                client.connection_pool.disconnect()
                time.sleep(REFUSED_WAIT)
            else:
                self._refusals.taken()
                return

    def _brpop_start(self, *args: Any, **options: Any) -> None:
        if time.monotonic() < self._asks_again:
            return
        try:
            super()._brpop_start(*args, **options)  # type: ignore[misc]
        except ResponseError as error:  # to the PING before it
            self._in_poll = None
            self._rest(error)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            taken = super()._brpop_read(**options)  # type: ignore[misc]
        except Empty:
            self._took()
            raise
        except ResponseError as error:
            self._rest(error)
            raise Empty from error
        self._took()
        return taken

    def _receive(self) -> Any:
        try:
            return super()._receive()  # type: ignore[misc]
        except ResponseError as error:  # to a PING
            raise Empty from error

    def maybe_refresh_binding_expiry(self) -> None:
        """Keep the remote control queues alive; kombu retries each second if that failed."""
        with suppress(ResponseError):
            super().maybe_refresh_binding_expiry()  # type: ignore[misc]

    def _took(self) -> None:
        self._refusals.taken()
        self.qos.make_up()

    def _rest(self, error: ResponseError) -> None:
        self._refusals.refused(error)
        if isinstance(error, ReadOnlyError):
            raise RedisConnectionError("the server is now a replica: reconnecting") from error
        self._asks_again = time.monotonic() + REFUSED_WAIT


class _WaitingTransport:
    """Mixin for a transport whose worker does not end because of an error reply."""

    cycle: Any
    connection_errors = (*redis.Transport.connection_errors, ResponseError)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Register with the worker's event loop once Redis accepts writes."""
        for channel in list(self.cycle._channels):
            channel.wait_until_writable()
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]


class Channel(_WaitingChannel, redis.Channel):
    """kombu's channel, with our `QoS`."""

    connection_class = watched(redis.Channel.connection_class)
    connection_class_ssl = watched(redis.Channel.connection_class_ssl)


class Transport(_WaitingTransport, redis.Transport):
    """`redis://` and `rediss://`."""

    Channel = Channel


class SentinelChannel(_WaitingChannel, redis.SentinelChannel):
    """kombu's channel, with our `QoS`."""

    connection_class = watched(redis.SentinelChannel.connection_class)
    connection_class_ssl = watched(redis.SentinelChannel.connection_class_ssl)

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        pool = super()._sentinel_managed_pool(asynchronous)  # type: ignore[misc]
        pool.sentinel_manager.discover_master = partial(find_primary, pool.sentinel_manager)
        return pool


class SentinelTransport(_WaitingTransport, redis.SentinelTransport):
    """`sentinel://`."""

    Channel = SentinelChannel


# TLS has a name of its own, because the name decides the scheme of the URL that logs show.
SecureTransport = Transport

_NAMES: Final = {
    scheme: f"{__name__}:{name}"
    for scheme, name in (("redis", "Transport"), ("rediss", "SecureTransport"), ("sentinel", "SentinelTransport"))
}
TRANSPORTS: Final = frozenset(_NAMES.values())
"""The values of `broker_transport` that name our transports."""
REDIS_SCHEMES: Final = frozenset(_NAMES)

# Celery logs a connection as a URL, whose scheme is the transport's name unless that is an alias.
Connection.resolve_aliases = {**Connection.resolve_aliases, **{name: scheme for scheme, name in _NAMES.items()}}


class FailoverConnection(Connection):
    """kombu's connection, which keeps our transport when it switches to the next of several broker URLs."""

    def switch(self, conn_str: str) -> None:
        """Switch to another URL."""
        super().switch(conn_str)
        self.transport_cls = _NAMES.get(self.transport_cls, self.transport_cls)


def _first_broker(conf: Any) -> Any:
    brokers = conf.broker_read_url
    return brokers if isinstance(brokers, str) or not brokers else brokers[0]


def scheme_of_broker(conf: Any) -> str:
    """Return the scheme of an app's first broker URL."""
    return str(_first_broker(conf)).partition("://")[0]


def transport_of(conf: Any) -> str | None:
    """Return what to set an app's `broker_transport` to; None: leave it as it is.

    It is left alone if the app has chosen a transport, if the URL does (`redis+socket://`), if kombu would add TLS
    options for its own transport only, and if the broker is not Redis.

    Args:
        conf: the app's configuration.
    """
    first, name = _first_broker(conf), _NAMES.get(scheme_of_broker(conf))
    if conf.broker_transport or name is None or not conf.broker_transport_options.get("ack_emulation", True):
        return None
    ours, theirs = (Connection(first, transport=one, ssl=conf.broker_use_ssl) for one in (name, None))
    return name if ours.ssl == theirs.ssl else None


def bounded(app: Celery, broker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options of a connection, `broker`, with which a silent one times out after `BROKER_SECONDS`."""
    options = {**(broker or {})}
    if not str(options.get("url") or app.conf.broker_url).startswith(("redis", "sentinel")):
        return options
    # Without these, kombu waits forever for a server that accepts a connection and never replies.
    timeouts = {"socket_timeout": BROKER_SECONDS, "socket_connect_timeout": BROKER_SECONDS}
    return options | {"transport_options": options.get("transport_options", {}) | timeouts}


def check_versions(app: Celery) -> None:
    """Check that kombu supports the broker and works with the installed redis-py. It need not be reachable.

    Raises:
        ConfigurationError: kombu does not support the broker, or needs another library for it.
        Unavailable: the versions do not match; the message says what to install.
    """
    with broker_connection(app, **bounded(app)) as connection:
        if connection.transport.driver_type != "redis":
            return
        try:
            # kombu checks its versions here.
            connection.channel()
        except VersionMismatch:
            with translated_errors():
                raise
        except Exception:
            return
