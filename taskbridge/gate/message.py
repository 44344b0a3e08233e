"""The run message: made by Celery and kombu once, then filled in by a Lua script.

Where gate and broker are one Redis, the script that decides that a run must start also pushes its message. It pushes
what Celery itself would publish: the message is published once into kombu's in-memory transport, read back as kombu
would put it on the wire, and cut where tenant and ids stand. A test compares the result with a message that went
through Redis the ordinary way.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from taskbridge.gate.scripts import read

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["RUN_TASK", "RUN_TASK_TEXT", "arguments_text", "lua_message", "same_server", "serializer_of"]

RUN_TASK: Final = "taskbridge.run"
JSON: Final = frozenset({"json", "application/json"})
RUN_TASK_TEXT: Final = json.dumps({"task": RUN_TASK})[1:-1]
"""How the text of a run's message names its task."""

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


def same_server(gate_url: str, broker_url: Any) -> bool:
    """Whether both URLs name one database of one Redis server; a list of brokers, or none, does not."""
    from kombu.utils.url import parse_url  # noqa: PLC0415 - not for who only looks

    def place(url: str) -> tuple[Any, ...]:
        parts = parse_url(url)
        return parts["transport"], parts["hostname"], parts["port"] or 6379, str(parts["virtual_host"] or "0")

    return isinstance(broker_url, str) and ";" not in broker_url and place(gate_url) == place(broker_url)


def serializer_of(app: Celery) -> str:
    """Return the serializer of an app's run messages: JSON, or where its workers refuse that, the app's own.

    The gate's scripts can write JSON alone. An app that signs its messages, or encrypts them, accepts no other.
    """
    return "json" if JSON & set(app.conf.accept_content) else str(app.conf.task_serializer)


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
