"""`taskbridge quarantine`: what goes to quarantine is shown, tried again or given up, and nothing else is touched."""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime, timedelta, timezone

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys, Queue
from taskbridge.store import record_invoice
from tests.cli.program import Program
from tests.cli.scenes import alert, declare, events, write
from tests.cli.test_bad_input import assert_one_clear_line
from tests.cli.test_output import on_a_terminal
from tests.quarantined import put_in_quarantine, states


@pytest.fixture
def bad(taskbridge: Program, engine: Engine) -> Program:
    """Servers with three invoices in quarantine, of two tenants, and one that waits."""
    for tenant, number in (("France", "1"), ("France", "2"), ("Malta", "1"), ("Malta", "fine")):
        record_invoice(engine, tenant, number, {})
    put_in_quarantine(engine, "France", "1", reason="ValueError: no customer 17", attempts=5)
    put_in_quarantine(engine, "France", "2", reason="no price", cause="rejected")
    put_in_quarantine(engine, "Malta", "1", reason="no price")
    return taskbridge


def quarantined(engine: Engine) -> list[str]:
    return sorted(f"{tenant} {number}" for (tenant, number), state in states(engine).items() if state == "quarantined")


def test_another_try_makes_them_pending_and_notifies_their_tenants(
    bad: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    ended = bad("quarantine", "retry", "fine", "1", "\x1b[2J", "fine", "--json")
    assert ended.status == 1
    assert ended.json == {
        "pipeline": "invoices",
        "retried": 2,
        "tenants": {"France": 1, "Malta": 1},
        "records": [{"tenant": "France", "external_id": "1"}, {"tenant": "Malta", "external_id": "1"}],
        "not_found": ["fine", "\x1b[2J"],
    }
    assert quarantined(engine) == ["France 2"]
    assert events(gate_redis, keys.prefix) == 2
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 2
    assert [one["state"] for one in bad("quarantine", "list", "1", "--json").json["records"]] == ["retrying"] * 2


def test_on_a_terminal_it_asks_before_it_gives_up(bad: Program, engine: Engine) -> None:
    before = quarantined(engine)
    asked = on_a_terminal(bad, "quarantine", "discard", "1", typed="n\n", status=1)
    assert "Discard the chosen records?" in asked
    assert quarantined(engine) == before
    on_a_terminal(bad, "quarantine", "discard", "1", typed="y\n")
    assert quarantined(engine) == ["France 2"]


def test_what_cannot_be_meant_changes_nothing(bad: Program, engine: Engine, gate_redis: redis.Redis) -> None:
    for options, expected in (
        ([], "choose records by ID, --tenant or --reason, or all of them with --all"),
        (["--all", "1"], "choose records by ID"),
        (["--tenant", ""], "the tenant is empty"),
        (["--unmatched", "--tenant", "France"], "unmatched records have no tenant"),
    ):
        assert_one_clear_line(bad("quarantine", "discard", "--yes", *options), expected, status=2)
    for since, expected in (("0h", "is not a duration"), ("2026-01-31T08:00", "no time zone"), ("36501d", "not a")):
        assert_one_clear_line(bad("quarantine", "list", f"--since={since}"), expected, status=2)
    assert len(quarantined(engine)) == 3
    assert gate_redis.dbsize() == 0


def test_without_a_pipeline_no_quarantine_is_overlooked_nor_what_came_lately(
    taskbridge: Program, engine: Engine
) -> None:
    # given two pipelines that read invoices, with records in both quarantines since one, two and three days
    (taskbridge.directory / "two.py").write_text(
        "from taskbridge import pipeline\n"
        "@pipeline('mirror', source='invoices')\n@pipeline('invoices')\ndef handle(batch): pass\n",
        encoding="utf-8",
    )
    taskbridge.environment["TASKBRIDGE_PIPELINES"] = "two"
    now = datetime.now(UTC)
    for number in "123":
        record_invoice(engine, "acme", number, {})
    assert taskbridge("status").status == 0
    for pipeline, number, days in (
        ("invoices", "1", 3),
        ("mirror", "2", 2),
        ("invoices", "3", 1),
        ("mirror", "3", 0.9),
    ):
        put_in_quarantine(engine, "acme", number, pipeline=pipeline, quarantined_at=now - timedelta(days=days))

    def found(*options: str) -> tuple[int, list[str]]:
        answer = taskbridge("quarantine", "list", *options, "--json").json
        return answer["count"], [f"{one['pipeline']} {one['external_id']}" for one in answer["records"]]

    assert found() == (4, ["invoices 1", "mirror 2", "invoices 3", "mirror 3"])
    assert found("--limit", "2") == (4, ["invoices 1", "mirror 2"])
    assert taskbridge("quarantine", "list", "--limit", "2").stdout.endswith("and 2 more: use --limit\n")
    assert found("--pipeline", "mirror") == (2, ["mirror 2", "mirror 3"])
    assert taskbridge("quarantine", "list", "nix").stdout == "invoices, mirror: no such records in quarantine\n"
    assert found("--since", "36h") == (2, ["invoices 3", "mirror 3"])
    for hours in (0, 20, -23.9):
        since = (now - timedelta(days=2.5)).astimezone(timezone(timedelta(hours=hours))).isoformat()
        assert found("--since", since) == (3, ["mirror 2", "invoices 3", "mirror 3"])


def test_unmatched_records_get_their_tenants_after_the_criteria_changed(
    taskbridge: Program, configured: dict[str, str], gate_redis: redis.Redis
) -> None:
    variables = declare(taskbridge)
    file = write(taskbridge.directory / "a.jsonl", [alert("INFO"), alert("DEBUG", "search"), "null"])
    assert taskbridge("record", "alerts", file, **variables).status == 0
    assert events(gate_redis, configured["TASKBRIDGE_KEY_PREFIX"]) == 0
    changed = declare(taskbridge, "changed", ERROR=300.0, INFO=60.0)
    again = ("quarantine", "retry", "--unmatched", "--all", "--pipeline", "alerts", "--json")
    matched = taskbridge(*again, **changed)
    assert matched.json | {"matched": 1, "unmatched": 2, "tenants": {"billing": 1}} == matched.json
    assert events(gate_redis, configured["TASKBRIDGE_KEY_PREFIX"]) == 1
    left = ("quarantine", "list", "--unmatched", "--json")
    assert taskbridge(*left, **changed).json["unmatched"] == {"alerts": 2}
    first = taskbridge(*left, **changed).json["records"][0]["message_id"]
    gone = ("quarantine", "discard", "--unmatched", first, "--pipeline", "alerts", "--yes", "--json")
    assert taskbridge(*gone, **changed).json["discarded"] == [first]
    assert taskbridge(*left, **changed).json["unmatched"] == {"alerts": 1}


def test_who_decided_is_written_down(bad: Program, engine: Engine) -> None:
    who = pwd.getpwuid(os.getuid()).pw_name
    assert bad("quarantine", "retry", "2").status == 0
    assert bad("quarantine", "discard", "--tenant", "Malta", "--yes").status == 0
    assert bad("pause", "Spain", "--reason", "wrong prices").status == 0
    for _ in range(2):
        assert bad("resume", "Spain").status == 0
    assert bad("drain", "Spain", "--timeout", "5").status == 0
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT who, action, pipeline, tenant, key, detail FROM taskbridge.audit ORDER BY id"
        ).all()
    assert [tuple(row) for row in rows] == [
        (who, "retry", "invoices", "France", "2", "1 record"),
        (who, "discard", "invoices", "Malta", None, "1 record"),
        (who, "pause", "invoices", "Spain", None, "wrong prices"),
        (who, "resume", "invoices", "Spain", None, None),
        (who, "drain", "invoices", "Spain", None, None),
    ]
