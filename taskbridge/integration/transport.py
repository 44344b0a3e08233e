"""kombu's Redis transports, without their entries in Redis for the run messages that a worker has.

kombu keeps each message that is not acknowledged in a hash and in a sorted set of Redis: two transactions for each
message. So the message comes again, after the visibility timeout, when its worker is killed. A run message needs none
of this: a lost one comes again by its deadline, within seconds. The worker alone remembers the run messages that it
has, for the prefetch limit and for a warm shutdown. All other messages are treated as before, also those of
`record_event`.

Celery chooses a transport by the setting `broker_transport`. `Transport.Channel` and `Channel.QoS` are there to be
replaced.

Redis may refuse commands for a while: its disk is full (MISCONF), it has too few replicas (NOREPLICAS), it is a replica
itself (READONLY). kombu takes such an answer for an error of the program, and the worker ends. Here it waits, and makes
later what was refused.

What remains: a full Redis lets a worker take a message and refuses its entry. Until the entry is made, seconds after
Redis has memory again, the message is only in the worker, and a kill loses it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
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
from taskbridge.integration.broker_watch import watched
from taskbridge.process.broker import broker_connection

__all__ = [
    "BOUNDED_CONNECTIONS",
    "BROKER_SECONDS",
    "DECLARED_COMMAND",
    "TRANSPORTS",
    "SentinelTransport",
    "Transport",
    "bounded",
    "check_versions",
    "transport_of",
]

DECLARED_COMMAND: Final = "taskbridge_pipelines"
"""The command of Celery's remote control by which a worker tells what pipelines it declares."""
BROKER_SECONDS: Final = 5
BOUNDED_CONNECTIONS: Final = {"socket_timeout": 30, "socket_connect_timeout": BROKER_SECONDS, "socket_keepalive": True}
"""Options of an app's broker with which no process waits for ever on a connection that was lost without notice.

A worker's watch finds such a connection sooner. A shorter time-out would also end connections to a slow server.
"""
REFUSED_WAIT: Final = 1.0
"""Seconds until the broker is asked again what it refused."""

log = logging.getLogger(__name__)


class Refusals:
    """Logs when the broker begins to refuse commands, and when it takes them again."""

    def __init__(self) -> None:
        self._refuses = False

    def refused(self, error: ResponseError) -> None:
        """Note that it refused a command."""
        if not self._refuses:
            log.warning("the broker refuses commands, and this worker waits for it: %s", error_line(error))
        self._refuses = True

    def taken(self) -> None:
        """Note that it took a command of the kind that it refused."""
        if self._refuses:
            log.warning("the broker takes commands again")
        self._refuses = False


class QoS(redis.QoS):
    """The messages that a worker has and did not acknowledge."""

    # For the types: kombu's stubs do not have them all.
    channel: Any
    _delivered: Any
    _flush: Callable[[], None]
    _remove_from_indices: Callable[..., Any]
    # Of the process: a connection that replaces another goes on where that was.
    _refusals = Refusals()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._only_here: set[str] = set()
        """The messages that Redis has no entries of."""
        self._owed: OrderedDict[str, Callable[[], object]] = OrderedDict()
        """Changes of messages that Redis refused, by message. None needs another to be made first."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message. It is in no queue any more, so it is kept also where Redis refuses its entry."""
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
        """Forget a message, and with `requeue` put it back."""
        if not requeue:
            self.ack(delivery_tag)
            return
        if delivery_tag in self._only_here:
            self._put_back(delivery_tag)
        else:
            self._change(delivery_tag, partial(self.restore_by_tag, delivery_tag, leftmost=True))
        virtual.QoS.ack(self, delivery_tag)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Put back messages of workers that died; make changes that were refused."""
        self.make_up()
        try:
            super().restore_visible(*args, **options)
        except ResponseError as error:
            self._refusals.refused(error)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Put back all messages that the worker has, at its end or that of its connection; log what was refused."""
        try:
            if not self._is_given_up():
                self.make_up()
            super().restore_unacked_once(stderr)
        finally:
            self._log_owed()

    def restore_unacked(self, client: Any = None) -> Any:
        """Put back all messages that the worker has, each into its queue.

        Where the connection was lost and given up, or Redis refuses it, they stay away: a run comes again by its
        deadline, and any other message after the visibility timeout.
        """
        self._flush()
        if not self._is_given_up():
            # Those without entries where the next ones are taken from, so that the oldest is the first.
            for tag in [tag for tag in reversed(self._delivered) if tag in self._only_here]:
                self._put_back(tag)
            for tag in [tag for tag in self._delivered if tag not in self._only_here]:
                self._change(tag, partial(self.restore_by_tag, tag, client=client))
        self._delivered.clear()

    def make_up(self) -> None:
        """Make changes that were refused, the latest first, until Redis refuses one."""
        tag = ""
        try:
            while self._owed:
                tag, change = next(reversed(self._owed.items()))
                change()
                del self._owed[tag]
        except ResponseError as error:
            # Redis may refuse one kind and take others, so the next time another one is tried.
            self._owed.move_to_end(tag, last=False)
            self._refusals.refused(error)
        else:
            self._refusals.taken()

    def _change(self, delivery_tag: str, change: Callable[[], object]) -> None:
        """Change a message in Redis, or later where that refuses; `change` can be called again after it failed."""
        if self._is_given_up():
            # The end of a task that outlasted the connection. Its message comes again like all that were lost with it.
            return
        self._owed[delivery_tag] = change
        self._owed.move_to_end(delivery_tag)
        self.make_up()

    def _enter(self, message: Any, delivery_tag: str) -> None:
        super().append(message, delivery_tag)
        self._only_here.discard(delivery_tag)

    def _remove(self, delivery_tag: str) -> None:
        # Anew at each try: a pipeline forgets its commands when they are refused.
        self._remove_from_indices(delivery_tag).execute()

    def _put_back(self, delivery_tag: str) -> None:
        """Put a message that is only here where the next one is taken from."""
        message = self._delivered[delivery_tag]
        told = message.delivery_info

        def put_back() -> None:
            with self.pipe_or_acquire() as pipe:
                # It has an entry all the same where the answer to that was lost.
                self._remove_from_indices(delivery_tag, pipe)
                self.channel._do_restore_message(message._raw, told["exchange"], told["routing_key"], pipe)
                pipe.execute()
            self._only_here.discard(delivery_tag)

        self._change(delivery_tag, put_back)

    def _is_given_up(self) -> bool:
        """Whether the connection was lost; kombu would raise AttributeError here, and that ends a worker."""
        return self.channel.connection is None or self.channel.connection.client is None

    def _log_owed(self) -> None:
        without = sum(tag in self._only_here for tag in self._owed)
        if again := len(self._owed) - without:
            log.warning(
                "the broker refused until the connection ended that %s done or put back: after the visibility timeout "
                "they come again",
                counted(again, "message is", "messages are"),
            )
        if without:
            log.error(
                "the broker took %s from its queues and refused to take them back: runs come again by their "
                "deadlines, others are lost",
                counted(without, "message", "messages"),
            )
        self._owed.clear()
        self._only_here.clear()


def _is_run(message: Any) -> bool:
    return bool(message.headers.get("task") == RUN_TASK)


class _Patient:
    """What a channel of ours does besides: it waits where Redis refuses what a worker asks."""

    unacked_mutex_key: str
    _create_client: Callable[[], Any]
    qos: Any
    _refusals = Refusals()

    # The app's own options are before these.
    socket_connect_timeout: Any = BROKER_SECONDS
    socket_keepalive: Any = True

    def __init__(self, *args: Any, **options: Any) -> None:
        self._in_poll: Any = False
        self._asks_again = 0.0
        super().__init__(*args, **options)
        # Whatever Redis answers, the connection can be used.
        self.connection_errors = redis.Transport.connection_errors

    def wait_until_writable(self) -> None:
        """Wait as long as Redis refuses to write; a worker that is told to stop does."""
        from celery.worker.state import maybe_shutdown  # noqa: PLC0415 - only workers need it

        while True:
            client = self._create_client()
            try:
                # As kombu does it at this time. It ends by itself, and changes nothing where another worker has it.
                client.set(self.unacked_mutex_key, "", nx=True, px=1)
            except ResponseError as error:
                self._refusals.refused(error)
                maybe_shutdown()
                # The next try asks whoever has the address then: after a failover, no longer this server.
                client.connection_pool.disconnect()
                time.sleep(REFUSED_WAIT)
            else:
                self._refusals.taken()
                return

    def _brpop_start(self, *args: Any, **options: Any) -> None:
        if time.monotonic() < self._asks_again:
            return
        above: Any = super()
        try:
            above._brpop_start(*args, **options)
        except ResponseError as error:  # to the PING before it
            self._in_poll = None
            self._rest(error)

    def _brpop_read(self, **options: Any) -> Any:
        above: Any = super()
        try:
            taken = above._brpop_read(**options)
        except Empty:
            self._took()
            raise
        except ResponseError as error:
            self._rest(error)
            raise Empty from error
        self._took()
        return taken

    def _receive(self) -> Any:
        above: Any = super()
        try:
            return above._receive()
        except ResponseError as error:  # to a PING
            raise Empty from error

    def maybe_refresh_binding_expiry(self) -> None:
        """Keep the queues of remote control alive; kombu does it again each second where that failed."""
        above: Any = super()
        with suppress(ResponseError):
            above.maybe_refresh_binding_expiry()

    def _took(self) -> None:
        self._refusals.taken()
        self.qos.make_up()

    def _rest(self, error: ResponseError) -> None:
        self._refusals.refused(error)
        if isinstance(error, ReadOnlyError):
            raise RedisConnectionError("the server became a replica, so this worker reconnects") from error
        self._asks_again = time.monotonic() + REFUSED_WAIT


class _PatientTransport:
    """What a transport of ours does besides: no answer of Redis ends a worker."""

    cycle: Any
    connection_errors = (*redis.Transport.connection_errors, ResponseError)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let a worker's event loop use this connection, once Redis takes what it needs for a start."""
        for channel in list(self.cycle._channels):
            channel.wait_until_writable()
        above: Any = super()
        above.register_with_event_loop(connection, loop)


class Channel(_Patient, redis.Channel):
    """kombu's channel, with our `QoS`."""

    QoS = QoS
    connection_class = watched(redis.Channel.connection_class)
    connection_class_ssl = watched(redis.Channel.connection_class_ssl)


class Transport(_PatientTransport, redis.Transport):
    """`redis://` and `rediss://`."""

    Channel = Channel


class SentinelChannel(_Patient, redis.SentinelChannel):
    """kombu's channel, with our `QoS`."""

    QoS = QoS
    connection_class = watched(redis.SentinelChannel.connection_class)
    connection_class_ssl = watched(redis.SentinelChannel.connection_class_ssl)


class SentinelTransport(_PatientTransport, redis.SentinelTransport):
    """`sentinel://`."""

    Channel = SentinelChannel


# TLS has a name of its own, since a connection is shown as a URL by it.
SecureTransport = Transport

_NAMES: Final = {
    scheme: f"{__name__}:{name}"
    for scheme, name in (("redis", "Transport"), ("rediss", "SecureTransport"), ("sentinel", "SentinelTransport"))
}
TRANSPORTS: Final = frozenset(_NAMES.values())
"""What `broker_transport` is where a worker has a transport of ours."""

# Celery's log shows a connection as a URL. Its scheme is the transport's name, or what that is an alias of.
Connection.resolve_aliases = {**Connection.resolve_aliases, **{name: scheme for scheme, name in _NAMES.items()}}


def transport_of(conf: Any) -> str | None:
    """Return what `broker_transport` should be for an app's broker; None: what it is.

    An app that chose a transport keeps it. So do `redis+socket://`, whose URL chooses one in any case, TLS whose
    options kombu would add for its own transport alone, and brokers that are no Redis.

    Args:
        conf: the app's configuration.
    """
    brokers = conf.broker_read_url
    first = brokers if isinstance(brokers, str) or not brokers else brokers[0]
    name = _NAMES.get(str(first).partition("://")[0])
    if conf.broker_transport or name is None or not conf.broker_transport_options.get("ack_emulation", True):
        return None
    ours, theirs = (Connection(first, transport=one, ssl=conf.broker_use_ssl) for one in (name, None))
    return name if ours.ssl == theirs.ssl else None


def bounded(app: Celery) -> dict[str, Any]:
    """Return options of a connection to the app's broker that gives a silent server up after `BROKER_SECONDS`."""
    if not str(app.conf.broker_url).startswith("redis"):
        return {}
    # Without these, kombu waits for ever for a server that accepts and says nothing.
    return {"transport_options": {"socket_timeout": BROKER_SECONDS, "socket_connect_timeout": BROKER_SECONDS}}


def check_versions(app: Celery) -> None:
    """See that kombu works with the redis-py that is installed; whether the broker can be reached is not looked at.

    Raises:
        ConfigurationError: kombu has no such broker, or needs a library for it.
        Unavailable: it does not; the message says what to install.
    """
    with broker_connection(app, **bounded(app)) as connection:
        if connection.transport.driver_type != "redis":
            return
        try:
            # kombu says it here and not before.
            connection.channel()
        except VersionMismatch:
            with translated_errors():
                raise
        except Exception:
            return
