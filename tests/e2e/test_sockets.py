"""Redis is used by a socket of its machine where the URLs of redis-py and kombu say so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskbridge.settings import Settings
from tests.deployment import Deployment
from tests.waiting import wait_until


class Socket:
    """A socket in the file system that leads to a server."""

    def __init__(self, url: str, path: Path) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self.place = f":{parts.password}@{path}" if parts.password else str(path)
        self.database = parts.path.strip("/")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=(source, sink), daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def redis_socket(deployment: Deployment) -> Iterator[Socket]:
    # A path of a socket has about 100 characters at the most, and those of pytest may be longer.
    with TemporaryDirectory(prefix="taskbridge-") as directory:
        made = Socket(deployment.settings.redis_url, Path(directory) / "redis.sock")
        yield made
        made.close()


@pytest.mark.e2e
@pytest.mark.parametrize("urls", ["the broker's", "both"])
def test_a_worker_works_by_a_socket(deployment: Deployment, redis_socket: Socket, urls: str) -> None:
    variables = {
        "the broker's": {"TASKBRIDGE_BROKER_URL": f"redis+socket://{{place}}?virtual_host={redis_socket.database}"},
        "both": {"TASKBRIDGE_REDIS_URL": f"unix://{{place}}?db={redis_socket.database}"},
    }[urls]
    given: dict[str, Any] = {name: value.format(place=redis_socket.place) for name, value in variables.items()}
    with deployment.worker(**given) as worker:
        deployment.save("acme", "1")
        wait_until(lambda: deployment.delivered("acme") == [["1"]], "a run")
        assert "Traceback" not in worker.text()
    assert "Traceback" not in worker.text()


def test_a_gate_by_a_socket_is_the_broker_too() -> None:
    settings = Settings.read({"TASKBRIDGE_REDIS_URL": "unix://u%40:p%2F@/run/a%20b.sock?db=3&socket_timeout=5"})
    assert settings.broker == "redis+socket://u%40:p%2F@/run/a%20b.sock?virtual_host=3"
    assert (
        Settings.read({"TASKBRIDGE_REDIS_URL": "unix:///run/redis.sock"}).broker
        == "redis+socket:///run/redis.sock?virtual_host=0"
    )
