"""The containers of these tests, and what is done to a worker's."""

from __future__ import annotations

import socket

from pytest_celery import CeleryWorkerContainer, RedisContainer
from pytest_docker_tools import wrappers

from tests.waiting import wait_until

__all__ = ["Postgres", "Redis", "Worker", "free_port"]

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a port that stays the same when its container is started again; one that the engine chooses does not."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


class Postgres(wrappers.Container):
    """Postgres, as it is seen from the machine that runs the tests."""

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@{HOST}:{self.ports['5432/tcp'][0]}/postgres"


class Redis(RedisContainer):
    """The gate and the broker. It keeps nothing on disk: a restart loses everything."""

    @property
    def port(self) -> int:
        """The published port, also where the tests themselves run in a container that shares the engine's network."""
        self.reload()
        port: int = self.ports["6379/tcp"][0]
        return port

    def crash(self) -> None:
        """Kill it, start it again, and wait until it answers."""
        self._container.kill()
        self._container.start()
        wait_until(lambda: self.exec_run(["redis-cli", "ping"]).exit_code == 0, "Redis answers again")


class Worker(CeleryWorkerContainer):
    """A worker: the project's image, started by the command that is in it."""

    @property
    def host(self) -> str:
        """What the worker's processes know their machine as."""
        name: str = self.attrs["Config"]["Hostname"]
        return name

    def replace(self) -> None:
        """Tell it to stop (SIGTERM), wait until it has, and start it again."""
        self._container.restart(timeout=30)
