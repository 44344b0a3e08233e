"""The broker is another server than the gate's, and it is away: producers and tickers go on, and deadlines recover."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from taskbridge.gate import Answer, Queue, State
from taskbridge.integration.app import make_app
from taskbridge.process.publisher import BROKER_TIMEOUT
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.notify import notify, notify_many, send_committed
from tests.deployment import Deployment
from tests.ending import ended
from tests.gate.test_wire import redis_at
from tests.scraping import free_ports
from tests.transactions.black_hole import BlackHole
from tests.waiting import taking_at_most, wait_until

BOUND = 20.0
"""Seconds; without bounds it was as long as the server is away."""


@pytest.fixture(params=["stopped", "silent"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker that refuses connections, or of one that takes them and says nothing."""
    if request.param == "stopped":
        yield f"redis://127.0.0.1:{free_ports()}/0"
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def elsewhere(deployment: Deployment, broker: str) -> Runtime:
    return runtime_of(make_app(replace(deployment.settings, broker_url=broker)).app)


def test_events_while_the_broker_is_away(
    deployment: Deployment, nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = elsewhere(deployment, nowhere)
    with taking_at_most(BOUND), caplog.at_level(logging.WARNING):
        assert notify(runtime.app, "a") is Answer.STARTED
        assert notify_many(runtime.app, [f"t{at}" for at in range(200)]) == [Answer.STARTED] * 200
        runtime.publisher.publish(Queue.NEXT, "invoices", "a", "token")
    assert runtime.gate.look("invoices", ["a"])[0].state is State.QUEUED
    assert runtime.gate.look("invoices", ["a"])[0].deadline_ms is not None
    assert "it is retried at its deadline" in caplog.text
    assert len(caplog.records) < 50


def test_a_request_does_not_wait_for_the_broker(deployment: Deployment, nowhere: str) -> None:
    settings = replace(deployment.settings, broker_url=nowhere, notify_timeout=0.1)
    runtime = runtime_of(make_app(settings).app)
    runtime.app.finalize()
    with taking_at_most(BROKER_TIMEOUT):
        # Redis may be slow in a test; whether it answered says the gate.
        for tenant in "abcdef":
            send_committed(runtime.app, {("invoices", tenant): None})
    for status in runtime.gate.look("invoices", runtime.gate.active("invoices")):
        assert status.deadline_ms is not None


@pytest.mark.parametrize("several", [False, True])
def test_the_app_s_own_time_outs_make_nobody_wait_longer(deployment: Deployment, *, several: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        app = make_app(replace(deployment.settings, broker_url=url)).app
        app.conf.broker_transport_options = {"socket_timeout": 60.0, "socket_connect_timeout": None}
        if several:
            app.conf.update(broker_url=[url, url])
        runtime = runtime_of(app)
        with taking_at_most(BOUND):
            runtime.publisher.publish(Queue.NEXT, "invoices", "a", "token")


LATE = """
import sys, threading, time
from taskbridge import notify_event
def late():
    time.sleep(0.5)
    notify_event.delay("b")
    print("notified")
notify_event.delay("a")
threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_main_one_can_notify(deployment: Deployment, tmp_path: Path) -> None:
    with redis_at(tmp_path / "broker") as url:
        done = ended([sys.executable, "-c", LATE], deployment.environment(TASKBRIDGE_BROKER_URL=url))
        assert (done.returncode, done.stdout.strip()) == (0, "notified"), done.stderr
        assert redis.Redis.from_url(url).llen(Queue.FIRST.value) == 2


def test_a_broker_that_answers_late_gets_the_runs_of_events_and_of_deadlines(
    deployment: Deployment, tmp_path: Path
) -> None:
    with redis_at(tmp_path / "broker") as url:
        slow = BlackHole(url, answers_after=0.3)
        runtime = runtime_of(make_app(replace(deployment.settings, broker_url=slow.url, notify_timeout=0.1)).app)
        messages = redis.Redis.from_url(url)
        for tenant in "abc":
            send_committed(runtime.app, {("invoices", tenant): None})
        runtime.publisher.publish(Queue.NEXT, "invoices", "d", "token")

        assert messages.llen(Queue.NEXT.value) == 1
        tenants = len(runtime.gate.active("invoices"))
        wait_until(lambda: messages.llen(Queue.FIRST.value) == tenants, "the runs of events are published")
        slow.close()


def test_a_broker_that_comes_back(deployment: Deployment, tmp_path: Path) -> None:
    with redis_at(tmp_path / "broker") as url:
        runtime = elsewhere(deployment, url)
        messages = redis.Redis.from_url(url)
        assert notify(runtime.app, "a") is Answer.STARTED
        assert messages.llen(Queue.FIRST.value) == 1

        messages.client_kill_filter(_type="normal")
        assert notify(runtime.app, "b") is Answer.STARTED

        assert messages.llen(Queue.FIRST.value) == 2
    assert notify(runtime.app, "c") is Answer.STARTED
