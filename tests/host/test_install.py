"""What `taskbridge.install` changes of an app, and what it leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.concurrency import gevent
from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool
from kombu import Queue as KombuQueue
from kombu import serialization

import taskbridge
from taskbridge.errors import ConfigurationError
from taskbridge.gate import Queue
from taskbridge.gate.message import shared_prefix
from taskbridge.integration.installation import check_pool, reset_all
from taskbridge.integration.queue_order import QueueOrder
from taskbridge.process.runtime import reset_runtimes
from taskbridge.settings import Settings
from tests.deployment import Deployment

SETTINGS = Settings(redis_url="redis://127.0.0.1:1/0")
OURS = [queue.value for queue in Queue]
FIRST, NEXT = OURS


def app_with(**conf: Any) -> Celery:
    made = Celery("host", broker="redis://127.0.0.1:1/0", set_as_current=False)
    made.conf.update(conf)
    return made


def served(app: Celery) -> list[str]:
    return sorted(app.amqp.queues.consume_from)


def configured_before(app: Celery) -> None:
    taskbridge.install(app, SETTINGS)


def configured_after(app: Celery) -> None:
    assert app.conf.broker_url
    assert app.amqp.router is not None
    taskbridge.install(app, SETTINGS)


either_way = pytest.mark.parametrize("install", [configured_before, configured_after])


def test_an_app_is_not_configured_by_it() -> None:
    app = Celery("host", set_as_current=False)
    app.config_from_object("no.such.module")
    bridge = taskbridge.install(app)
    assert not app.configured  # type: ignore[attr-defined]
    assert bridge.app is app


@either_way
@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (None, ["mine"]),
        ([KombuQueue("a"), KombuQueue("b")], ["a", "b"]),
        ({"c": {"exchange": "c", "routing_key": "c"}}, ["c"]),
    ],
)
def test_its_own_queues_are_served_beside_ours(install: Any, declared: Any, expected: list[str]) -> None:
    app = app_with(task_default_queue="mine", task_queues=declared, task_create_missing_queues=False)
    install(app)
    assert served(app) == [*expected, *OURS]
    assert app.conf.task_default_queue == "mine"
    assert app.amqp.router.route({}, "taskbridge.run")["queue"].name == Queue.NEXT
    app.amqp.queues.select(expected)
    assert served(app) == expected, "chosen queues are served alone"


@either_way
@pytest.mark.parametrize(
    "routes",
    [None, {"*": {"queue": "mine"}}, [("*", {"queue": "mine"})], ([("*", {"queue": "mine"})],), lambda *_, **__: None],
)
def test_its_routes_stay_behind_ours(install: Any, routes: Any) -> None:
    wrapped = (routes,) if isinstance(routes, list) else routes
    app = app_with(task_routes=wrapped)
    install(app)
    route = app.amqp.router.route
    assert route({}, "taskbridge.notify_event")["queue"].name == Queue.FIRST
    assert route({}, "host.task")["queue"].name == ("mine" if routes and not callable(routes) else "celery")


def test_it_sends_to_the_queues_of_the_prefix_that_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(task_routes={"*": {"queue": "mine"}})
    taskbridge.install(app)
    for prefix in ("first", "second", "first"):
        reset_runtimes()
        monkeypatch.setenv("TASKBRIDGE_KEY_PREFIX", prefix)
        reset_all()
        assert app.amqp.router.route({}, "taskbridge.notify_event")["queue"].name == f"taskbridge.{prefix}.first"
        assert app.amqp.router.route({}, "host.task")["queue"].name == "mine"
    assert len(app.conf.task_routes) == 3


@either_way
def test_nothing_else_of_its_settings_changes(install: Any) -> None:
    app, plain = (app_with(task_serializer="pickle", accept_content=["pickle"]) for _ in range(2))
    install(app)
    now, before = (one.conf.table(with_defaults=True, censored=False) for one in (app, plain))
    changed = {key for key in now if now[key] != before[key]}
    assert changed == {"task_routes", "broker_transport_options"}


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"broker_transport_options": {"visibility_timeout": 60}}, {"visibility_timeout": 60}),
        ({"broker_transport_options": {"queue_order_strategy": "sorted"}}, None),
        ({"broker_url": "amqp://host//"}, None),
        ({"broker_url": ["sentinel://a", "sentinel://b"]}, {}),
    ],
)
def test_the_order_of_queues_is_set_where_redis_has_none(conf: dict[str, Any], expected: Any) -> None:
    app = app_with(**conf)
    taskbridge.install(app, SETTINGS)
    options = app.conf.broker_transport_options
    if expected is None:
        assert options == conf.get("broker_transport_options", {})
    else:
        assert options == {**expected, "queue_order_strategy": "taskbridge.integration.queue_order:QueueOrder"}


@pytest.mark.parametrize(
    ("accepts", "own", "sent"),
    [
        # Its own serializer is one that its workers refuse.
        (["application/x-yaml", "pickle"], "json", "application/x-python-serialize"),
        # As one that signs its messages, and takes no others.
        (["application/x-sealed"], "sealed", "application/x-sealed"),
    ],
)
def test_an_app_gets_nothing_but_messages_that_its_workers_accept(
    deployment: Deployment, accepts: list[str], own: str, sent: str
) -> None:
    serialization.register("sealed", json.dumps, json.loads, "application/x-sealed", "utf-8")
    app = app_with(broker_url=deployment.settings.redis_url, accept_content=accepts, task_serializer=own)
    bridge = taskbridge.install(app, deployment.settings)
    bridge.notify_event.delay("acme")
    bridge.notify_event.apply_async(("acme",), countdown=60)
    app.tasks["taskbridge.record_event"].delay("log-alerts", {})
    messages = [json.loads(text) for text in deployment.redis.lrange(FIRST, 0, -1)]
    assert [message["content-type"] for message in messages] == [sent] * 3
    app.close()


def test_a_second_call_returns_the_same_and_refuses_other_settings() -> None:
    app = app_with()
    bridge = taskbridge.install(app, SETTINGS)
    assert taskbridge.install(app) is bridge
    assert taskbridge.install(app, SETTINGS) is bridge
    with pytest.raises(ConfigurationError, match=r"'host' with other settings: call `taskbridge\.install`"):
        taskbridge.install(app, Settings())
    assert app.conf.task_routes == [app.conf.task_routes[0]]


def test_settings_that_cannot_be_read_keep_no_other_task_from_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKBRIDGE_RUNNER_TTL", "never")
    app = app_with()
    bridge = taskbridge.install(app)
    assert app.amqp.router.route({}, "host.task")["queue"].name == "celery"
    with pytest.raises(ConfigurationError, match="TASKBRIDGE_RUNNER_TTL is 'never'"):
        bridge.notify_event.delay("acme")


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        # each queue of the app has its turn, and ours have one together
        ({"zoo": 2, NEXT: 2, FIRST: 2, "app": 2}, [FIRST, "app", "zoo", FIRST, "app", "zoo", NEXT, NEXT]),
        # a storm of first events lets a continuation through now and then
        ({NEXT: 3, FIRST: 8}, [FIRST] * 3 + [NEXT] + [FIRST] * 3 + [NEXT] + [FIRST] * 2 + [NEXT]),
        # a first event comes before all continuations that wait
        ({NEXT: 3, FIRST: 1}, [FIRST, NEXT, NEXT, NEXT]),
    ],
)
def test_the_order_in_which_queues_are_served(deployment: Deployment, sent: dict[str, int], taken: list[str]) -> None:
    options = {"queue_order_strategy": f"{QueueOrder.__module__}:{QueueOrder.__qualname__}"}
    app = Celery(broker=deployment.settings.redis_url, set_as_current=False)
    found: list[str] = []

    def note(_: Any, message: Any) -> None:
        found.append(message.delivery_info["routing_key"])
        message.ack()

    with app.connection_for_write(transport_options=options) as connection:
        channel: Any = connection.channel()
        queues = [KombuQueue(name, routing_key=name)(channel) for name in sent]
        for queue in queues:
            queue.declare()
            for _ in range(sent[queue.name]):
                app.amqp.Producer(channel).publish({}, routing_key=queue.name)
        channel.basic_qos(0, 1, False)
        with app.amqp.Consumer(channel, queues, callbacks=[note], accept=["json"]):
            while len(found) < len(taken):
                connection.drain_events(timeout=5)
    app.close()
    assert found == taken


class OfAnApp(BasePool):
    """A pool of an app's own."""


class Greener(gevent.TaskPool):
    """One that an app made of Celery's."""


def test_a_pool_that_would_stop_the_heartbeats_is_refused_with_what_to_start_instead() -> None:
    served: tuple[Any, ...] = ("prefork", "processes", "solo", "threads", "an.app:Pool", TaskPool, OfAnApp, None)
    for pool in served:
        check_pool(pool)
    refused: tuple[tuple[Any, str], ...] = (
        ("gevent", "gevent"),
        ("eventlet", "eventlet"),
        ("celery.concurrency.gevent:TaskPool", "gevent"),
        (Greener, "gevent"),
    )
    for pool, name in refused:
        with pytest.raises(ConfigurationError, match=f"the pool {name} cannot serve.*: start it with -P prefork"):
            check_pool(pool)


def test_a_worker_in_which_something_else_fails_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    app = app_with()
    taskbridge.install(app, SETTINGS)

    class Worker:
        """A worker whose pool cannot be made."""

        def __init__(self) -> None:
            self.app = app

        @property
        def pool_cls(self) -> object:
            raise RuntimeError("no pool")

    with pytest.raises(SystemExit) as ended:
        signals.worker_init.send(sender=Worker())
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "RuntimeError: no pool" in said
    assert said.endswith("taskbridge: this worker cannot start; the error is shown above\n")


@pytest.mark.parametrize(
    ("queues", "ours"), [(None, True), ("emails, taskbridge.next", True), ("emails", False), (["emails"], False)]
)
def test_only_a_worker_of_our_queues_has_our_transport(queues: Any, ours: bool) -> None:
    app = app_with()
    taskbridge.install(app, SETTINGS)

    class Worker:
        """A worker of this app."""

    worker: Any = Worker()
    worker.app = app
    signals.celeryd_init.send(sender="host", instance=worker, conf=app.conf, options={"queues": queues})
    assert bool(app.conf.broker_transport) is ours


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@orders/3",
        "rediss://orders",
        "unix:///run/redis.sock?db=1",
        "sentinel://:secret@s1/1?master_name=orders",
        "sentinel://s1;sentinel://s2/1?master_name=orders",
    ],
)
def test_the_broker_of_a_named_worker_is_its_redis(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://default/0")
    app = app_with(broker_user="rabbit", broker_vhost="9", broker_use_ssl=True, broker_read_url="amqp://rabbit")
    taskbridge.install(app, replace(SETTINGS, redis="orders", redis_urls={"orders": url}))
    worker = SimpleNamespace(app=app)
    signals.celeryd_init.send(sender="host", instance=worker, conf=app.conf, options={})
    assert shared_prefix(app, url, OURS) == "", "scripts in its Redis publish to its workers"
