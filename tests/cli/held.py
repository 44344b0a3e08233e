"""A tenant that a back-off holds, made through the gate as a run that fails would."""

from __future__ import annotations

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Gate, Keys, Outcome, Settlement
from taskbridge.gate.message import lua_message
from taskbridge.integration.app import app
from tests.runs import begin, settle

RETRY_MS = 300_000


def hold_back(client: redis.Redis, keys: Keys, tenant: str, pipeline: str = "invoices") -> Gate:
    """Let a run of the tenant fail, so that it waits five minutes; return the gate."""
    gate = Gate(client, keys, message=lua_message(app))
    gate.notify(pipeline, tenant, Spacing(delay=200))
    (runner,) = gate.look(pipeline, [tenant])
    assert runner.token is not None
    assert begin(gate, RunKey(pipeline, tenant, runner.token)) is not None
    answer = settle(
        gate, RunKey(pipeline, tenant, runner.token), Settlement(Outcome.RETRY, retry_ms=RETRY_MS), Spacing(delay=200)
    )
    assert answer is Answer.HELD
    client.delete(*keys.queues)
    return gate
