"""A connection breaks after Redis has done a command: the client, which cannot know, sends the command again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Servers
from taskbridge.gate import Answer, Begun, Gate, Keys, Outcome, Settlement, State
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.gate.wire import COMMAND
from tests.runs import begin, settle

SPACING = Spacing(delay=200, lease=1_200)


@pytest.fixture
def tokens() -> list[str]:
    """The tokens of the runs that were published."""
    return []


@pytest.fixture
def gate(redis_client: redis.Redis, keys: Keys, tokens: list[str]) -> Gate:
    return Gate(redis_client, keys, publish=lambda *message: tokens.append(message[-1]))


@pytest.fixture
def retrying(servers: Servers) -> Iterator[redis.Redis]:
    """A client that tries again, as redis-py does by default, only without a pause."""
    client = redis.Redis.from_url(servers.redis_url, decode_responses=True, retry=Retry(NoBackoff(), 1))
    # A server that does not know a script yet has done nothing when it answers.
    for script in SCRIPTS.values():
        client.script_load(render(script, read("publish_elsewhere.lua")))
    yield client
    client.close()


@contextmanager
def losing_one_reply(client: redis.Redis, meanwhile: Callable[[], object] = int) -> Iterator[None]:
    """Lose the next reply: the server has done the command, and `meanwhile` happens before the client tries again."""
    client.ping()
    connection: Any = client.connection_pool.get_connection(*COMMAND)
    read_response = connection.read_response

    def lose(*args: Any, **kwargs: Any) -> Any:
        read_response(*args, **kwargs)
        connection.read_response = read_response
        meanwhile()
        raise redis.ConnectionError("the reply is lost")

    connection.read_response = lose
    client.connection_pool.release(connection)
    yield
    assert connection.read_response is read_response, "a reply was lost"


def test_a_settle_that_is_sent_again_ends_nobody_elses_run(
    gate: Gate, retrying: redis.Redis, keys: Keys, tokens: list[str]
) -> None:
    gate.notify("invoices", "acme", SPACING)
    begin(gate, RunKey("invoices", "acme", tokens[-1]))
    # The scripts publish themselves, so the next run's message is out although the reply is lost.
    clumsy = Gate(retrying, keys, publish=lambda *_: None)

    def next_run() -> None:
        token = gate.look("invoices", ["acme"])[0].token
        assert token is not None
        assert isinstance(begin(gate, RunKey("invoices", "acme", token)), Begun)

    with losing_one_reply(retrying, meanwhile=next_run):
        answer = settle(clumsy, RunKey("invoices", "acme", tokens[-1]), Settlement(Outcome.MORE), SPACING)

    (status,) = gate.look("invoices", ["acme"])
    assert answer is Answer.LOST
    assert (status.state, status.runs) == (State.RUNNING, 2), "the second run is under way, and nobody else's to end"


def test_a_begin_that_is_sent_again_starts_no_second_run(
    gate: Gate, retrying: redis.Redis, keys: Keys, tokens: list[str]
) -> None:
    gate.notify("invoices", "acme", SPACING)
    clumsy = Gate(retrying, keys, publish=lambda *_: None)

    with losing_one_reply(retrying):
        begun = begin(clumsy, RunKey("invoices", "acme", tokens[-1]))

    (status,) = gate.look("invoices", ["acme"])
    assert begun is Answer.REFUSED
    assert (status.state, status.runs) == (State.RUNNING, 1)
    assert status.deadline_ms is not None, "its deadline brings it back"


def test_a_notify_that_is_sent_again_loses_no_event_and_starts_no_second_runner(
    gate: Gate, retrying: redis.Redis, keys: Keys
) -> None:
    clumsy = Gate(retrying, keys, publish=lambda *_: None)

    with losing_one_reply(retrying):
        answer = clumsy.notify("invoices", "acme", SPACING)

    (status,) = gate.look("invoices", ["acme"])
    assert answer is Answer.ABSORBED
    assert (status.state, status.events) == (State.QUEUED, 2)
