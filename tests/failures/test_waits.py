"""The waiting lies in Redis and Postgres: a countdown would sit in a worker's memory until its visibility timeout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskbridge.declaring.batch import Batch, RetryAfter
from taskbridge.gate import Hold, Queue
from tests.failures.drill import Drill


def messages(drill: Drill) -> list[dict[str, Any]]:
    """Return the headers of all run messages."""
    return [json.loads(text)["headers"] for queue in Queue for text in drill.deployment.redis.lrange(queue, 0, -1)]


@pytest.mark.parametrize("trouble", [RetryAfter(60), RetryAfter(60, scope="pipeline"), ConnectionError(), ValueError()])
def test_a_tenant_that_waits_is_no_message_and_a_message_waits_for_nothing(drill: Drill, trouble: Exception) -> None:
    def handler(_: Batch) -> None:
        if len(drill.calls) == 1:
            raise trouble

    drill.handle(handler)
    drill.save("acme", "1")
    published = messages(drill)
    drill.run_one()

    assert messages(drill) == []
    (waiting,) = drill.standing()
    assert waiting.held
    assert waiting.deadline_ms is not None
    drill.gate.pass_to(waiting.deadline_ms)
    drill.gate.expire("invoices", ["acme"])
    published += messages(drill)
    drill.go_on()
    assert [(headers["eta"], headers["expires"]) for headers in published] == [(None, None)] * 2
    assert drill.states() == {"handled": 1}


def test_after_a_failure_who_looks_is_told_that_the_handler_asked_for_the_wait(drill: Drill) -> None:
    troubles = [ValueError(), RetryAfter(60), ValueError()]

    def handler(_: Batch) -> None:
        raise troubles[len(drill.calls) - 1]

    drill.handle(handler)
    drill.save("acme", "1")
    for expected in (Hold.RETRY, Hold.ASKED, Hold.RETRY):
        drill.run_one()
        (waiting,) = drill.standing()
        assert waiting.hold is expected
        assert waiting.deadline_ms is not None
        drill.gate.pass_to(waiting.deadline_ms)
        drill.gate.expire("invoices", ["acme"])
