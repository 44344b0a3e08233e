"""The broker is another server than the gate's, and it is away: producers and tickers go on, and deadlines recover."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from taskbridge.gate import Answer, Queue, State
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producing.notify import notify, notify_many
from tests.deployment import Deployment
from tests.gate.test_wire import free_port, redis_at

BOUND = 20.0
"""Seconds; without bounds it was as long as the server is away."""


@pytest.fixture(params=["stopped", "silent"])
def nowhere(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker that refuses connections, or of one that takes them and says nothing."""
    if request.param == "stopped":
        yield f"redis://127.0.0.1:{free_port()}/0"
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def elsewhere(deployment: Deployment, broker: str) -> Runtime:
    return runtime_of(make_app(replace(deployment.settings, broker_url=broker)).app)


def test_events_while_the_broker_is_away(
    deployment: Deployment, nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = elsewhere(deployment, nowhere)
    before = time.monotonic()

    with caplog.at_level(logging.WARNING):
        assert notify(runtime.app, "a") is Answer.STARTED
        assert notify_many(runtime.app, [f"t{at}" for at in range(200)]) == [Answer.STARTED] * 200
        runtime.publish(Queue.NEXT, "invoices", "a", "token")

    assert time.monotonic() - before < BOUND
    assert runtime.gate.look("invoices", ["a"])[0].state is State.QUEUED
    assert runtime.gate.look("invoices", ["a"])[0].deadline_ms is not None
    assert "its deadline publishes again" in caplog.text
    assert len(caplog.records) < 50


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
