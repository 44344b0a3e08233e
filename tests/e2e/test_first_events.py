"""First events beside backlogs, in real workers: who is served after whom, and not how fast."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from taskbridge.store import record_many
from tests.deployment import Deployment
from tests.waiting import wait_until

# Nothing is published again, and no budget ends, while a test runs.
UNHURRIED = {"runner_ttl": 3600.0, "republish_after": 3600.0, "run_budget": 3600.0}
CALL = 0.4


def save_backlogs(deployment: Deployment, *tenants: str, records: int = 40) -> None:
    rows: list[tuple[str, str, dict[str, Any]]] = [
        (tenant, f"{number:03}", {}) for number in range(records) for tenant in tenants
    ]
    record_many(deployment.engine, "invoices", rows)
    for tenant in tenants:
        deployment.notify_event.delay(tenant)


def calls(deployment: Deployment) -> list[str]:
    """Return whose calls have begun, in their order."""
    return [tenant for (tenant,) in deployment.rows("SELECT tenant FROM ledger ORDER BY id")]


@pytest.mark.e2e
@pytest.mark.parametrize("deployment", [UNHURRIED], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_first_event_is_served_before_the_next_call_of_a_backlog(deployment: Deployment, pool: str) -> None:
    with deployment.worker("-P", pool, "-c", "1", handler_seconds=CALL, batch_size=1):
        save_backlogs(deployment, "big", "also big")
        wait_until(lambda: len(calls(deployment)) >= 3, "both have a backlog")
        for number in range(3):
            before = len(calls(deployment))
            deployment.save(f"small {number}", "1")
            at_work = len(calls(deployment))
            wait_until(lambda: f"small {number}" in calls(deployment), "served")  # noqa: B023 - at once
            found = calls(deployment)[before:].index(f"small {number}")
            # A call may begin while the event is sent. A worker of threads has reserved a continuation besides.
            assert found <= at_work - before + (2 if pool == "threads" else 1)


@pytest.mark.e2e
@pytest.mark.parametrize("deployment", [UNHURRIED], indirect=True)
def test_a_busy_worker_leaves_first_events_to_others(deployment: Deployment) -> None:
    with deployment.worker("-c", "1", handler_seconds=2.0):
        deployment.save("long", "1")
        wait_until(lambda: calls(deployment) == ["long"], "the worker is busy")
        deployment.save("other", "1")
        queue = deployment.redis.lrange("taskbridge.first", 0, -1)
        assert [json.loads(json.loads(text)["body"])[0][1] for text in queue] == ["other"]
        wait_until(lambda: calls(deployment) == ["long", "other"], "the next one")


@pytest.mark.e2e
@pytest.mark.parametrize("deployment", [{**UNHURRIED, "run_budget": 0.1, "reserved": 1}], indirect=True)
def test_a_reserved_slot_takes_first_events_only(deployment: Deployment) -> None:
    with deployment.worker("-c", "2", handler_seconds=CALL, batch_size=1):
        save_backlogs(deployment, "big", "also big", "big as well")
        # Each of them begins with a first event.
        wait_until(lambda: len(calls(deployment)) >= 8, "continuations")
        deployment.save("small", "1")
        wait_until(lambda: ("small", "1") in deployment.deliveries(), "served")
        wait_until(lambda: len(calls(deployment)) >= 12, "more continuations")
    rows = deployment.rows("SELECT tenant, began, coalesce(ended, 'infinity') FROM ledger ORDER BY began")[4:]
    others = [row for row in rows if row[0] != "small"]
    assert all(ended <= began for (_, _, ended), (_, began, _) in pairwise(others)), "one continuation at a time"
    (small,) = [row for row in rows if row[0] == "small"]
    assert any(began < small[1] < ended for _, began, ended in others), "it waited for none of them"
