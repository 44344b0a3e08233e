"""TaskBridge on the app of a shop, in real workers: both do their work, and the shop's is as it was."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest
import redis
from celery import chain, chord

from taskbridge.gate import Queue
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment
from tests.waiting import TIME_FACTOR, wait_until

pytestmark = pytest.mark.e2e

SHOP = "tests.host.shop"
EXAMPLE = "examples.host_app"
WITHIN = 20 * TIME_FACTOR
NOWHERE = "postgresql://a:secret@127.0.0.1:1/b"


@pytest.fixture
def shop(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The shop's modules, imported for this deployment; its messages and results are in the gate's Redis."""
    for name in ("SHOP_BROKER", "SHOP_RESULTS"):
        monkeypatch.setenv(name, deployment.settings.redis_url)
    # Results may be pickles, and the machine's user may be root.
    monkeypatch.setenv("C_FORCE_ROOT", "1")
    # Settings with their defaults are left out of an environment, so nothing else may name them.
    for name in [name for name in os.environ if name.startswith("TASKBRIDGE_")]:
        monkeypatch.delenv(name)
    for name, value in deployment.environment().items():
        if name.startswith("TASKBRIDGE_"):
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("TASKBRIDGE_PIPELINES")
    for name in (SHOP, f"{SHOP}_settings"):
        sys.modules.pop(name, None)
    loaded = importlib.import_module(SHOP)
    yield loaded
    runtime_of(loaded.app).engine.dispose()
    runtime_of(loaded.app).redis.close()
    loaded.app.close()


def test_a_shop_and_taskbridge_in_one_worker(shop: ModuleType, deployment: Deployment) -> None:
    bridge, price = shop.bridge, Decimal("0.10")
    # given a first event, whose run waits
    assert bridge.record_invoice("acme", "1", {"number": "1"})
    assert bridge.notify_event.delay("acme").get() == "started"
    assert deployment.redis.llen(Queue.FIRST.value) == 1
    # when an ordinary worker starts, and one for another queue only, which needs no server of ours
    nowhere: Any = {"TASKBRIDGE_POSTGRES_URL": NOWHERE, "TASKBRIDGE_REDIS_URL": "redis://127.0.0.1:1/0"}
    with deployment.worker(app=SHOP), deployment.worker("-Q", "emails", app=SHOP, **nowhere) as apart:
        deployment.wait_until_idle()
        # then the shop's tasks, results, canvas and names are what they were
        assert shop.add.delay(price, price).get(timeout=WITHIN) == 2 * price
        assert shop.app.send_task("shop.add", [price, price]).get(timeout=WITHIN) == 2 * price
        assert shop.order.delay().get(timeout=WITHIN) == "shop"
        assert shop.email.delay().get(timeout=WITHIN) == "emails"
        assert (
            chord([shop.add.s(price, price), shop.add.s(price, 0)], shop.total.s())().get(timeout=WITHIN) == 3 * price
        )
        # and ours works among them: in a chain, by name, as many, in a burst
        assert bridge.record_invoice("acme", "2", {"number": "2"})
        assert chain(bridge.notify_event.si("acme"), shop.add.si(price, price))().get(timeout=WITHIN) == 2 * price
        wait_until(lambda: len(deployment.deliveries()) == 2, "delivered after the chain")
        assert bridge.record_invoice("acme", "3", {"number": "3"})
        shop.app.send_task("taskbridge.notify_event", ["acme"])
        wait_until(lambda: len(deployment.deliveries()) == 3, "delivered after the event by name")
        for number in "456":
            assert bridge.record_invoice("other", number, {"number": number})
        bridge.notify_many(["other", "acme", "other"])
        deployment.wait_until_idle()
    assert "fire_due" not in apart.text(), "no ticker"
    assert deployment.deliveries() == [("acme", n) for n in "123"] + [("other", n) for n in "456"]


def test_the_doctor_asks_for_the_app_if_workers_answer_with_another_serializer(
    shop: ModuleType, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an app of ours, as the command line has, and one whose workers answer with pickle
    ours = make_app(deployment.settings).app
    monkeypatch.setenv("TASKBRIDGE_PIPELINES", "tests.pipelines")
    shops: Any = {"SHOP_ACCEPTS": "pickle,json", "TASKBRIDGE_PIPELINES": "tests.pipelines_with_criteria"}
    with deployment.worker("-n", "shop@test", app=SHOP, **shops):
        refused, found = (examine(runtime_of(app)) for app in (ours, shop.app))
    first, following = runtime_of(ours).keys.queues
    runtime_of(ours).close()
    (worker,) = [one for one in refused if one.check == "workers"]
    assert worker.level is Level.PROBLEM
    assert "serializer" in worker.text
    assert "taskbridge doctor -A MODULE" in worker.remedy
    workers = [one for one in found if one.check == "workers"]
    assert [one.text for one in workers if one.level == Level.OK] == [
        f"1 serve {queue}" for queue in (first, following)
    ]
    (lacking,) = [one.text for one in workers if one.level != Level.OK]
    assert lacking.startswith("shop@test does not declare ")
    (unbounded,) = [one for one in found if one.text.startswith("the app of shop@test sets no socket_timeout")]
    assert "socket_keepalive" in unbounded.remedy


def test_what_keeps_a_worker_from_its_broker_is_told_by_the_doctor(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str, str]:
        (broker,) = [one for one in examine(runtime_of(deployment.app)) if one.check == "broker"]
        assert broker.level is Level.PROBLEM
        return broker.text, broker.remedy

    deployment.app.conf.accept_content = ["application/x-shop"]
    assert found()[0] == "this app has no serializer that its accept_content allows: ['application/x-shop']"
    deployment.app.conf.accept_content = ["json"]
    monkeypatch.setattr(redis, "VERSION", (3, 1, 0))
    text, remedy = found()
    assert text.startswith("kombu ")
    assert remedy == "run `pip install 'kombu[redis]'`, which installs versions that do"


@pytest.mark.parametrize("deployment", [{"key_prefix": "north"}], indirect=True)
def test_the_example_beside_another_deployment_on_its_redis(deployment: Deployment) -> None:
    # given the run of a deployment with another prefix
    south = make_app(replace(deployment.settings, key_prefix="south"))
    south.notify_event.delay("acme")
    theirs = runtime_of(south.app).keys.queue(Queue.FIRST)
    # when a worker of this one does its own
    url = deployment.settings.redis_url
    with deployment.worker(app=EXAMPLE, BROKER=url, TASKBRIDGE_PIPELINES=EXAMPLE) as worker:
        deployment.save("acme", "1")
        wait_until(lambda: "mail: acme has 1 new invoices" in worker.text(), "the example's own task")
        deployment.wait_until_idle()
    # then it took nothing of the other's
    assert deployment.deliveries() == [("acme", "1")]
    assert (theirs, deployment.redis.llen(theirs)) == ("taskbridge.south.first", 1)
    south.app.close()
