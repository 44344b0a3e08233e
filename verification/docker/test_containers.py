"""A deployment of containers of the image: the ledger has every invoice once, and nothing is pending."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.deployment import Deployment
from tests.waiting import wait_until
from verification.docker.conftest import BATCH_SIZE
from verification.docker.containers import Worker

# The first test builds the image.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(280)]

NUMBERS = [f"{number:03}" for number in range(4 * BATCH_SIZE)]


def busy(deployment: Deployment, workers: list[Worker]) -> Worker:
    """Wait until one of the workers has a batch in hand, and return it."""

    def found() -> Worker | None:
        hosts = {host for (host,) in deployment.rows("SELECT host FROM ledger WHERE ended IS NULL")}
        return next((worker for worker in workers if worker.host in hosts), None)

    worker = wait_until(found, "a batch in hand")
    assert worker is not None
    return worker


def each_once(deployment: Deployment, tenants: list[str], numbers: list[str]) -> None:
    """Compare the ledger with what was saved, when nothing is left to do."""
    deployment.wait_until_idle(40)
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
