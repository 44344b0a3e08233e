"""The example of the second pattern, run as its docstring says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.cli.counts import count
from tests.cli.program import Program
from tests.cli.test_up import READY, wait_for
from tests.waiting import TIME_FACTOR, wait_until

EXAMPLE = {"TASKBRIDGE_PIPELINES": "examples.log_alerts"}
SCALE = f"{0.01 * TIME_FACTOR:g}"
DELIVERIES = "SELECT count(*) FROM taskbridge.deliveries WHERE pipeline = 'log-alerts'"


def tenants(program: Program) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = program("status", "--json").json["pipelines"]["log-alerts"]["tenants"]
    return found


@pytest.mark.e2e
def test_a_service_s_first_alert_comes_at_once_and_the_next_after_its_delay(
    taskbridge: Program, engine: Engine, root: Path
) -> None:
    taskbridge.environment |= {**EXAMPLE, "LOG_ALERTS_SCALE": SCALE}
    messages = root / "examples" / "log_alerts.jsonl"
    with taskbridge.started_afresh("up") as running:
        wait_for(running, READY)
        first = taskbridge("record", "log-alerts", messages, "--id-field", "id", "--json").json
        assert first | {"new": 12, "matched": 9, "unmatched": 3, "tenants": 3} == first
        # No service waits for a delay before its first alert, but what came while that was sent does.
        wait_until(lambda: count(engine, DELIVERIES) == 9, "the first alerts")

        again = taskbridge("record", "log-alerts", messages, "--json").json
        assert again["matched"] == 9
        waiting = tenants(taskbridge)
        assert all(one["state"] == "waiting" and one["due_at"] for one in waiting.values()), waiting
        delays = [taskbridge("inspect", name, "--json").json["pipelines"]["log-alerts"]["delay"] for name in waiting]
        assert {one["criterion"] for one in delays} == {'$.level = "ERROR"'}
        assert sum(one["records"] for one in delays) == 9
        wait_until(lambda: count(engine, DELIVERIES) == 18, "the next alerts")
        wait_until(lambda: all(one["state"] == "idle" for one in tenants(taskbridge).values()), "all is quiet")
        assert count(engine, "SELECT count(DISTINCT token) FROM taskbridge.deliveries WHERE tenant = 'billing'") <= 3
        assert taskbridge("quarantine", "list", "--unmatched", "--json").json["unmatched"] == {"log-alerts": 6}
    log = (taskbridge.directory / ".taskbridge" / "worker-1.log").read_text(encoding="utf-8")
    assert "alert: billing has 3 errors and 1 warnings" in log
