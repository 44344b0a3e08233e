"""The run message: made by Celery and kombu once, then filled in by a Lua script.

Where gate and broker are one Redis, the script that decides that a run must start also pushes its message. It pushes
what Celery itself would publish: the message is published once into kombu's in-memory transport, read back as kombu
would put it on the wire, and cut where tenant and ids stand. A test compares the result with a message that went
through Redis the ordinary way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import redis

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
"""What stands in a probe's message where that of a run has its pipeline; no pipeline can have this name."""

# Marks where a script fills in, and the Lua expression that goes there. A marker is a whole JSON string with a NUL in
# it, so nothing else in the message can look like one.
_ID: Final = "\x00id"
_ARGUMENTS: Final = "\x00arguments"
_BODY: Final = "\x00body"
_QUEUE: Final = "\x00queue"
_LUA: Final = {
    json.dumps(marker): f"cjson.encode({name})"
    for marker, name in ((_ID, "id"), (_ARGUMENTS, "arguments"), (_BODY, "body"), (_QUEUE, "queue"))
}

# Constant, so that the scripts of all producers are one text and Redis keeps one copy.
_ORIGIN: Final = "taskbridge"


def arguments_text(*arguments: Any) -> str:
    """Return how a run's arguments are shown (`argsrepr`, in Flower and in logs): as JSON, which Lua can write too."""
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def lua_message(app: Celery, queue_prefix: str = "") -> str:
    """Return the text of `publish.lua` with the run message of `app` filled in.

    `queue_prefix` is what kombu puts before a queue's name in Redis (`global_keyprefix`), and not into the message.
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


def shared_prefix(app: Celery, gate_url: str, queues: Sequence[str]) -> str | None:
    """Return what kombu puts before the names of `queues` if scripts on the gate's Redis can push to them.

    None, unless it is certain that both the app's producers and its workers use the gate's database, and that workers
    read each queue from the list with its name. Messages then have to go the ordinary way.

    Args:
        app: the app whose broker it is.
        gate_url: where the gate is.
        queues: names of queues.
    """
    try:
        pool = redis.ConnectionPool.from_url(gate_url)
        gate = _address(pool.connection_class, pool.connection_kwargs)
        channels = [_channel(connection) for connection in (app.connection_for_write(), app.connection_for_read())]
    except Exception:
        # Whoever connects reports what is wrong with a URL or an option.
        return None
    prefixes = {channel.global_keyprefix for channel in channels if channel is not None}
    if None in channels or len(prefixes) > 1 or any(_address_of(channel) != gate for channel in channels):
        return None
    for channel in channels:
        for queue in queues:
            if queue not in {channel._q_for_pri(queue, step) for step in channel.priority_steps}:
                return None
    return str(prefixes.pop())


def _channel(connection: Any) -> Any:
    """Return kombu's channel of a connection as it is before it connects; None if it is not one to a single Redis."""
    from kombu.transport.redis import Channel, SentinelChannel  # noqa: PLC0415 - not for who only looks

    kind = connection.transport.Channel
    if not issubclass(kind, Channel) or issubclass(kind, SentinelChannel) or len(connection.alt) > 1:
        return None
    # Its constructor would connect.
    channel = kind.__new__(kind)
    channel.connection = connection.transport
    for name in kind.from_transport_options:
        if name in connection.transport_options:
            setattr(channel, name, connection.transport_options[name])
    return channel


def _address_of(channel: Any) -> tuple[Any, ...]:
    options = channel._connparams()
    return _address(options["connection_class"], options)


def _address(kind: type, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one database of one server from another, as redis-py's connections are made with it."""
    place = (options.get("host") or "localhost", options.get("port") or 6379)
    is_tls = issubclass(kind, redis.SSLConnection)
    return options.get("path") or place, is_tls, options.get("db") or 0


def serializer_of(app: Celery, preferred: str = "json") -> str:
    """Return a serializer that the app's workers accept: JSON, `preferred`, the app's own, or any that they accept.

    The gate's scripts can write JSON alone. An app that signs its messages, or encrypts them, accepts no other. Where
    there is none it is the app's own; workers of that app do not start.
    """
    return _accepted(app, preferred) or str(app.conf.task_serializer)


def task_serializer(task: Any) -> str:
    """Return the serializer of a message that a program publishes for a task of ours: the task's, if it is accepted.

    An app that accepts JSON keeps the task's in any case: its workers may be another app, which accepts more.
    """
    own = str(task.serializer)
    return own if serializer_of(task.app) == "json" else serializer_of(task.app, own)


def check_serializer(app: Celery) -> None:
    """See that an app's workers accept something that can be published.

    Raises:
        ConfigurationError: they do not.
    """
    if _accepted(app, "json") is None:
        raise ConfigurationError(
            f"this app accepts no message that it can write: its accept_content is {sorted(app.conf.accept_content)}",
            "let accept_content name a serializer that kombu has and that is installed, such as json",
        )


def _accepted(app: Celery, preferred: str) -> str | None:
    accepted = app.conf.accept_content
    if accepted is None or JSON & set(accepted):
        return "json"
    from kombu import serialization  # noqa: PLC0415 - JSON needs no look at the others

    known: Any = serialization.registry  # type: ignore[attr-defined]
    types = {known.name_to_type.get(name, name) for name in accepted}
    for name in ("json", preferred, app.conf.task_serializer, *(known.type_to_name.get(one) for one in sorted(types))):
        codec = known._encoders.get(name)
        if codec is not None and codec.content_type in types and _encodes(codec.encoder):
            return str(name)
    return None


@cache
def _encodes(encoder: Callable[[Any], Any]) -> bool:
    """Whether it can be used: kombu has one also for msgpack that is not installed, which raises."""
    try:
        encoder({})
    except Exception:
        return False
    return True


def _published(app: Celery) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the raw message that kombu makes of a run, with markers, and the third part of its body."""
    from kombu import Connection  # noqa: PLC0415 - not for who only looks

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
    # Without it kombu takes the body as it is, so Lua needs no base64.
    del raw["properties"]["body_encoding"]
    return raw, task.body[2]


def _lua_concatenation(text: str) -> str:
    """Turn JSON text with markers into a Lua expression that puts the pieces together."""
    pieces = re.split("|".join(f"({re.escape(marker)})" for marker in _LUA), text)
    return " .. ".join(_LUA.get(piece) or _lua_string(piece) for piece in pieces if piece)


def _lua_string(text: str) -> str:
    return f"[==[{text}]==]"
