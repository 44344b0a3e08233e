"""`taskbridge metrics` prints what there is in Prometheus's format, and says which server it did not reach."""

from __future__ import annotations

import math

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.observe.metrics import METRICS
from taskbridge.store import record_invoice
from tests.cli.alerts import declare
from tests.cli.held import open_circuit
from tests.cli.passes import stood
from tests.cli.program import Program
from tests.quarantined import put_in_quarantine
from tests.scraping import SAMPLES, samples

OF_WORKERS = {one.name for one in METRICS if one.group.source == "its ticker"}

NOT_KNOWN = {"taskbridge_pending_records", "taskbridge_oldest_pending_seconds"}
"""What nobody knows where no worker looks for records and no tenant with some has a runner."""


def names(found: dict[str, float]) -> set[str]:
    return {name.partition(" ")[0] for name in found}


def test_everything_is_there_from_the_beginning(taskbridge: Program) -> None:
    ended = taskbridge("metrics")
    assert (ended.status, ended.stderr) == (0, "")
    found = samples(ended.stdout)
    expected = {name for name in SAMPLES if not name.startswith(tuple(OF_WORKERS))}
    assert names(found) == expected - NOT_KNOWN, "no worker has ever polled"
    assert {name for name, value in found.items() if value == 1} == {"taskbridge_up redis", "taskbridge_up postgres"}
    never = {"taskbridge_tail_age_seconds", "taskbridge_base_age_seconds"}
    assert {name for name, value in found.items() if value == math.inf} == never
    assert sum(value for name, value in found.items() if name not in never) == 2


def test_nothing_waits_where_a_worker_looks_and_nobody_is_there_to_tell_how_long_ago_that_was(
    taskbridge: Program, engine: Engine
) -> None:
    stood(engine, "tail", 0)
    found = samples(taskbridge("metrics").stdout)
    assert [found[name] for name in sorted(NOT_KNOWN)] == [0, 0]
    assert found["taskbridge_oldest_message_seconds"] == 0
    for kind, seconds in (("tail", 100), ("base", 200)):
        stood(engine, kind, seconds)
    # nor is Redis
    found = samples(taskbridge("metrics", TASKBRIDGE_REDIS_URL="redis://127.0.0.1:1/0").stdout)
    assert found["taskbridge_tail_age_seconds"] == pytest.approx(100, abs=30)
    assert found["taskbridge_base_age_seconds"] == pytest.approx(200, abs=30)


def test_what_waits_is_counted_and_no_tenant_is_named(taskbridge: Program, engine: Engine) -> None:
    # given three records of two tenants with runners, one of them changed, and one that nobody was told of
    for tenant, number in (("France", "1"), ("France", "2"), ("Malta", "3")):
        record_invoice(engine, tenant, number, {})
        assert taskbridge("notify", tenant).status == 0
    record_invoice(engine, "Malta", "3", {"changed": True})
    record_invoice(engine, "Peru", "4", {})
    ended = taskbridge("metrics")
    found = samples(ended.stdout)
    assert 0 < found["taskbridge_oldest_message_seconds"] < 60
    assert (found["taskbridge_runners"], found["taskbridge_pending_records"]) == (2, 3)
    assert 0 < found["taskbridge_oldest_pending_seconds"] < 60
    assert not any(tenant in ended.stdout for tenant in ("France", "Malta", "Peru"))


def test_quarantine_and_the_circuit(taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys) -> None:
    # given four records in quarantine: one as it was, one discarded, one to be tried again, one that changed since
    for number in ("1", "2", "3", "4"):
        record_invoice(engine, "France", number, {})
        put_in_quarantine(engine, "France", number)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET discarded_at = now() WHERE external_id = '2'")
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET retry_at = now() WHERE external_id = '3'")
    record_invoice(engine, "France", "4", {"changed": True})
    open_circuit(gate_redis, keys, "Malta", "Spain")
    found = samples(taskbridge("metrics").stdout)
    assert (found["taskbridge_quarantined_records"], found["taskbridge_pending_records"]) == (1, 1)
    assert (found["taskbridge_circuit_open"], found["taskbridge_circuit_opened_total"]) == (1, 1)
    assert found["taskbridge_tenants_in_line"] == 1


@pytest.mark.parametrize(
    ("variable", "url", "away", "lost", "kept"),
    [
        ("TASKBRIDGE_REDIS_URL", "redis://:secret@127.0.0.1:1/0", "redis", "pending_records", "events_total"),
        ("TASKBRIDGE_POSTGRES_URL", "postgresql://u:secret@127.0.0.1:1/d", "postgres", "events_total", "runners"),
    ],
)
def test_a_server_that_is_away_costs_its_metrics_and_the_status(
    taskbridge: Program, variable: str, url: str, away: str, lost: str, kept: str
) -> None:
    ended = taskbridge("metrics", **{variable: url})
    found = samples(ended.stdout)
    assert ended.status == 1
    assert ended.stderr == (
        f"taskbridge: {away.capitalize()} cannot be reached (127.0.0.1:1): start it, or correct {variable} "
        "(`taskbridge doctor` checks it)\n"
    )
    assert {name for name, value in found.items() if name.startswith("taskbridge_up") and not value} == {
        f"taskbridge_up {away}"
    }
    assert f"taskbridge_{lost}" not in found
    assert f"taskbridge_{kept}" in found


def test_a_key_of_another_type_takes_only_what_needs_it_away(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys
) -> None:
    assert taskbridge("notify", "acme").status == 0
    gate_redis.delete(keys.runner("invoices", "acme"))
    gate_redis.set(keys.runner("invoices", "acme"), "somebody else's")
    ended = taskbridge("metrics")
    assert ended.status == 1
    assert keys.runner("invoices", "acme") in ended.stderr
    found = samples(ended.stdout)
    assert "taskbridge_oldest_message_seconds" not in found
    assert (found["taskbridge_runners"], found["taskbridge_up redis"]) == (1, 1)
    assert "taskbridge_runs_total" in found


@pytest.mark.parametrize("kind", ["runner", "circuit"])
def test_a_key_of_another_type_takes_nothing_of_other_pipelines_away(
    taskbridge: Program, gate_redis: redis.Redis, keys: Keys, kind: str
) -> None:
    declared = declare(taskbridge)
    for pipeline in ("alerts", "invoices"):
        assert taskbridge("notify", "acme", "--pipeline", pipeline, **declared).status == 0
    key = keys.runner("alerts", "acme") if kind == "runner" else keys.circuit("alerts")
    gate_redis.delete(key)
    gate_redis.set(key, "somebody else's")
    ended = taskbridge("metrics", **declared)
    assert ended.status == 1
    assert key in ended.stderr
    found, of_others = samples(ended.stdout, "alerts"), samples(ended.stdout)
    assert "taskbridge_oldest_message_seconds" not in found
    assert of_others["taskbridge_oldest_message_seconds"] > 0
    assert (of_others["taskbridge_runners"], of_others["taskbridge_up redis"]) == (1, 1)
    assert "taskbridge_quarantined_records" in of_others
