"""The run message: made by Celery and kombu once, then filled in by a Lua script.

If gate and broker are one Redis, the script that decides that a run must start also pushes its message. It pushes what
Celery itself would publish: the message is published once into kombu's in-memory transport, read back as kombu would
send it, and split where tenant and ids are. A test compares the result with a message that went through Redis the
ordinary way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import redis

from taskbridge.common.sentinel import SENTINEL_PORT, SentinelAddress, node_urls
from taskbridge.errors import ConfigurationError
from taskbridge.gate.scripts import read

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "PROBE",
    "RUN_TASK",
    "RUN_TASK_TEXT",
    "arguments_text",
    "check_serializer",
    "connection_of",
    "lua_message",
    "serializer_of",
    "shared_prefix",
    "task_serializer",
]

RUN_TASK: Final = "taskbridge.run"
JSON: Final = frozenset({"json", "application/json"})
RUN_TASK_TEXT: Final = json.dumps({"task": RUN_TASK})[1:-1]
"""How the text of a run's message names its task."""
PROBE: Final = "taskbridge.probe"
"""The name that a probe's message has in place of a pipeline; no pipeline can have this name."""

# Markers in the message, and the Lua expressions that replace them. A marker is a whole JSON string with a NUL in it,
# so nothing else in the message can look like one.
_ID: Final = "\x00id"
_ARGUMENTS: Final = "\x00arguments"
_BODY: Final = "\x00body"
_QUEUE: Final = "\x00queue"
_LUA: Final = {
    json.dumps(marker): f"cjson.encode({name})"
    for marker, name in ((_ID, "id"), (_ARGUMENTS, "arguments"), (_BODY, "body"), (_QUEUE, "queue"))
}

# Constant, so that all producers have the same script text and Redis keeps one copy.
_ORIGIN: Final = "taskbridge"


def arguments_text(*arguments: Any) -> str:
    """Return how a run's arguments are shown (`argsrepr`, in Flower and in logs): as JSON, which Lua can write too."""
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def lua_message(app: Celery, queue_prefix: str = "") -> str:
    """Return the text of `publish.lua` with the run message of `app` filled in.

    `queue_prefix` is what kombu puts before a queue's name in Redis (`global_keyprefix`) but not into the message.
    """
    envelope, embed = _published(app)
    filled_in = {
        "{{embed}}": _lua_string(json.dumps(embed)),
        "{{name_at}}": str(len(queue_prefix.encode()) + 1),
        "{{message}}": _lua_concatenation(json.dumps(envelope)),
    }
    text = read("publish.lua")
    for marker, value in filled_in.items():
        text = text.replace(marker, value)
    return text


def shared_prefix(app: Celery, gate_url: str, queues: Sequence[str], **broker: Any) -> str | None:
    """Return what kombu puts before the names of `queues` if scripts on the gate's Redis can push to them.

    None, unless it is certain that the app's producers and workers both use the gate's database, and that workers read
    each queue from the list with its name. Otherwise messages must be published the ordinary way.

    Args:
        app: the app whose broker is examined.
        gate_url: the URL of the gate.
        queues: names of queues.
        broker: options as `connection_of` takes them.
    """
    try:
        gate = _address_of_gate(gate_url)
        connections = [connection_of(app, write=write, **broker) for write in (True, False)]
        channels = [_channel(connection) for connection in connections]
    except Exception:
        # An invalid URL or option is reported when something connects.
        return None
    prefixes = {channel.global_keyprefix for channel in channels if channel is not None}
    if None in channels or len(prefixes) > 1 or any(_address_of(channel) != gate for channel in channels):
        return None
    for channel in channels:
        for queue in queues:
            if queue not in {channel._q_for_pri(queue, step) for step in channel.priority_steps}:
                return None
    return str(prefixes.pop())


def connection_of(
    app: Celery, *, write: bool, url: str = "", transport_options: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Return kombu's connection to the broker of an app, or to another one, which is opened on first use.

    Another broker shares the app's `broker_transport_options`, and nothing else: transport, TLS and user are those of
    its URL.

    Args:
        app: the app.
        write: use the broker for sending messages, if the app has a separate one.
        url: the URL of another broker.
        transport_options: further options of the transport.
        options: other options of kombu's `Connection`.
    """
    if not url:
        connect = app.connection_for_write if write else app.connection_for_read
        return connect(transport_options=transport_options, **options)
    shared: dict[str, Any] = app.conf.broker_transport_options
    return app.amqp.Connection(url, transport_options={**shared, **(transport_options or {})}, **options)


def _channel(connection: Any) -> Any:
    """Return kombu's channel of a connection before it connects; None unless it leads to a single primary."""
    from kombu.transport.redis import Channel, SentinelChannel  # noqa: PLC0415 - not needed to read

    kind = connection.transport.Channel
    if not issubclass(kind, Channel) or (len(connection.alt) > 1 and not issubclass(kind, SentinelChannel)):
        return None
    # Its constructor would connect.
    channel = kind.__new__(kind)
    channel.connection = connection.transport
    for name in kind.from_transport_options:
        if name in connection.transport_options:
            setattr(channel, name, connection.transport_options[name])
    # Without the name of its primary, kombu cannot connect.
    return None if issubclass(kind, SentinelChannel) and not hasattr(channel, "master_name") else channel


def _address_of_gate(url: str) -> tuple[Any, ...]:
    if (address := SentinelAddress.of(url)) is not None:
        return frozenset(address.sentinels), address.master_name, address.db
    pool = redis.ConnectionPool.from_url(node_urls(url)[0])
    return _address(pool.connection_class, pool.connection_kwargs)


def _address_of(channel: Any) -> tuple[Any, ...]:
    options = channel._connparams()
    if (master_name := getattr(channel, "master_name", None)) is None:
        return _address(options["connection_class"], options)
    client = channel.connection.client
    sentinels = [urlsplit(url) for url in client.alt or [client.as_uri()]]
    return frozenset((one.hostname, one.port or SENTINEL_PORT) for one in sentinels), master_name, options["db"]


def _address(kind: type, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a database of a Redis server, from the options of a redis-py connection."""
    address = (options.get("host") or "localhost", options.get("port") or 6379)
    is_tls = issubclass(kind, redis.SSLConnection)
    return options.get("path") or address, is_tls, options.get("db") or 0


def serializer_of(app: Celery, preferred: str = "json") -> str:
    """Return a serializer that the app's workers accept: JSON, `preferred`, the app's own, or any that they accept.

    The gate's scripts can only write JSON. An app that signs or encrypts its messages accepts no other serializer. If
    there is none, the app's own is returned; workers of that app do not start.
    """
    return _accepted(app, preferred) or str(app.conf.task_serializer)


def task_serializer(task: Any) -> str:
    """Return the serializer for a message that a program publishes for one of our tasks: the task's, if accepted.

    If the app accepts JSON, the task's serializer is used in any case: the workers may be another app, which accepts
    more.
    """
    own = str(task.serializer)
    return own if serializer_of(task.app) == "json" else serializer_of(task.app, own)


def check_serializer(app: Celery) -> None:
    """Check that an app's workers accept a serializer that it can publish with.

    Raises:
        ConfigurationError: they accept none.
    """
    if _accepted(app, "json") is None:
        raise ConfigurationError(
            f"this app has no serializer that its accept_content allows: {sorted(app.conf.accept_content)}",
            "add a serializer that kombu has and that is installed, such as json, to accept_content",
        )


def _accepted(app: Celery, preferred: str) -> str | None:
    accepted = app.conf.accept_content
    if accepted is None or JSON & set(accepted):
        return "json"
    from kombu import serialization  # noqa: PLC0415 - not needed for JSON

    known: Any = serialization.registry  # type: ignore[attr-defined]
    types = {known.name_to_type.get(name, name) for name in accepted}
    for name in ("json", preferred, app.conf.task_serializer, *(known.type_to_name.get(one) for one in sorted(types))):
        codec = known._encoders.get(name)
        if codec is not None and codec.content_type in types and _encodes(codec.encoder):
            return str(name)
    return None


@cache
def _encodes(encoder: Callable[[Any], Any]) -> bool:
    """Whether the encoder works: kombu has one for msgpack even if that is not installed, and it raises."""
    try:
        encoder({})
    except Exception:
        return False
    return True


def _published(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the raw message that kombu makes for a run, with markers, and the third part of its body."""
    from kombu import Connection  # noqa: PLC0415 - not needed to read

    task = app.amqp.as_task_v2(_ID, RUN_TASK, args=(), argsrepr=_ARGUMENTS, origin=_ORIGIN, ignore_result=True)
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        queue = f"taskbridge-template-{id(connection)}"
        channel.queue_declare(queue)
        app.amqp.Producer(channel).publish(
            task.body, exchange="", routing_key=queue, serializer="json", headers=task.headers, **task.properties
        )
        raw = channel.basic_get(queue, no_ack=True).serializable()
        channel.queue_delete(queue)
    raw["body"] = _BODY
    raw["properties"]["delivery_tag"] = _ID
    raw["properties"]["delivery_info"]["routing_key"] = _QUEUE
    # Without it kombu uses the body as it is, so Lua needs no base64.
    del raw["properties"]["body_encoding"]
    return raw, task.body[2]


def _lua_concatenation(text: str) -> str:
    """Turn JSON text with markers into a Lua expression that puts the pieces together."""
    pieces = re.split("|".join(f"({re.escape(marker)})" for marker in _LUA), text)
    return " .. ".join(_LUA.get(piece) or _lua_string(piece) for piece in pieces if piece)


def _lua_string(text: str) -> str:
    return f"[==[{text}]==]"
