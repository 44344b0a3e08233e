"""TaskBridge on the app of a shop, in real workers: both do their work, and the shop's is as it was."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from taskbridge.gate import Queue
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from tests.deployment import ROOT, Deployment, worker_command
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

SHOP = "tests.host.shop"
SIGNED = "tests.host.signed"
ACCEPTING = "tests.host.accepting"
EXAMPLE = "examples.host_app"
NOWHERE = "postgresql://a:secret@127.0.0.1:1/b"


def that_ends(deployment: Deployment, app: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Start a worker of an app that cannot start; return what it said."""
    return subprocess.run(
        worker_command("-P", "solo", app=app),
        env=deployment.environment(**variables),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


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
        assert shop.add.delay(price, price).get(timeout=10) == 2 * price
        assert shop.app.send_task("shop.add", [price, price]).get(timeout=10) == 2 * price
        assert shop.order.delay().get(timeout=10) == "shop"
        assert shop.email.delay().get(timeout=10) == "emails"
        assert chord([shop.add.s(price, price), shop.add.s(price, 0)], shop.total.s())().get(timeout=10) == 3 * price
        # and ours works among them: in a chain, by name, as many, in a burst
        assert bridge.record_invoice("acme", "2", {"number": "2"})
        assert chain(bridge.notify_event.si("acme"), shop.add.si(price, price))().get(timeout=10) == 2 * price
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


def write_keys(folder: Path) -> None:
    """Make a key and a certificate for it that has signed itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name, now = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shop")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*plain))
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.mark.skipif(
    version("celery").startswith("5.4."),
    reason="Celery 5.4 compares times with and without a zone, so it can read no certificate",
)
@pytest.mark.parametrize("installs", ["last", pytest.param("first", marks=pytest.mark.slow)])
def test_an_app_that_accepts_signed_messages_alone_still_does(
    deployment: Deployment, installs: str, tmp_path: Path
) -> None:
    write_keys(tmp_path)
    broker = deployment.settings.redis_url
    shop: Any = {"SHOP_KEYS": str(tmp_path), "SHOP_BROKER": broker, "SHOP_INSTALLS": installs}
    with deployment.worker("-Q", "celery,taskbridge.first,taskbridge.next", app=SIGNED, **shop) as worker:
        # given messages that nobody signed, one of them in the queue of the runs
        with Celery(broker=broker, set_as_current=False) as foreign:
            foreign.send_task("signed.pay", ("unsigned",))
            foreign.send_task("signed.pay", ("unsigned",), queue="taskbridge.first")
            foreign.send_task("taskbridge.notify_event", ("nobody",), queue="taskbridge.first")
        # when the shop's own program sends its messages, an event among them
        environment = deployment.environment(**shop)
        subprocess.run([sys.executable, "-m", SIGNED], env=environment, cwd=ROOT, check=True, timeout=60)
        wait_until((tmp_path / "paid-signed").exists, "its own task")
        deployment.wait_until_idle()
        wait_until(lambda: worker.text().count("ContentDisallowed: Refusing to deserialize") == 3, "refused")
    # then these were taken, and nothing else
    assert deployment.deliveries() == [("acme", "1")]
    assert not (tmp_path / "paid-unsigned").exists()


def test_an_app_whose_own_serializer_its_workers_refuse_gets_one_that_they_take(deployment: Deployment) -> None:
    broker, accepts = deployment.settings.redis_url, "application/x-yaml,pickle"
    shop: Any = {"SHOP_BROKER": broker, "SHOP_ACCEPTS": accepts, "C_FORCE_ROOT": "1"}
    with deployment.worker(app=ACCEPTING, **shop) as worker:
        environment = deployment.environment(**shop)
        subprocess.run([sys.executable, "-m", ACCEPTING], env=environment, cwd=ROOT, check=True, timeout=60)
        wait_until(lambda: len(deployment.deliveries()) == 3 or "ContentDisallowed" in worker.text(), "delivered")
        assert "ContentDisallowed" not in worker.text()
    assert sorted(deployment.deliveries()) == [("acme", "1"), ("by-message", "1"), ("by-record", "1")]


@pytest.mark.slow
def test_an_app_that_accepts_nothing_that_can_be_written_does_not_start(deployment: Deployment) -> None:
    shop: Any = {"SHOP_BROKER": deployment.settings.redis_url, "SHOP_ACCEPTS": "application/x-shop"}
    ended = that_ends(deployment, ACCEPTING, **shop)
    said = "this app accepts no message that it can write: its accept_content is ['application/x-shop']"
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"taskbridge: {said}")
    # and so says doctor
    deployment.app.conf.accept_content = ["application/x-shop"]
    (broker,) = [one for one in examine(runtime_of(deployment.app)) if one.check == "broker"]
    assert (broker.level, broker.text) == (Level.PROBLEM, said)


def test_the_doctor_asks_for_the_app_if_workers_answer_with_another_serializer(
    shop: ModuleType, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an app of ours, as the command line has, and one whose workers answer with pickle
    ours = make_app(deployment.settings).app
    monkeypatch.setenv("TASKBRIDGE_PIPELINES", "tests.pipelines")
    shops: Any = {"SHOP_ACCEPTS": "pickle,json", "TASKBRIDGE_PIPELINES": "tests.pipelines_with_orders_alone"}
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


def test_versions_that_do_not_go_together_are_told_with_what_to_install(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = that_ends(deployment, "tests.host.old_redis")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"taskbridge: kombu {version('kombu')} does not work with redis-py 3.1.0: ")
    assert "pip install 'kombu[redis]'" in last
    assert "Traceback" not in ended.stderr
    # and so says doctor
    monkeypatch.setattr(redis, "VERSION", (3, 1, 0))
    (broker,) = [one for one in examine(runtime_of(deployment.app)) if one.check == "broker"]
    assert broker.level is Level.PROBLEM
    assert broker.text.startswith("kombu ")
    assert broker.remedy == "run `pip install 'kombu[redis]'`, which installs versions that do"


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
