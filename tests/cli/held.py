"""Tenants that a back-off holds, and a circuit that they open, made through the gate as runs that fail would."""

from __future__ import annotations

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Gate, Keys, Outcome, Settlement
from taskbridge.gate.message import lua_message
from taskbridge.integration.app import app
from tests.runs import begin, settle

RETRY_MS = 300_000


def hold_back(
    client: redis.Redis,
    keys: Keys,
    tenant: str,
    pipeline: str = "invoices",
    blame: Blame = Blame.NOBODY,
    *,
    failed: bool = True,
    paused: bool = False,
) -> Gate:
    """Let a run of the tenant fail, ask to wait five minutes, or find it `paused`; return the gate."""
    gate = Gate(client, keys, message=lua_message(app))
    gate.notify(pipeline, tenant, Spacing(delay=200))
    (runner,) = gate.look(pipeline, [tenant])
    assert runner.token is not None
    assert begin(gate, RunKey(pipeline, tenant, runner.token)) is not None
    end = Settlement(Outcome.RETRY, failed=failed, retry_ms=RETRY_MS, blame=blame)
    if paused:
        end = Settlement(Outcome.PAUSED)
    answer = settle(gate, RunKey(pipeline, tenant, runner.token), end, Spacing(delay=200))
    assert answer is Answer.HELD
    client.delete(*keys.queues)
    return gate


def open_circuit(client: redis.Redis, keys: Keys, *tenants: str) -> None:
    """Let a run of each tenant fail and blame the pipeline. One tenant alone opens no circuit."""
    for tenant in tenants:
        hold_back(client, keys, tenant, blame=Blame.PIPELINE)
