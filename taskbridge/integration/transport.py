"""kombu's Redis transports, without their entries in Redis for the run messages that a worker has.

kombu keeps each message that is not acknowledged in a hash and in a sorted set of Redis: two transactions for each
message. So the message comes again, after the visibility timeout, when its worker is killed. A run message needs none
of this: a lost one comes again by its deadline, within seconds. The worker alone remembers the run messages that it
has, for the prefetch limit and for a warm shutdown. All other messages are treated as before, also those of
`record_event`.

Celery chooses a transport by the setting `broker_transport`. `Transport.Channel` and `Channel.QoS` are there to be
replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from celery import Celery
from kombu import Connection
from kombu.exceptions import VersionMismatch
from kombu.transport import redis, virtual

from taskbridge.gate.message import RUN_TASK
from taskbridge.process.broker import broker_connection
from taskbridge.process.translation import translated_errors

__all__ = [
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


class QoS(redis.QoS):
    """The messages that a worker has and did not acknowledge."""

    # For the types: kombu's stubs do not have them all.
    channel: Any
    _delivered: Any
    _flush: Callable[[], None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._runs: set[str] = set()

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message."""
        if message.headers.get("task") == RUN_TASK:
            self._runs.add(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message."""
        if delivery_tag in self._runs:
            self._runs.discard(delivery_tag)
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message, and with `requeue` put it back."""
        if delivery_tag not in self._runs:
            super().reject(delivery_tag, requeue=requeue)
            return
        if requeue:
            self._put_back([self._delivered[delivery_tag]])
        self.ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> Any:
        """Put back all messages that the worker has, each into its queue.

        Where the connection was lost and given up, they stay away: a run comes again by its deadline, and any other
        message after the visibility timeout.
        """
        self._flush()
        if self.channel.connection.client is None:
            # kombu would raise AttributeError here, and that ends a worker, as no error of a connection does.
            self._runs.clear()
            self._delivered.clear()
            return None
        self._put_back([message for tag, message in self._delivered.items() if tag in self._runs])
        for tag in self._runs:
            self._delivered.pop(tag, None)
        self._runs.clear()
        return super().restore_unacked(client)

    def _put_back(self, messages: list[Any]) -> None:
        """Put messages where the next ones are taken from, so that the oldest is the first."""
        with self.pipe_or_acquire() as pipe:
            for message in reversed(messages):
                told = message.delivery_info
                self.channel._do_restore_message(message._raw, told["exchange"], told["routing_key"], pipe)
            pipe.execute()


class Channel(redis.Channel):
    """kombu's channel, with our `QoS`."""

    QoS = QoS


class Transport(redis.Transport):
    """`redis://` and `rediss://`."""

    Channel = Channel


class SentinelChannel(redis.SentinelChannel):
    """kombu's channel, with our `QoS`."""

    QoS = QoS


class SentinelTransport(redis.SentinelTransport):
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
