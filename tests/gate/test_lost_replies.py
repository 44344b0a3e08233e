"""A connection breaks after Redis has executed a call: the client, which cannot know, sends the call again.

The repeated call must get the answer that was lost, and change nothing. Calls that do not bear the same nonce are
other callers': a doubled message, another event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Servers
from taskbridge.gate import Answer, Begun, Gate, Keys, Outcome, Queue, Settlement, State, client
from taskbridge.gate.message import lua_message
from taskbridge.gate.scripts import SCRIPTS, read, render
from taskbridge.gate.wire import COMMAND
from tests.runs import begin, settle

SPACING = Spacing(delay=200, lease=1_200)
TENANTS = [f"tenant-{at}" for at in range(16)]
MESSAGE = lua_message(Celery("tests", set_as_current=False))


@pytest.fixture
def tokens() -> list[str]:
    """The tokens of the runs that were published."""
    return []


@pytest.fixture
def gate(redis_client: redis.Redis, keys: Keys, tokens: list[str]) -> Gate:
    """A gate whose broker is elsewhere."""
    gate = Gate(redis_client, keys, publish=lambda *message: tokens.append(message[-1]))
    # A server that does not know a script yet has done nothing when it answers.
    for script in SCRIPTS.values():
        redis_client.script_load(render(script, read("publish_elsewhere.lua")))
        redis_client.script_load(render(script, MESSAGE))
    return gate


@contextmanager
def losing_one_reply(client: redis.Redis, meanwhile: Callable[[], object] = bool) -> Iterator[None]:
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


@pytest.fixture
def retrying(servers: Servers) -> Iterator[redis.Redis]:
    """A worker's client, which tries again."""
    made = client(servers.redis_url)
    yield made
    made.close()


def test_runs_that_begin_together_learn_what_they_were_given_at_first(
    gate: Gate, retrying: redis.Redis, keys: Keys, tokens: list[str]
) -> None:
    gate.notify_many([("invoices", tenant, SPACING) for tenant in TENANTS])
    gate.notify("invoices", TENANTS[0], SPACING)
    runs = [(RunKey("invoices", tenant, token), 0) for tenant, token in zip(TENANTS, tokens, strict=True)]

    cut_off = Gate(retrying, keys, publish=lambda *_: None)

    with losing_one_reply(retrying):
        begun = cut_off.begin_many(runs, "worker-1")

    assert [type(answer) for answer in begun] == [Begun] * len(TENANTS)
    assert [(answer.events, answer.new_events) for answer in begun if isinstance(answer, Begun)] == [
        (2, 2),
        *[(1, 1)] * 15,
    ]
    assert {(one.state, one.runs) for one in gate.look("invoices", TENANTS)} == {(State.RUNNING, 1)}


def test_a_begin_that_is_sent_again_after_its_run_was_replaced_is_refused(
    gate: Gate, retrying: redis.Redis, keys: Keys, tokens: list[str]
) -> None:
    gate.notify("invoices", "acme", SPACING)
    cut_off = Gate(retrying, keys, publish=lambda *_: None)

    def replaced() -> None:
        retrying.zadd(keys.due("invoices"), {"acme": 0})
        assert gate.expire("invoices", ["acme"]) == [Answer.REISSUED]

    with losing_one_reply(retrying, meanwhile=replaced):
        answer = begin(cut_off, RunKey("invoices", "acme", tokens[0]))

    assert answer is Answer.REFUSED


def test_messages_that_are_taken_come_to_who_took_them(
    redis_client: redis.Redis, gate: Gate, retrying: redis.Redis, keys: Keys
) -> None:
    assert gate is not None, "the scripts are loaded"
    pushing, cut_off = (Gate(one, keys, message=MESSAGE) for one in (redis_client, retrying))
    pushing.notify_many([("invoices", tenant, SPACING) for tenant in TENANTS])

    with losing_one_reply(retrying):
        messages, _ = cut_off.take(10, 10)
    following, _ = cut_off.take(10, 10)

    assert [message.run.tenant for message in (*messages, *following)] == TENANTS
    assert redis_client.llen(keys.queue(Queue.FIRST)) == 0


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
