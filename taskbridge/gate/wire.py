"""One round trip to Redis by the shortest way.

What redis-py does around a command costs a producer more than the gate's script does. So a script is called on a
connection that this module keeps, with redis-py's own packing and parsing; whatever goes wrong there is left to
redis-py's client, which connects anew, tries again and loads scripts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis
from redis.exceptions import NoScriptError, ResponseError

__all__ = ["Call", "Wire"]

CHUNK: Final = 500

_kept: WeakKeyDictionary[redis.ConnectionPool, deque[Any]] = WeakKeyDictionary()
# A forked child must not talk on its parent's connections.
os.register_at_fork(after_in_child=_kept.clear)

Call = tuple[Sequence[str], Sequence[str | float]]
"""Keys and arguments of one call."""


class Wire:
    """Calls scripts on connections kept of a client's pool: as many as threads ever called at the same time."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._free = _kept.setdefault(self._pool, deque())

    def call(self, script: Any, calls: Sequence[Call]) -> list[Any]:
        """Run a registered script once for each of `calls` and return the replies: one round trip for each 500.

        Where the connection breaks, all that it carried may run twice.

        Raises: as redis-py's client, when all calls were made; the first error of several.
        """
        replies: list[Any] = []
        for start in range(0, len(calls), CHUNK):
            chunk = calls[start : start + CHUNK]
            answers = self._exchange(script.sha, chunk) or [NoScriptError()] * len(chunk)
            replies += [
                script(*call) if isinstance(answer, NoScriptError) else answer
                for call, answer in zip(chunk, answers, strict=True)
            ]
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def _exchange(self, sha: str, calls: Sequence[Call]) -> list[Any] | None:
        """Send the calls and read their replies, errors of the server among them; None: the connection broke."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._pool.get_connection()
        try:
            commands = [("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls]
            connection.send_packed_command(connection.pack_commands(commands))
            replies = [_reply(connection) for _ in calls]
        except BaseException as error:
            # A reply that was not read must not become the next call's.
            connection.disconnect()
            self._pool.release(connection)
            if isinstance(error, redis.ConnectionError | redis.TimeoutError):
                return None
            raise
        self._free.append(connection)
        return replies


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
