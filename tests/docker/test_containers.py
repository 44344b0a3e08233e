"""A deployment of containers: after each fault the ledger has every invoice once, and nothing is pending."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from tests.deployment import Deployment
from tests.docker.conftest import BATCH_SIZE
from tests.docker.containers import Redis, Worker
from tests.waiting import wait_until

# The first test builds the image.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(280)]

RUNNER_TTL = 5.0
NUMBERS = [f"{number:03}" for number in range(4 * BATCH_SIZE)]


def busy(deployment: Deployment, workers: list[Worker]) -> Worker:
    """Wait until one of the workers has a batch in hand, and return it."""

    def found() -> Worker | None:
        hosts = {host for (host,) in deployment.rows("SELECT host FROM ledger WHERE ended IS NULL")}
        return next((worker for worker in workers if worker.host in hosts), None)

    worker = wait_until(found, "a batch in hand")
    assert worker is not None
    return worker


def each_once(deployment: Deployment, tenants: list[str], numbers: list[str], seconds: float = 40) -> None:
    """Compare the ledger with what was saved, when nothing is left to do."""
    deployment.wait_until_idle(seconds)
    assert sorted(deployment.deliveries()) == sorted(itertools.product(tenants, numbers))
    assert deployment.rows("SELECT * FROM taskbridge.record_states WHERE state <> 'handled'") == []


def test_two_workers_share_the_tenants(deployment: Deployment, workers: list[Worker]) -> None:
    tenants = [f"tenant-{number}" for number in range(8)]
    for number, tenant in itertools.product(NUMBERS, tenants):
        deployment.save(tenant, number)
    each_once(deployment, tenants, NUMBERS)
    assert {host for (host,) in deployment.rows("SELECT host FROM ledger")} == {worker.host for worker in workers}
    overlapping = "SELECT 1 FROM ledger a JOIN ledger b ON a.tenant = b.tenant AND a.id < b.id AND b.began < a.ended"
    assert deployment.rows(overlapping) == [], "no batch of a tenant began before the one before had ended"


def test_redis_restarts_and_has_lost_everything(
    deployment: Deployment, workers: list[Worker], default_redis_broker: Redis
) -> None:
    deployment.save("acme", *NUMBERS)
    busy(deployment, workers)
    default_redis_broker.crash()
    # no event follows: what is pending is found in Postgres
    each_once(deployment, ["acme"], NUMBERS)
    # and events find their way again
    deployment.save("later", *NUMBERS)
    each_once(deployment, ["acme", "later"], NUMBERS)


def test_the_network_of_a_worker_is_cut_and_heals(
    deployment: Deployment, workers: list[Worker], default_pytest_celery_network: Any
) -> None:
    deployment.save("acme", *NUMBERS)
    lonely = busy(deployment, workers)
    default_pytest_celery_network.disconnect(lonely.id)
    # the other takes over
    wait_until(lambda: len(deployment.deliveries()) == len(NUMBERS), "taken over", RUNNER_TTL + 10)
    default_pytest_celery_network.connect(lonely.id)
    each_once(deployment, ["acme"], NUMBERS)
    # and the one that was cut off takes work again
    (other,) = (worker for worker in workers if worker is not lonely)
    other.kill()
    deployment.save("later", *NUMBERS)
    each_once(deployment, ["acme", "later"], NUMBERS, 60)


def test_a_rolling_restart_under_load_hands_nothing_over_twice(deployment: Deployment, workers: list[Worker]) -> None:
    tenants = [f"tenant-{number}" for number in range(2)]
    restarted = threading.Event()
    numbers: list[str] = []

    def load() -> None:
        while not restarted.is_set():
            numbers.append(f"{len(numbers):04}")
            for tenant in tenants:
                deployment.save(tenant, numbers[-1])
            restarted.wait(0.2)

    producer = threading.Thread(target=load)
    producer.start()
    try:
        for worker in workers:
            busy(deployment, [worker])
            worker.replace()
            busy(deployment, [worker])
    finally:
        restarted.set()
        producer.join()
    each_once(deployment, tenants, numbers)
    for tenant in tenants:
        delivered = [number for batch in deployment.delivered(tenant) for number in batch]
        assert sorted(delivered) == numbers, "each batch in hand was ended before its worker stopped"
