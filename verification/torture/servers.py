"""Postgres and Redis of an arena: struck down and started again at the same address."""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import redis

from taskbridge.embedded.files import open_log, tail, write_private
from taskbridge.embedded.guarded import Guarded
from taskbridge.embedded.launch import HOST, Server, server_environment
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer
from tests.scraping import free_ports
from tests.waiting import wait_until
from verification.torture.server_clock import ServerClock, compiler

__all__ = ["PostgresHere", "RedisHere"]

REDIS_SETTINGS = """\
bind {host}
port {port}
requirepass {password}
masterauth {password}
dir {directory}
save ""
maxmemory-policy noeviction
daemonize no
set-proc-title no
"""


class _Here:
    """A server at a fixed address that ends with this process."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = free_ports()
        self.process: Guarded | None = None

    def start(self) -> None:
        """Start the server and return when it answers."""
        with open_log(self.server.log) as output:
            begin = output.seek(0, os.SEEK_END)
            self.process = self.server.start(self.port, output)
        self.wait(begin)

    def wait(self, log_from: int = 0) -> None:
        """Return when the server answers."""
        assert self.process is not None
        deadline = time.monotonic() + self.server.start_seconds
        while not self.server.answers(self.port, self.process.pid):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.server.name} does not start:\n{tail(self.server.log, log_from)}")
            time.sleep(0.01)

    def strike(self, number: signal.Signals) -> None:
        """Send a signal that ends the server, and wait for its end."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        self.process.wait(30)

    def close(self) -> None:
        if self.process is not None:
            self.process.stop()


class PostgresHere(_Here):
    """Postgres in `directory`, with more `settings`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._postgres = Postgres(directory, durable=False, settings=settings)
        super().__init__(self._postgres)

    @property
    def url(self) -> str:
        return self._postgres.url(self.port)

    def start(self) -> None:
        self._postgres.prepare()
        super().start()


class _Redis(RedisServer):
    """Keeps its password, and the data that were saved, from one start to the next."""

    def __init__(
        self,
        directory: Path,
        password: str,
        environment: Mapping[str, str],
        settings: str,
        program: Path | None,
    ) -> None:
        super().__init__(directory)
        self._more = settings
        self._program = program or self._program
        self._password = password
        self._environment = environment
        self.data = directory / "redis"
        self.data.mkdir(mode=0o700)

    def start(self, port: int, output: BinaryIO) -> Guarded:
        settings = REDIS_SETTINGS.format(
            host=HOST,
            port=port,
            password=self._password,
            directory=self.data,
        )
        write_private(self._settings, settings + self._more)
        return Guarded(
            [self._program, self._settings],
            stop=((signal.SIGTERM, 5.0),),
            output=output,
            environment={**server_environment(), **self._environment},
        )


class RedisHere(_Here):
    """Redis in `directory`, or another `program`. Its data survive a kill as far as they were saved.

    `settings` are further lines of its configuration.
    """

    def __init__(self, directory: Path, settings: str = "", program: Path | None = None) -> None:
        self._settings, self._program = settings, program
        self._directory = directory
        self._password = secrets.token_urlsafe(24)
        self.clock = ServerClock(directory) if compiler() else None
        self._redis = self._make(directory)
        super().__init__(self._redis)
        self.client = redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=10)

    @property
    def url(self) -> str:
        return self._redis.url(self.port)

    @property
    def data(self) -> Path:
        """Return its working directory."""
        return self._redis.data

    def forget_saved(self) -> None:
        (self.data / "dump.rdb").unlink(missing_ok=True)

    def switch_over(self, address_follows: float = 0.0) -> Callable[[], None]:
        """Let a replica take over this address, as behind a service; return how to end the old one.

        Who is connected stays with the old one, which is the new one's replica from now on. So does who connects in the
        next `address_follows` seconds.
        """
        directory = Path(tempfile.mkdtemp(prefix="redis-", dir=self._directory))
        directory.chmod(0o755)
        old_process, successor = self.process, self._make(directory)
        assert old_process is not None
        there = _Here(successor)
        there.start()
        one: dict[str, Any] = {"decode_responses": True, "single_connection_client": True}
        old, new = redis.Redis.from_url(self.url, **one), redis.Redis.from_url(successor.url(there.port), **one)
        with old, new:
            new.replicaof(HOST, str(self.port))
            wait_until(lambda: new.info("replication")["master_link_status"] == "up", "the replica has its data")
            new.replicaof("NO", "ONE")
            if address_follows:
                old.replicaof(HOST, str(there.port))
                time.sleep(address_follows)
            old.config_set("port", str(free_ports()))
            new.config_set("port", str(self.port))
            old.replicaof(HOST, str(self.port))
        self._redis = self.server = successor
        self.process = there.process
        self.client.connection_pool.disconnect()

        def end() -> None:
            old_process.stop()

        return end

    def close(self) -> None:
        self.client.close()
        super().close()

    def _make(self, directory: Path) -> _Redis:
        environment = self.clock.environment if self.clock else {}
        return _Redis(directory, self._password, environment, self._settings, self._program)
