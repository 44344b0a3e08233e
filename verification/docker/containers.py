"""The containers of these tests, and what is done to a worker's."""

from __future__ import annotations

from pytest_celery import CeleryWorkerContainer, RedisContainer
from pytest_docker_tools import wrappers

__all__ = ["Postgres", "Redis", "Worker"]

HOST = "127.0.0.1"


class Postgres(wrappers.Container):
    """Postgres, as it is seen from the machine that runs the tests."""

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@{HOST}:{self.ports['5432/tcp'][0]}/postgres"


class Redis(RedisContainer):
    """The gate and the broker."""

    @property
    def port(self) -> int:
        """The published port, also where the tests themselves run in a container that shares the engine's network."""
        self.reload()
        port: int = self.ports["6379/tcp"][0]
        return port


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
