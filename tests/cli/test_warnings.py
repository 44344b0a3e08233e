"""What does not go on is told by `status` and `doctor`; stored texts cannot pretend to be more lines of theirs."""

from __future__ import annotations

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.store import record_invoice
from tests.cli.held import hold_back
from tests.cli.program import Program
from tests.deployment import Deployment
from tests.quarantined import set_aside
from tests.waiting import wait_until

FORGED = "boom\nFrance  idle  0 pending\r\x1b[2Jgone\u2028Spain"


def fail(engine: Engine, error: str) -> None:
    record_invoice(engine, "acme", "1", {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failing_since) "
            "VALUES ('invoices', 'acme', 3, %s, now())",
            (error,),
        )


@pytest.mark.parametrize("command", [["status"], ["status", "acme"], ["doctor"], ["quarantine", "list"]])
def test_an_error_text_forges_no_line_and_controls_no_terminal(
    taskbridge: Program, engine: Engine, command: list[str]
) -> None:
    fail(engine, FORGED)
    set_aside(engine, "acme", "1", reason=FORGED)
    ended = taskbridge(*command)
    assert not [line for line in ended.stdout.splitlines() if line.startswith(("France", "gone", "Spain"))]
    assert "\x1b" not in ended.stdout
    assert command == ["doctor"] or r"boom\nFrance" in ended.stdout


def test_a_reason_forges_no_line(taskbridge: Program) -> None:
    assert taskbridge("pause", "acme", "--reason", FORGED).status == 0
    assert not [line for line in taskbridge("status").stdout.splitlines() if line.startswith(("France", "gone"))]


def test_doctor_warns_of_work_that_does_not_go_on_and_strict_fails(taskbridge: Program, engine: Engine) -> None:
    def work() -> list[str]:
        findings = taskbridge("doctor", "--json").json["findings"]
        return [one["text"] for one in findings if one["check"] == "work" and one["level"] == "warning"]

    assert work() == []
    fail(engine, "boom")
    set_aside(engine, "acme", "1", reason="bad")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, reason, document) VALUES ('elsewhere', 'm', 'why', '{}')"
        )
    assert [text.partition(",")[0] for text in work()] == [
        "invoices: 1 tenants fail",
        "invoices: 1 records are in quarantine",
        "elsewhere: 1 messages match no criterion",
    ]
    assert taskbridge("status", "--json").json["unmatched_elsewhere"] == {"elsewhere": 1}
    assert "elsewhere: 1 unmatched" in taskbridge("status").stdout
    assert taskbridge("unmatched", "list", "--json").json == {"unmatched": {"elsewhere": 1}}
    (record,) = taskbridge("unmatched", "list", "elsewhere", "--json").json["records"]
    assert record["reason"] == "why"


@pytest.mark.e2e
def test_the_error_that_celery_logs_names_pipeline_and_tenant_and_doctor_is_strict(deployment: Deployment) -> None:
    with deployment.worker() as worker:
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE taskbridge.deliveries RENAME TO away")
        deployment.save("acme", "1")
        wait_until(lambda: "in a run of pipeline invoices, tenant 'acme'" in worker.text(), "named")
        program = Program(deployment.logs, deployment.environment())
        assert program("doctor").status == 0
        assert program("doctor", "--strict").status == 1
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE taskbridge.away RENAME TO deliveries")


def test_status_says_why_and_until_when_a_tenant_is_held(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    hold_back(gate_redis, keys, "acme")
    found = taskbridge("status", "--json").json["pipelines"]["invoices"]["tenants"]["acme"]
    assert (found["held"], "RetryAfter" in found["held_because"]) == (True, True)
    assert found["next_try_at"]
    assert "acme: held, next try in" in taskbridge("status").stdout
