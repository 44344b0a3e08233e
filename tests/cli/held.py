"""Tenants that a back-off or a pause holds, made through the gate as runs would."""

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
    *,
    blame: Blame = Blame.NOBODY,
    paused: bool = False,
) -> Gate:
    """Let a run of the tenant fail, which blames the pipeline or nobody, or find it `paused`; return the gate."""
    gate = Gate(client, keys, message=lua_message(app))
    gate.notify("invoices", tenant, Spacing(delay=200))
    (runner,) = gate.look("invoices", [tenant])
    assert runner.token is not None
    key = RunKey("invoices", tenant, runner.token)
    assert begin(gate, key) is not None
    failed = Settlement(Outcome.RETRY, failed=True, retry_ms=RETRY_MS, blame=blame)
    answer = settle(gate, key, Settlement(Outcome.PAUSED) if paused else failed, Spacing(delay=200))
    assert answer is Answer.HELD
    client.delete(*keys.queues)
    return gate
