"""The embedded Redis (or Valkey) server."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import BinaryIO, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbridge.embedded.binaries import find_redis
from taskbridge.embedded.files import write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, server_environment, stop_leftovers

__all__ = ["RedisServer"]

_ANSWER_SECONDS: Final = 1.0  # another program that took the port may accept connections and never reply

# The data in Redis may be lost at any time, so nothing is kept on disk. No key is evicted: when full, Redis refuses
# writes. The process title must not change, because `stop_leftovers` identifies the process by it.
_SETTINGS: Final = """\
bind {host}
port {port}
requirepass {password}
save ""
appendonly no
maxmemory-policy noeviction
daemonize no
set-proc-title no
"""


class RedisServer:
    """A server without persistence; its log and its settings are in `data_dir`."""

    name = "Redis"
    start_seconds = 15.0

    def __init__(self, data_dir: Path) -> None:
        self.log = data_dir / "redis.log"
        self._settings = data_dir / "redis.conf"
        self._program = find_redis()
        self._password = ""

    def prepare(self) -> None:
        """Stop a server that a killed process left behind."""
        stop_leftovers(("redis-server", "valkey-server"), self._settings)

    def url(self, port: int) -> str:
        """Return the URL of database 0, including the password."""
        return f"redis://:{self._password}@{HOST}:{port}/0"

    def start(self, port: int, output: BinaryIO) -> Guarded:
        """Start the server on `port`, with a new password."""
        self._password = secrets.token_urlsafe(24)
        settings = _SETTINGS.format(host=HOST, port=port, password=self._password)
        write_private(self._settings, settings)
        return Guarded(
            [self._program, self._settings],
            stop=((signal.SIGTERM, 5.0),),
            output=output,
            environment=server_environment(),
            directory=self._settings.parent,
        )

    def answers(self, port: int, pid: int) -> bool:
        """Whether our own server answers on `port`."""
        retry = Retry(NoBackoff(), 0)
        with redis.Redis.from_url(self.url(port), socket_timeout=_ANSWER_SECONDS, retry=retry) as client:
            try:
                return bool(client.info("server")["process_id"] == pid)
            except redis.RedisError:
                return False
