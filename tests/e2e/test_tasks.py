"""The ways to an event: in the producer's process, as a message, by name, inline; and the message that it makes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery, chain

from taskbridge.common.run_key import RunKey
from taskbridge.errors import InvalidName, Unavailable, UnknownPipeline
from taskbridge.gate import Answer, Begun, Gate, Keys, Outcome, Queue, Reminder, Settlement, Spacing, State
from taskbridge.gate.message import arguments_text, lua_message
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import examine
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import notify_many
from taskbridge.settings import Settings
from taskbridge.store import record_many
from tests.deployment import Deployment
from tests.host.priorities import OPTIONS
from tests.runs import begin, settle
from tests.waiting import wait_until

SPACING = Spacing(delay=0)
TENANTS = ["acme", "Müller & Söhne", 'a "quoted" \\ name', "{1} %s $(x) ]==]", "名前 🧾", "a/b"]


def messages(deployment: Deployment, queue: Queue) -> list[dict[str, Any]]:
    return [json.loads(text) for text in reversed(deployment.redis.lrange(queue.value, 0, -1))]


def test_the_gates_message_is_what_celery_would_publish(deployment: Deployment) -> None:
    for tenant in TENANTS:
        compare_messages(deployment, tenant)
        deployment.redis.flushdb()


def compare_messages(deployment: Deployment, tenant: str) -> None:
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
def test_a_worker_runs_messages_of_every_tenant_name(deployment: Deployment) -> None:
    with deployment.worker("-P", "solo"):
        for tenant in TENANTS:
            deployment.save(tenant, "1")
        deployment.wait_until_idle()
    assert sorted(deployment.deliveries()) == sorted((tenant, "1") for tenant in TENANTS)


@pytest.mark.e2e
def test_events_by_name_from_another_program_do_the_same_in_a_worker(deployment: Deployment) -> None:
    foreign = Celery(broker=deployment.settings.redis_url, set_as_current=False)
    with deployment.worker("-P", "threads"):
        deployment.save("acme", "1", notify=False)
        foreign.send_task("taskbridge.notify_event", ["acme"], queue="taskbridge.first")
        deployment.wait_until_idle()
        deployment.save("acme", "2", notify=False)
        deployment.notify_event.apply_async(("acme",), countdown=0.1)
        wait_until(lambda: len(deployment.deliveries()) == 2, "countdown delivered")
        deployment.save("acme", "3", notify=False)
        chain(deployment.notify_event.si("other"), deployment.notify_event.si("acme")).apply_async()
        wait_until(lambda: len(deployment.deliveries()) == 3, "chain delivered")
        deployment.wait_until_idle()
    foreign.close()


def test_a_countdown_makes_an_ordinary_message(deployment: Deployment) -> None:
    deployment.notify_event.apply_async(("acme",), countdown=60)
    (message,) = messages(deployment, Queue.FIRST)
    assert message["headers"]["task"] == "taskbridge.notify_event"
    assert message["headers"]["eta"]
    assert deployment.gate.active("invoices") == []


@pytest.mark.e2e
def test_a_broker_elsewhere_gets_the_run_the_ordinary_way(deployment: Deployment) -> None:
    # given a gate whose Redis is not the broker's (here: another of its databases)
    gate_url = deployment.settings.redis_url.rpartition("/")[0] + "/0"
    apart = {"TASKBRIDGE_REDIS_URL": gate_url, "TASKBRIDGE_BROKER_URL": deployment.settings.redis_url}
    settings = Settings(
        postgres_url=deployment.settings.postgres_url,
        redis_url=gate_url,
        broker_url=deployment.settings.redis_url,
        key_prefix=f"apart-{id(deployment)}",
        notify_timeout=10,
    )
    bridge = make_app(settings)
    apart["TASKBRIDGE_KEY_PREFIX"] = settings.key_prefix
    deployment.settings = settings
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


def test_a_prefix_of_the_brokers_keys_is_kept(deployment: Deployment, redis_client: Any, keys: Keys) -> None:
    deployment.app.conf.broker_transport_options = {"global_keyprefix": "shared-"}
    gate = Gate(redis_client, keys, message=lua_message(deployment.app, "shared-"), queue_prefix="shared-")
    gate.notify("invoices", "acme", Spacing(delay=200, lease=1200))
    queue = keys.queue(Queue.FIRST)
    (text,) = redis_client.lrange(f"shared-{queue}", 0, -1)
    redis_client.delete(f"shared-{queue}")
    assert json.loads(text)["properties"]["delivery_info"] == {"exchange": "", "routing_key": queue}


@pytest.mark.parametrize(
    ("gate", "broker", "options", "same"),
    [
        ("redis://:a@host:6379/0", "redis://:a@host/0", {}, True),
        ("redis://host", "redis://host:6379/0", {}, True),
        ("redis://host/3", "redis://host", {"broker_vhost": "3"}, True),
        ("redis://host/0?db=3", "redis://host/3", {}, True),
        ("redis://host/0?db=3", "redis://host/0", {}, False),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3", {}, True),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock", {}, False),
        ("rediss://host/0", "rediss://host/0?ssl_cert_reqs=none", {}, True),
        ("redis://host/0", "redis://host/1", {}, False),
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
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("another database by a parameter of the URL", marks=pytest.mark.slow),
        "priorities without 0",
    ],
)
def test_runs_reach_workers_whose_broker_is_almost_the_gates(deployment: Deployment, case: str) -> None:
    app = "taskbridge"
    if case == "priorities without 0":
        app = "tests.host.own_priorities"
        deployment.app.conf.broker_transport_options = OPTIONS
    else:
        broker = deployment.settings.redis_url
        prefix = f"almost-{id(deployment)}"
        deployment.settings = replace(
            deployment.settings, redis_url=f"{broker}?db=0", broker_url=broker, key_prefix=prefix
        )
        bridge = make_app(deployment.settings)
        deployment.app, deployment.notify_event = bridge.app, bridge.notify_event
    with deployment.worker(app=app):
        deployment.save("acme", "1", "2")
        wait_until(lambda: len(deployment.deliveries()) == 2, "the runs")
        (probe,) = (one for one in examine(runtime_of(deployment.app)) if one.check == "probe")
        assert probe.level == "ok", probe.text
        deployment.wait_until_idle()


def test_eager_mode_runs_inline(deployment: Deployment) -> None:
    deployment.app.conf.task_always_eager = True
    deployment.save("acme", "1", "2")
    # Each event ran to its end: nothing is queued, nothing waits, nothing lingers.
    assert deployment.deliveries() == [("acme", "1"), ("acme", "2")]
    assert messages(deployment, Queue.FIRST) == []
    assert deployment.gate.look("invoices", ["acme"])[0].state is State.IDLE


def test_eager_mode_starts_a_tenant_that_waits_for_its_turn(deployment: Deployment) -> None:
    gate = Gate(deployment.redis, Keys(), publish=lambda *_: None)
    gate.notify("invoices", "acme", SPACING)
    run = RunKey("invoices", "acme", str(gate.look("invoices", ["acme"])[0].token))
    assert isinstance(begin(gate, run), Begun)
    assert settle(gate, run, Settlement(Outcome.MORE), SPACING, most_in_flight=0) is Answer.POSTPONED

    deployment.app.conf.task_always_eager = True
    deployment.save("acme", "1")

    assert deployment.deliveries() == [("acme", "1")]


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


def test_an_unknown_pipeline_is_refused_with_those_that_there_are(deployment: Deployment) -> None:
    with pytest.raises(UnknownPipeline, match=r"'exports'; there are: .*invoices"):
        deployment.notify_event.delay("acme", pipeline="exports")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://:wrong@{place}/0", "refuses the password"),
        ("redis://{place}/0", "refuses the password"),
        ("redis://:wrong@127.0.0.1:1/0", "cannot be reached"),
    ],
)
def test_a_redis_that_cannot_be_used_is_named_without_its_password(deployment: Deployment, url: str, text: str) -> None:
    parts = urlsplit(deployment.settings.redis_url)
    if parts.password is None:
        pytest.skip("the Redis of these tests asks for no password")
    place = f"{parts.hostname}:{parts.port}"
    bridge = make_app(Settings(redis_url=url.format(place=place)))
    with pytest.raises(Unavailable, match=text) as refused:
        bridge.notify_event.delay("acme")
    assert "wrong" not in str(refused.value)
    bridge.app.close()
