"""The embedded Redis (or Valkey): its settings, and whether it answers."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import BinaryIO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbridge.embedded.account import Account
from taskbridge.embedded.binaries import REDIS_PROGRAMS, find_redis
from taskbridge.embedded.files import write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, server_environment
from taskbridge.embedded.leftovers import stop_leftover

_STOP = ((signal.SIGTERM, 5.0),)
_ANSWER_SECONDS = 1.0  # another program that took the port may accept and not answer

# Redis may lose everything at any time, so nothing is kept on disk. No key is evicted: a full Redis refuses to write.
# The process keeps the title that it was started with, by which `leftovers.py` knows it.
_SETTINGS = """\
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
    """A server without persistence; its log and its pid are in `data_dir`, its settings in `place`."""

    name = "Redis"
    start_seconds = 15.0

    def __init__(self, data_dir: Path, place: Path, account: Account | None) -> None:
        self.log = data_dir / "redis.log"
        self._pid_file = data_dir / "redis.pid"
        self._settings = place / "redis.conf"
        self._account = account
        self._program = find_redis(account)
        self._password = ""

    def prepare(self) -> None:
        """Stop a server that a killed process left.

        Raises:
            Unavailable: it does not end.
        """
        try:
            pid = int(self._pid_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        stop_leftover(pid, REDIS_PROGRAMS, self._settings, _STOP)

    def url(self, port: int) -> str:
        """Return the URL of database 0, the password included."""
        return f"redis://:{self._password}@{HOST}:{port}/0"

    def start(self, port: int, output: BinaryIO) -> Guarded:
        """Start the server on `port`, with a password of its own."""
        self._password = secrets.token_urlsafe(24)
        settings = _SETTINGS.format(host=HOST, port=port, password=self._password)
        write_private(self._settings, settings, self._account)
        guarded = Guarded(
            [self._program, self._settings],
            stop=_STOP,
            output=output,
            environment=server_environment(),
            directory=self._settings.parent,
            account=self._account,
        )
        write_private(self._pid_file, str(guarded.pid))
        return guarded

    def answers(self, port: int, pid: int) -> bool:
        """Say whether our own server answers on `port`."""
        client = redis.Redis(
            host=HOST,
            port=port,
            password=self._password,
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        with client:
            try:
                return bool(client.info("server")["process_id"] == pid)
            except redis.RedisError:
                return False
