"""`taskbridge status` and `inspect`: what they show is true, and bounded; `test_commands.py` has what it looks like."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from taskbridge.store import record
from tests.cli.program import Program
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run


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


def test_the_worst_come_first_if_asked_for_also_behind_many_others(taskbridge: Program, engine: Engine) -> None:
    # given tenants of which each but the first by name has the most of something
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

    def found(*arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = taskbridge("status", "--json", *arguments).json["pipelines"]["invoices"]
        return answer

    for order, expected in (
        ("name", ["calm", "failing", "late", "much", "spoilt"]),
        ("age", ["late", "much", "failing", "calm", "spoilt"]),
        ("pending", ["much", "failing", "calm", "late", "spoilt"]),
        ("failures", ["failing", "late", "calm", "much", "spoilt"]),
        ("quarantine", ["spoilt", "calm", "failing", "late", "much"]),
    ):
        first = found("--sort", order, "--limit", "3")
        assert (list(first["tenants"]), first["next"]) == (expected[:3], "late" if order == "name" else None)
    assert list(found("--after", "failing", "--limit", "2")["tenants"]) == ["late", "much"]
    run(
        engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) "
        "SELECT 'invoices', 'a' || n FROM generate_series(1, 600) n",
    )
    for order, worst in (("failures", "failing"), ("quarantine", "spoilt")):
        assert list(found("--sort", order, "--limit", "1")["tenants"]) == [worst]
