"""Postgres and Redis of an arena: struck down and started again at the same address."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import BinaryIO

import redis

from taskbridge.embedded.account import Account, server_account
from taskbridge.embedded.files import open_log, tail, write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, Server, server_environment
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer

__all__ = ["PostgresHere", "RedisHere"]

# Below the ports that the system gives to outgoing connections: a client that tries to reach a server that is down
# could be given the server's own port and reach itself.
PORTS = range(20_000, 30_000)

REDIS_SETTINGS = """\
bind {host}
port {port}
requirepass {password}
dir {directory}
save ""
appendonly no
maxmemory-policy noeviction
daemonize no
set-proc-title no
"""


class _Here:
    """A server at a fixed address that ends with this process."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.port = _free_port()
        self._process: Guarded | None = None

    def start(self) -> None:
        """Start the server and return when it answers."""
        with open_log(self._server.log) as output:
            begin = output.seek(0, os.SEEK_END)
            self._process = self._server.start(self.port, output)
        deadline = time.monotonic() + self._server.start_seconds
        while not self._server.answers(self.port, self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._server.name} does not start:\n{tail(self._server.log, begin)}")
            time.sleep(0.01)

    def strike(self, number: signal.Signals) -> None:
        """Send a signal that ends the server, and wait for its end."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        self._process.wait(30)

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()


class PostgresHere(_Here):
    """Postgres in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._postgres = Postgres(directory, directory, server_account(directory / "postgres"), durable=False)
        super().__init__(self._postgres)

    @property
    def url(self) -> str:
        return self._postgres.url(self.port)

    def start(self) -> None:
        self._postgres.prepare()
        super().start()


class _Redis(RedisServer):
    """Keeps its password, and the data that were saved, from one start to the next."""

    def __init__(self, directory: Path, account: Account | None) -> None:
        super().__init__(directory, directory, account)
        self._password = secrets.token_urlsafe(24)
        self.data = directory / "redis"
        self.data.mkdir(mode=0o700)
        if account is not None:
            os.chown(self.data, account.uid, account.gid)

    def start(self, port: int, output: BinaryIO) -> Guarded:
        settings = REDIS_SETTINGS.format(host=HOST, port=port, password=self._password, directory=self.data)
        write_private(self._settings, settings, self._account)
        return Guarded(
            [self._program, self._settings],
            stop=((signal.SIGTERM, 5.0),),
            output=output,
            environment=server_environment(),
            account=self._account,
        )


class RedisHere(_Here):
    """Redis in `directory`. Its data survive a kill as far as they were saved."""

    def __init__(self, directory: Path) -> None:
        self._redis = _Redis(directory, server_account(directory / "postgres"))
        super().__init__(self._redis)
        self.client = redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=10)

    @property
    def url(self) -> str:
        return self._redis.url(self.port)

    def forget_saved(self) -> None:
        (self._redis.data / "dump.rdb").unlink(missing_ok=True)


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
