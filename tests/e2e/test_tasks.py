"""The ways to an event: in the producer's process, as a message, by name, inline; and the message that it makes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from taskbridge.errors import InvalidName
from taskbridge.gate import Gate, Keys, Queue, Reminder, State
from taskbridge.gate.message import arguments_text
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import examine
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify_many
from taskbridge.settings import Settings
from taskbridge.store import record_many
from tests.deployment import Deployment
from tests.waiting import wait_until

TENANTS = ["acme", "Müller & Söhne", 'a "quoted" \\ name', "{1} %s $(x) ]==]", "名前 🧾", "a/b"]


def messages(deployment: Deployment, queue: Queue) -> list[dict[str, Any]]:
    return [json.loads(text) for text in reversed(deployment.redis.lrange(queue.value, 0, -1))]


@pytest.mark.parametrize("tenant", TENANTS)
def test_the_gates_message_is_what_celery_would_publish(deployment: Deployment, tenant: str) -> None:
    # given a run that the script published
    deployment.notify_event.delay(tenant)
    (ours,) = messages(deployment, Queue.FIRST)
    (status,) = deployment.gate.look("invoices", [tenant])
    assert status.token is not None
    deployment.redis.delete(Queue.FIRST.value)
    # when Celery publishes the same run the ordinary way
    arguments = ("invoices", tenant, status.token)
    options: dict[str, Any] = {"task_id": ours["headers"]["id"], "argsrepr": arguments_text(*arguments)}
    deployment.app.tasks["taskbridge.run"].apply_async(arguments, queue=Queue.FIRST.value, **options)
    (theirs,) = messages(deployment, Queue.FIRST)
    # then both are one message, but for the encoding of the body, the tag of the delivery, who sent it, the queue for
    # results (there are none), and a copy of an option that nobody reads
    assert json.loads(ours.pop("body")) == json.loads(base64.b64decode(theirs.pop("body")))
    assert theirs["properties"].pop("body_encoding") == "base64"
    assert theirs["properties"].pop("argsrepr")
    for message in (ours, theirs):
        message["properties"].pop("reply_to")
        assert message["properties"].pop("delivery_tag")
        assert message["headers"].pop("origin")
        message["headers"]["argsrepr"] = json.loads(message["headers"]["argsrepr"])
    assert ours == theirs


@pytest.mark.e2e
def test_a_broker_elsewhere_gets_the_run_the_ordinary_way(deployment: Deployment) -> None:
    # given a gate whose Redis is not the broker's (here: another of its databases)
    gate_url = deployment.settings.redis_url.rpartition("/")[0] + "/0"
    here = deployment.settings
    deployment.settings = replace(here, redis_url=gate_url, broker_url=here.redis_url, key_prefix=f"apart-{id(here)}")
    bridge = make_app(deployment.settings)
    deployment.app, deployment.notify_event = bridge.app, bridge.notify_event
    # when a burst goes through it
    bridge.notify_event.delay("acme")
    (text,) = deployment.redis.lrange(runtime_of(bridge.app).keys.queue(Queue.FIRST), 0, -1)
    assert json.loads(text)["properties"]["body_encoding"] == "base64", "published by kombu"
    with deployment.worker():
        deployment.save("acme", "1", "2", "3")
        deployment.wait_until_idle()
    # then it is as with one server
    assert deployment.deliveries() == [("acme", "1"), ("acme", "2"), ("acme", "3")]


@pytest.mark.parametrize(
    ("gate", "broker", "options", "same"),
    [
        ("redis://:a@host:6379", "redis://:a@host/0", {}, True),
        ("redis://host/3", "redis://host", {"broker_vhost": "3"}, True),
        ("redis://host/0?db=3", "redis://host/0", {}, False),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3", {}, True),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock", {}, False),
        ("redis://host/0", "redis://other/0", {}, False),
        ("redis://host/0", "rediss://host/0", {}, False),
        ("redis://host/0", "sentinel://host:6379/0", {}, False),
        ("redis://host/0", "amqp://host//", {}, False),
        ("redis://host/0", "redis://host:6379;redis://other:6379", {}, False),
        ("redis://host/0", "redis://host/0", {"broker_read_url": "redis://other/0"}, False),
        ("redis://host/0", "redis://host/0", {"broker_transport_options": {"priority_steps": [1, 5, 9]}}, False),
        ("redis://host/0", "redis://host/0", {"broker_transport_options": {"priority_steps": [0, 5]}}, True),
    ],
)
def test_scripts_publish_runs_where_it_is_certain_that_workers_read_them_there(
    gate: str, broker: str, options: dict[str, Any], same: bool
) -> None:
    app = make_app(Settings(postgres_url="postgresql://h/d", redis_url=gate, broker_url=broker)).app
    app.conf.update(options)
    assert runtime_of(app).publishes_in_gate is same
    app.close()


@pytest.mark.e2e
def test_runs_reach_workers_whose_broker_has_priorities(deployment: Deployment) -> None:
    options = {"priority_steps": [1, 5, 9], "queue_order_strategy": "priority"}
    deployment.app.conf.broker_transport_options = options
    with deployment.worker(app="tests.host.options", TEST_BROKER_OPTIONS=json.dumps(options)):
        deployment.save("acme", "1", "2")
        wait_until(lambda: len(deployment.deliveries()) == 2, "the runs")
        (probe,) = (one for one in examine(runtime_of(deployment.app)) if one.check == "probe")
        assert probe.level == "ok", probe.text
        deployment.wait_until_idle()


def test_eager_mode_gives_many_tenants_their_turns(deployment: Deployment) -> None:
    tenants = [f"tenant-{at:03}" for at in range(120)]
    record_many(deployment.engine, "invoices", [(tenant, "1", {}) for tenant in tenants])
    Gate(deployment.redis, Keys(), publish=lambda *_: None).remind(
        "invoices", [Reminder(tenant, 0) for tenant in tenants], by_reconciler=True
    )

    deployment.app.conf.task_always_eager = True
    deployment.save("acme", "1")

    # Were each run within the one before it, Python would stop at its bound of recursion.
    assert deployment.deliveries() == [(tenant, "1") for tenant in ["acme", *tenants]]
    assert messages(deployment, Queue.FIRST) == []
    assert deployment.gate.look("invoices", ["acme"])[0].state is State.IDLE


def test_a_tenant_that_could_be_mistaken_is_refused_before_anything_is_sent(deployment: Deployment) -> None:
    one_tenant: list[Any] = ["acme", "", b"acme"]
    for tenants in one_tenant:
        with pytest.raises(InvalidName, match="pass a list of tenants"):
            notify_many(deployment.app, tenants)
    unfit: list[Any] = ["", "a" * 201, "a\nb", " a", 7]
    for tenant in unfit:
        with pytest.raises(InvalidName):
            deployment.notify_event.delay(tenant)
        with pytest.raises(InvalidName):
            notify_many(deployment.app, ["good", tenant])
    assert list(deployment.redis.scan_iter("*")) == []
