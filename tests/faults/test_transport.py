"""Redis keeps no books about the run messages that a worker has; the prefetch limit and a warm shutdown are as ever."""

from __future__ import annotations

import json
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from kombu import Connection, Consumer, Exchange, Queue
from sqlalchemy import make_url

from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.gate.message import RUN_TASK
from taskbridge.integration.app import make_app
from taskbridge.integration.transport import Transport, transport_of
from taskbridge.process.connections import broker_connection
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from tests.deployment import Deployment
from tests.waiting import wait_until
from verification.torture.servers import RedisHere

# Nothing is published again while a test runs.
UNHURRIED = {"runner_ttl": 3600.0, "republish_after": 3600.0}
ORDER = [f"tenant-{number}" for number in range(8)]
RUNS = 20


@pytest.mark.e2e
def test_a_run_costs_no_command_beside_its_scripts_and_the_look_into_the_queue(deployment: Deployment) -> None:
    database = deployment.redis.connection_pool.connection_kwargs["db"]
    sent: Counter[str] = Counter()
    with deployment.worker(), deployment.redis.monitor() as monitor:  # type: ignore[no-untyped-call]
        for number in range(RUNS):
            deployment.save(f"tenant-{number}", "1")
            wait_until(lambda: len(deployment.deliveries()) == number + 1, "delivered")  # noqa: B023 - at once
        deployment.redis.echo("end")
        while "ECHO end" not in (seen := monitor.next_command())["command"]:
            # Flower's events may be switched off.
            ours = seen["db"] == database and seen["client_type"] != "lua"
            if ours and ".celeryev/" not in seen["command"]:
                sent[seen["command"].split(" ")[0].upper()] += 1
    assert {command for command, times in sent.items() if times >= RUNS / 2} == {"EVALSHA", "BRPOP"}


@pytest.mark.e2e
@pytest.mark.parametrize("deployment", [UNHURRIED], indirect=True)
def test_a_worker_reserves_no_message_for_a_busy_slot_and_a_warm_shutdown_keeps_their_order(
    deployment: Deployment,
) -> None:
    def queued() -> list[str]:
        """Return the tenants of the queued messages, the next one first."""
        messages = map(json.loads, reversed(deployment.redis.lrange("taskbridge.first", 0, -1)))
        return [json.loads(one["body"])[0][1] for one in messages]

    # given two runs that take long, and what else their worker has
    with deployment.worker(handler_seconds=1.5) as stopping:
        for tenant in ORDER:
            deployment.save(tenant, "1")
        wait_until(lambda: len(deployment.rows("SELECT 1 FROM ledger")) == 2, "two handlers are at work")
        assert queued() == ORDER[2:], "none that no slot is free for"
        # when it is told to stop
        stopping.stop()
    begun = {tenant for tenant, _ in deployment.deliveries()}
    assert len(begun) < len(ORDER) - 2
    assert queued() == [tenant for tenant in ORDER if tenant not in begun]
    with deployment.worker():
        wait_until(lambda: len(deployment.deliveries()) == len(ORDER), "delivered")


OURS = "taskbridge.integration.transport:"


@pytest.mark.parametrize("task", [RUN_TASK, "another"])
def test_a_lost_connection_can_be_closed_while_messages_are_out_and_they_be_acknowledged_later(
    server: RedisHere, task: str
) -> None:
    """Celery closes it so, and a worker ends at any error but one of the connection."""
    connection = Connection(server.url, transport=f"{OURS}Transport")
    queue, taken = Queue("some"), list[Any]()
    connection.Producer().publish({}, routing_key="some", declare=[queue], headers={"task": task})
    connection.Consumer([queue], callbacks=[lambda _, message: taken.append(message)]).consume()
    commands = Queue("commands", Exchange("commands", type="fanout"), auto_delete=True)
    Consumer(connection.channel(), [commands]).consume()
    # given a message, and a look into the queue that Redis does not answer before it dies
    with suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=0.5)
    server.strike(signal.SIGKILL)
    # when it is ended as a worker ends it
    connection.collect()
    connection.close()
    # nor does the task that ends later, and whose message comes again
    for message in taken:
        message.ack()
    assert len(taken) == 1
    assert not connection.connected


@pytest.fixture
def shop(server: RedisHere) -> Iterator[Any]:
    """A queue there, with the transport of a worker and a message of the shop's own in it."""
    with Connection(server.url, transport=f"{OURS}Transport") as connection:
        queue = connection.SimpleQueue("shop")
        queue.put({})
        yield queue


def entries(server: RedisHere) -> tuple[int, int]:
    """Return how many messages Redis has for those that are taken and not acknowledged, in both of kombu's keys."""
    return server.client.hlen("unacked"), server.client.zcard("unacked_index")


def takes_no_more(queue: Any, timeout: float) -> None:
    with pytest.raises(queue.Empty):
        queue.get(timeout=timeout)


def wait_for_entries(server: RedisHere, queue: Any, count: int) -> None:
    """Ask for messages, as a worker does, until so many are not acknowledged."""

    def seen() -> bool:
        takes_no_more(queue, 0.2)
        return entries(server) == (count, count)

    wait_until(seen, f"{count} entries")


@pytest.mark.parametrize("end", ["ack", "requeue"])
def test_an_acknowledgement_that_redis_refused_is_made_later(
    server: RedisHere, shop: Any, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = shop.get()
    assert entries(server) == (1, 1)
    # given that Redis refuses it, and its second try as well
    server.client.config_set("min-replicas-to-write", 1)
    getattr(message, end)()
    takes_no_more(shop, 1.5)
    # when that has ended, and the next message is asked for
    server.client.config_set("min-replicas-to-write", 0)
    if end == "requeue":
        shop.get(timeout=5).ack()
    wait_for_entries(server, shop, 0)
    shop.channel.close()
    assert "visibility timeout" not in caplog.text


def test_a_message_without_an_entry_gets_one_when_redis_takes_it(server: RedisHere, shop: Any) -> None:
    server.client.config_set("maxmemory", 1)
    message = shop.get()
    assert entries(server) == (0, 0)
    server.client.config_set("maxmemory", 0)
    wait_for_entries(server, shop, 1)
    message.ack()
    assert entries(server) == (0, 0)


CERTIFICATES = {"ssl_cert_reqs": ssl.CERT_NONE}


@pytest.mark.parametrize(
    ("conf", "expected", "shown"),
    [
        ({"broker_url": "redis://host:1/2"}, "Transport", "redis://host:1/2"),
        (
            {"broker_url": "rediss://host:1/2", "broker_use_ssl": CERTIFICATES},
            "SecureTransport",
            "rediss://host:1/2",
        ),
        ({"broker_url": ["sentinel://a:1", "sentinel://b:1"]}, "SentinelTransport", "sentinel://a:1//"),
        ({"broker_url": "rediss://host:1/2"}, None, ""),
        ({"broker_url": "amqp://host//"}, None, ""),
        ({"broker_url": "redis://host", "broker_transport": "package.module:Theirs"}, None, ""),
        ({"broker_url": "redis://host", "broker_transport_options": {"ack_emulation": False}}, None, ""),
    ],
)
def test_a_transport_of_ours_stands_in_for_kombus_and_for_no_other(
    conf: dict[str, Any], expected: str | None, shown: str
) -> None:
    app = Celery(set_as_current=False)
    app.conf.update(conf)
    found = transport_of(app.conf)
    assert found == (expected and OURS + expected)
    if found:
        app.conf.broker_transport = found
        # Not every kombu shows a password where there is none.
        assert app.connection_for_read().as_uri().replace(":**@", "") == shown


@pytest.mark.e2e
def test_a_worker_keeps_our_transport_when_it_switches_to_the_next_broker(deployment: Deployment) -> None:
    brokers = f"redis://127.0.0.1:1/0;{deployment.settings.redis_url}"
    app = make_app(replace(deployment.settings, broker_url=brokers)).app
    signals.celeryd_init.send(sender="host", instance=SimpleNamespace(app=app), conf=app.conf, options={})
    with app.connection_for_read() as first, first.clone() as connection:
        connection.ensure_connection(max_retries=2, interval_start=0)
        assert connection.port == make_url(deployment.settings.redis_url).port
        assert isinstance(connection.transport, Transport)


@pytest.mark.parametrize("redis", ["", "orders"])
def test_a_connection_that_could_not_reach_a_sentinel_keeps_its_transport_and_its_password(redis: str) -> None:
    urls = {"": "redis://a", redis: "sentinel://:secret@a/1;sentinel://b;sentinel://c?master_name=shop"}
    app = make_app(Settings(redis_url=urls.pop(""), redis_urls=urls)).app
    app.conf.broker_transport = transport_of(app.conf)
    pipelines = Pipelines()
    pipelines.declare(Pipeline("orders", print, LatencyNeutral(), 500, redis=redis))
    runtime_of(app).pipelines = pipelines
    connection = broker_connection(app, **runtime_of(app).on("orders").broker)
    before = connection.transport_cls, connection.info()

    connection.maybe_switch_next()

    assert (connection.transport_cls, connection.info()) == before
