"""Redis is used by a socket of its machine where the URLs of redis-py and kombu say so."""

from __future__ import annotations

import socket
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest

from taskbridge.settings import Settings
from tests.deployment import Deployment
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until


@pytest.mark.e2e
def test_a_worker_works_by_a_socket(deployment: Deployment) -> None:
    parts = urlsplit(deployment.settings.redis_url)
    # A path of a socket has about 100 characters at the most, and those of pytest may be longer.
    with TemporaryDirectory(prefix="taskbridge-") as directory, socket.socket(socket.AF_UNIX) as listener:
        path = f"{directory}/redis.sock"
        listener.bind(path)
        listener.listen(64)
        proxy = BlackHole(deployment.settings.redis_url, listener=listener)
        place = f":{parts.password}@{path}" if parts.password else path
        with deployment.worker(TASKBRIDGE_REDIS_URL=f"unix://{place}?db={parts.path.strip('/')}") as worker:
            deployment.save("acme", "1")
            wait_until(lambda: deployment.delivered("acme") == [["1"]], "a run")
        proxy.close()
    assert "Traceback" not in worker.text()


def test_a_gate_by_a_socket_is_the_broker_too() -> None:
    settings = Settings.read({"TASKBRIDGE_REDIS_URL": "unix://u%40:p%2F@/run/a%20b.sock?db=3&socket_timeout=5"})
    assert settings.broker == "redis+socket://u%40:p%2F@/run/a%20b.sock?virtual_host=3"
    assert (
        Settings.read({"TASKBRIDGE_REDIS_URL": "unix:///run/redis.sock"}).broker
        == "redis+socket:///run/redis.sock?virtual_host=0"
    )
