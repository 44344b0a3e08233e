"""`taskbridge status` and `inspect`: what they show is true, and bounded; `test_commands.py` has what it looks like."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.store import record
from tests.cli.alerts import alert, declare, write
from tests.cli.program import Program
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run


@pytest.fixture
def troubles(taskbridge: Program, engine: Engine) -> Program:
    """Tenants of which each but the first by name has the most of something, and many others after them by name."""
    run(
        engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "
        "SELECT 'invoices', tenant, n, '{}', now() - hours * interval '1 hour' FROM (VALUES ('calm', 1, 1), "
        "('failing', 2, 2), ('late', 1, 5), ('much', 4, 3), ('spoilt', 3, 4)) v (tenant, many, hours) "
        "CROSS JOIN generate_series(1, many) n",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures) VALUES ('invoices', 'failing', 3), "
        "('invoices', 'late', 1)",
    )
    put_in_quarantine(engine, "spoilt", "1", "2", "3")
    return taskbridge


def invoices(program: Program, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = program("status", "--json", *arguments).json["pipelines"]["invoices"]
    return found


def test_the_worst_come_first_if_asked_for(troubles: Program, engine: Engine) -> None:
    for order, expected in (
        ("name", ["calm", "failing", "late", "much", "spoilt"]),
        ("age", ["late", "much", "failing", "calm", "spoilt"]),
        ("pending", ["much", "failing", "calm", "late", "spoilt"]),
        ("failures", ["failing", "late", "calm", "much", "spoilt"]),
        ("quarantine", ["spoilt", "calm", "failing", "late", "much"]),
    ):
        assert list(invoices(troubles, "--sort", order)["tenants"]) == expected
        first = invoices(troubles, "--sort", order, "--limit", "2")
        assert list(first["tenants"]) == expected[:2]
        assert first["next"] == ("failing" if order == "name" else None)
    assert list(invoices(troubles, "--after", "failing", "--limit", "2")["tenants"]) == ["late", "much"]
    assert list(invoices(troubles, "--failing")["tenants"]) == ["failing", "late"]
    # Trouble is not overlooked behind many others.
    run(
        engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
        "SELECT 'invoices', 'a' || n FROM generate_series(1, 600) n",
    )
    for order, worst in (("failures", "failing"), ("quarantine", "spoilt")):
        assert list(invoices(troubles, "--sort", order, "--limit", "1")["tenants"]) == [worst]


def test_a_record_is_found_without_redis_by_its_key_however_it_is_spelled(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", '["eu", "211"]', {})
    record(engine, "invoices", "bolt", "7", {})
    record(engine, "nobodys", "acme", "7", {})
    away = {"TASKBRIDGE_REDIS_URL": "redis://127.0.0.1:1/0"}
    assert len(taskbridge("inspect", "--record", '[ "eu","211"]', "--json", **away).json["records"]) == 1
    found = taskbridge("inspect", "--record", "7", "--json", **away).json["records"]
    assert sorted((one["source"], one["tenant"], one["pipeline"]) for one in found) == [
        ("invoices", "bolt", "invoices"),
        ("nobodys", "acme", None),
    ]
    for one in (("bolt", "--record", "7"), ("--record", "7", "--source", "invoices")):
        assert [row["tenant"] for row in taskbridge("inspect", *one, "--json").json["records"]] == ["bolt"]


def test_a_record_that_waits_for_a_delay_says_which(taskbridge: Program, keys: Keys, gate_redis: redis.Redis) -> None:
    taskbridge.environment |= declare(taskbridge)
    seconds: Any = gate_redis.time()
    gate_redis.set(keys.last("alerts", "billing"), int(seconds[0]) * 1000, px=900_000)
    assert taskbridge("record", "alerts", write(taskbridge.directory / "a.jsonl", [alert("WARNING")])).status == 0
    delay = taskbridge("inspect", "billing", "--json").json["pipelines"]["alerts"]["delay"]
    assert (delay["records"], delay["criterion"]) == (1, '$.level = "WARNING"')
    assert delay["due_at"] is not None
    assert "due in 1" in taskbridge("inspect", "billing").stdout
    status = taskbridge("status", "--json").json["pipelines"]["alerts"]["tenants"]["billing"]
    assert status["due_at"] == delay["due_at"]
