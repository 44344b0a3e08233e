"""Postgres and Redis of the official images and workers of the project's own, as containers of pytest-celery.

The producer is this process. Postgres lives for the session and has one database per test; Redis and the workers live
for one test.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from pytest_celery import CeleryBrokerCluster, CeleryTestBroker, CeleryTestWorker, CeleryWorkerCluster
from pytest_docker_tools import build, container, fxtr, network, volume
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from tests.deployment import Deployment
from verification.docker.containers import HOST, Postgres, Redis, Worker

ROOT = Path(__file__).resolve().parents[2]
HANDLER_SECONDS = 0.4
BATCH_SIZE = 5


@pytest.fixture(scope="session")
def docker_client() -> Iterator[Any]:
    """The engine; without one these tests are skipped."""
    # Asked of the program, since the library leaves a socket open where nothing answers.
    try:
        subprocess.run(["docker", "version"], check=True, capture_output=True, text=True)  # noqa: S607 - any of PATH
    except FileNotFoundError:
        pytest.skip("there is no `docker` on PATH")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no Docker engine answers: {error.stderr.strip()}")
    client = docker.from_env()
    yield client
    client.close()


default_pytest_celery_network = network(scope="session")

worker_image = build(path=str(ROOT), tag="taskbridge:test")

# Inside the image there is the package alone.
worker_modules = volume(
    scope="session",
    initial_content={"__init__.py": b"", "pipelines.py": (ROOT / "tests/pipelines.py").read_bytes()},
)

postgres = container(
    scope="session",
    image="postgres:17",
    command=["postgres", "-c", "fsync=off"],
    environment={"POSTGRES_PASSWORD": "secret"},
    network="{default_pytest_celery_network.name}",
    ports={"5432/tcp": (HOST, None)},
    tmpfs={"/var/lib/postgresql/data": ""},
    wrapper_class=Postgres,
    timeout=60,
)


@pytest.fixture(scope="session")
def taskbridge_servers(postgres: Postgres) -> Servers:
    """In place of the embedded servers. Redis has another address in each test."""
    return Servers(postgres.url, "")


default_redis_broker = container(
    image="redis:7",
    command=fxtr("default_redis_broker_command"),
    network="{default_pytest_celery_network.name}",
    ports={"6379/tcp": (HOST, None)},
    tmpfs={"/data": ""},
    wrapper_class=Redis,
    timeout=60,
)


@pytest.fixture
def celery_broker_cluster(celery_redis_broker: CeleryTestBroker) -> Iterator[CeleryBrokerCluster]:
    """Redis alone, whatever else pytest-celery has."""
    cluster = CeleryBrokerCluster(celery_redis_broker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def celery_backend_cluster() -> None:
    """None: runs have no result."""


@pytest.fixture
def deployment(engine: Engine, celery_broker_cluster: CeleryBrokerCluster, tmp_path: Path) -> Iterator[Deployment]:
    """The producer in this process, with the database and the Redis of the test."""
    own = Deployment(engine, celery_broker_cluster[0].config()["host_url"], tmp_path)
    yield own
    own.close()


@pytest.fixture
def default_worker_env(deployment: Deployment, postgres: Postgres, default_redis_broker: Redis) -> dict[str, str]:
    """The addresses of the same servers from within their network."""

    def inside(url: str, machine: Any, port: int) -> str:
        there = make_url(url).set(host=machine.attrs["Config"]["Hostname"], port=port)
        return there.render_as_string(hide_password=False)

    return {
        "TASKBRIDGE_POSTGRES_URL": inside(deployment.settings.postgres_url, postgres, 5432),
        "TASKBRIDGE_REDIS_URL": inside(deployment.settings.redis_url, default_redis_broker, 6379),
        "TASKBRIDGE_PIPELINES": "tests.pipelines",
        "TEST_HANDLER_SECONDS": str(HANDLER_SECONDS),
        "TEST_BATCH_SIZE": str(BATCH_SIZE),
    }


@pytest.fixture
def default_worker_container_cls() -> type[Worker]:
    return Worker


_WORKER: dict[str, Any] = {
    "image": "{worker_image.id}",
    "environment": fxtr("default_worker_env"),
    "network": "{default_pytest_celery_network.name}",
    "volumes": {"{worker_modules.name}": {"bind": "/srv/taskbridge/tests", "mode": "ro"}},
    "wrapper_class": Worker,
    "timeout": 60,
}
default_worker_container = container(**_WORKER)
second_worker_container = container(**_WORKER)


@pytest.fixture
def celery_second_worker(
    default_worker_cls: type[CeleryTestWorker], second_worker_container: Worker, default_worker_app: Any
) -> Iterator[CeleryTestWorker]:
    worker = default_worker_cls(second_worker_container, app=default_worker_app)
    yield worker
    worker.teardown()


@pytest.fixture
def celery_worker_cluster(
    celery_setup_worker: CeleryTestWorker, celery_second_worker: CeleryTestWorker
) -> Iterator[CeleryWorkerCluster]:
    cluster = CeleryWorkerCluster(celery_setup_worker, celery_second_worker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def workers(celery_setup: Any) -> list[Worker]:
    """The containers of the workers, all of them ready."""
    return [node.container for node in celery_setup.worker_cluster]
