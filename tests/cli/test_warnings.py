"""What does not go on is told by `status` and `doctor`; stored texts cannot pretend to be more lines of theirs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.store import record_invoice
from tests.cli.held import hold_back, open_circuit
from tests.cli.program import Program
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine
from tests.waiting import wait_until

FORGED = "boom\nFrance  idle  0 pending\r\x1b[2Jgone\u2028Spain"

BACK_OFF = r"back-off: it failed 3 times in a row.*; next try in .*; last error: boom$"


def fail(engine: Engine, error: str, tenant: str = "acme") -> None:
    record_invoice(engine, tenant, "1", {})
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failing_since) "
            "VALUES ('invoices', %s, 3, %s, now())",
            (tenant, error),
        )


@pytest.mark.parametrize("command", [["status"], ["status", "acme"], ["doctor"], ["quarantine", "list"]])
def test_an_error_text_forges_no_line_and_controls_no_terminal(
    taskbridge: Program, engine: Engine, command: list[str]
) -> None:
    fail(engine, FORGED)
    put_in_quarantine(engine, "acme", "1", reason=FORGED)
    ended = taskbridge(*command)
    assert not [line for line in ended.stdout.splitlines() if line.startswith(("France", "gone", "Spain"))]
    assert "\x1b" not in ended.stdout
    assert command == ["doctor"] or r"boom\nFrance" in ended.stdout or "boom France" in ended.stdout


def test_a_reason_forges_no_line(taskbridge: Program) -> None:
    assert taskbridge("pause", "acme", "--reason", FORGED).status == 0
    assert not [line for line in taskbridge("status").stdout.splitlines() if line.startswith(("France", "gone"))]


def test_doctor_warns_of_work_that_does_not_go_on_and_strict_fails(taskbridge: Program, engine: Engine) -> None:
    def work() -> list[str]:
        findings = taskbridge("doctor", "--json").json["findings"]
        return [one["text"] for one in findings if one["check"] == "work" and one["level"] == "warning"]

    assert work() == []
    fail(engine, "boom")
    put_in_quarantine(engine, "acme", "1", reason="bad")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, key, reason, document) VALUES ('elsewhere', 'm', 'why', '{}')"
        )
    assert [text.partition(",")[0] for text in work()] == [
        "invoices: 1 tenant fails",
        "invoices: 1 record is in quarantine",
        "elsewhere: 1 message matches no criterion",
    ]
    assert taskbridge("status", "--json").json["unmatched_elsewhere"] == {"elsewhere": 1}
    assert "elsewhere: 1 unmatched" in taskbridge("status").stdout
    assert taskbridge("unmatched", "list", "--json").json == {"unmatched": {"elsewhere": 1}}
    (record,) = taskbridge("unmatched", "list", "elsewhere", "--json").json["records"]
    assert record["reason"] == "why"


@pytest.mark.parametrize(
    ("pipelines", "worker"),
    [
        ("tests.pipelines", "`celery -A taskbridge worker`, or a worker of your own app"),
        ("examples.host_app", "`celery -A examples.host_app worker`"),
    ],
)
def test_doctor_names_a_worker_of_the_app_that_taskbridge_was_installed_on(
    taskbridge: Program, pipelines: str, worker: str
) -> None:
    findings = taskbridge("doctor", "--json", TASKBRIDGE_PIPELINES=pipelines).json["findings"]
    (found,) = [one for one in findings if one["check"] == "workers"]
    assert found["remedy"] == f"start {worker}, or `taskbridge up`"


def test_doctor_warns_of_an_open_circuit(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    open_circuit(gate_redis, keys, "France", "Spain")
    ended = taskbridge("doctor", "--strict")
    assert ended.status == 1
    assert "invoices: the circuit is open, 0 probes failed" in ended.stdout


def test_a_shell_that_does_not_declare_the_pipelines_says_so_and_not_that_all_is_well(
    taskbridge: Program, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')")
        for tenant in ("a", "b"):
            connection.exec_driver_sql(
                "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) VALUES ('orders', %s)", (tenant,)
            )

    said = "nothing is known here of orders (2 tenants): this process does not declare it"
    assert said in taskbridge("status").stdout
    for command in (["quarantine", "list"], ["saved"], ["saved", "a"], ["top"]):
        ended = taskbridge(*command)
        assert (ended.status, ended.stderr.count(said), ended.stdout.count(said)) == (0, 1, 0), command
        assert "TASKBRIDGE_PIPELINES" in ended.stderr
        ended = taskbridge(*command, "--pipeline", "invoices")
        assert said not in ended.stderr + ended.stdout, "what was asked for was looked at"
    for command in (["status"], ["quarantine", "list"], ["saved"], ["top"]):
        assert taskbridge(*command, "--json").json["undeclared"] == {"orders": 2}
    texts = [one["text"] for one in taskbridge("doctor", "--json").json["findings"] if one["level"] == "warning"]
    assert said in texts
    (taskbridge.directory / "handlers.py").write_text(
        "from taskbridge import pipeline\n@pipeline('orders')\ndef handle(batch): pass\n", encoding="utf-8"
    )
    for command in (["status"], ["quarantine", "list"], ["saved"], ["top"]):
        ended = taskbridge(*command, TASKBRIDGE_PIPELINES="handlers")
        assert "nothing is known here" not in ended.stdout + ended.stderr


@pytest.mark.e2e
def test_the_error_that_celery_logs_names_pipeline_and_tenant_and_doctor_is_strict(deployment: Deployment) -> None:
    with deployment.worker() as worker:
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE taskbridge.deliveries RENAME TO away")
        deployment.save("acme", "1")
        wait_until(lambda: "run of pipeline invoices, tenant 'acme', failed: " in worker.text(), "named")
        program = Program(deployment.logs, deployment.environment())
        assert program("doctor").status == 0
        assert program("doctor", "--strict").status == 1
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE taskbridge.away RENAME TO deliveries")


@pytest.mark.parametrize(
    ("fields", "circuit", "says"),
    [
        ({"held": "turn"}, {}, "it waits for its turn; pipelines alternate, and tenants of one go in order of arrival"),
        ({"held": 1, "permits": 3}, {}, "its rate limit is used up; it may go on in"),
        ({"held": 1, "joined": 1}, {}, "it is in the wait queue for a free run slot"),
        ({"held": 1, "joined": 1}, {"rest": 9_000_000_000_000}, "its handler asked the whole pipeline to wait"),
        ({"held": 1, "joined": 1}, {"until": 1, "opened_at": 1}, "the circuit of invoices has been open for"),
        ({"held": "asked"}, {"until": 1, "opened_at": 1}, "its handler asked to wait (RetryAfter); next try in"),
        ({"held": 1}, {}, "its last run ended before it could store why"),
        ({"held": "asked"}, {}, "its handler asked to wait (RetryAfter); next try in"),
    ],
)
def test_status_says_why_a_tenant_is_held(
    taskbridge: Program,
    gate_redis: redis.Redis,
    keys: Keys,
    fields: dict[Any, Any],
    circuit: dict[Any, Any],
    says: str,
) -> None:
    hold_back(gate_redis, keys, "acme")
    gate_redis.hset(keys.runner("invoices", "acme"), mapping=fields)
    if circuit:
        gate_redis.hset(keys.circuit("invoices"), mapping=circuit)
    found = taskbridge("status", "--json").json["pipelines"]["invoices"]["tenants"]["acme"]
    assert found["held_because"].startswith(says)
    asked = taskbridge("why", "acme", "--json").json["pipelines"]["invoices"]
    assert (asked["cause"], asked["sentence"][: len(says)]) == (found["held_cause"], says)


def test_status_says_until_when_a_tenant_is_held_and_the_error_or_pause_that_holds_it(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys, engine: Engine
) -> None:
    def found() -> dict[str, Any]:
        one: dict[str, Any] = taskbridge("status", "--json").json["pipelines"]["invoices"]["tenants"]["acme"]
        return one

    hold_back(gate_redis, keys, "acme")
    assert found()["next_try_at"]
    assert "acme: its last run ended before it could store why" in taskbridge("status").stdout
    fail(engine, "boom")
    assert re.search(BACK_OFF, found()["held_because"])
    assert taskbridge("pause", "acme", "--reason", "a wrong price").status == 0
    assert re.search(r"^paused by .* \(a wrong price\)$", found()["held_because"])


def test_status_does_not_call_a_wait_that_the_handler_asked_for_a_back_off(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys, engine: Engine
) -> None:
    tenants = ("acme", "beta", "coil", "dent")
    for tenant in tenants:
        hold_back(gate_redis, keys, tenant, failed=tenant == "acme")
        fail(engine, "boom", tenant)

    because = {
        name: one["held_because"]
        for name, one in taskbridge("status", "--json").json["pipelines"]["invoices"]["tenants"].items()
    }
    assert because.pop("acme").startswith("back-off: it failed 3 times in a row")
    asked = "its handler asked to wait (RetryAfter); next try in"
    assert all(text.startswith(asked) for text in because.values()), because
    lines = taskbridge("status").stdout
    assert re.search(f"acme: {BACK_OFF}", lines, re.MULTILINE), lines
    assert re.search(r"3 tenants fail alike .*, which their handler asked for \(RetryAfter\), last: boom", lines), lines
    alone = rf"beta: failed 3 times in a row.*, last: boom; now {re.escape(asked)}"
    assert re.search(alone, taskbridge("status", "beta").stdout)
