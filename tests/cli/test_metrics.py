"""`taskbridge metrics` and `taskbridge doctor`: what there is, what is wrong, and no password."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.gate import Blame, Keys
from taskbridge.observe.metrics import METRICS
from taskbridge.store import record_invoice
from tests.cli.program import Ended, Program
from tests.cli.scenes import hold_back, stood
from tests.quarantined import put_in_quarantine
from tests.scraping import SAMPLES, samples

OF_WORKERS = {one.name for one in METRICS if one.group.scope == "this worker"} - {"taskbridge_up"}


def names(found: dict[str, float]) -> set[str]:
    return {name.partition(" ")[0] for name in found}


def test_everything_is_there_from_the_beginning(taskbridge: Program) -> None:
    ended = taskbridge("metrics")
    assert (ended.status, ended.stderr) == (0, "")
    found = samples(ended.stdout)
    expected = {name for name in SAMPLES if not name.startswith(tuple(OF_WORKERS))}
    assert names(found) == expected
    assert {name for name, value in found.items() if value == 1} == {"taskbridge_up redis", "taskbridge_up postgres"}
    never = {"taskbridge_tail_age_seconds", "taskbridge_base_age_seconds"}
    assert {name for name, value in found.items() if value == math.inf} == never
    assert sum(value for name, value in found.items() if name not in never) == 2


def test_what_waits_is_counted_and_no_tenant_is_named(
    taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    stood(engine, "tail", 100)
    # given four records in quarantine: one as it was, one discarded, one to be tried again, one that changed since
    for number in ("1", "2", "3", "4"):
        record_invoice(engine, "France", number, {})
        put_in_quarantine(engine, "France", number)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET discarded_at = now() WHERE external_id = '2'")
        connection.exec_driver_sql("UPDATE taskbridge.quarantine SET retry_at = now() WHERE external_id = '3'")
    record_invoice(engine, "France", "4", {"changed": True})
    # and a circuit that two tenants have opened
    for tenant in ("Malta", "Spain"):
        hold_back(gate_redis, keys, tenant, blame=Blame.PIPELINE)
    record_invoice(engine, "Malta", "5", {})
    ended = taskbridge("metrics")
    found = samples(ended.stdout)
    assert found["taskbridge_quarantined_records"] == 1
    assert found["taskbridge_tail_age_seconds"] == pytest.approx(100, abs=30)
    assert not any(tenant in ended.stdout for tenant in ("France", "Malta", "Spain"))
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


def findings(ended: Ended) -> dict[str, list[str]]:
    """Level and text of what was found, by check."""
    found: dict[str, list[str]] = {}
    for one in ended.json["findings"]:
        found.setdefault(one["check"], []).append(f"{one['level']}: {one['text']}")
    return found


@pytest.fixture
def evicting(gate_redis: redis.Redis) -> Iterator[None]:
    before: Any = gate_redis.config_get("maxmemory*")
    gate_redis.config_set("maxmemory", 100_000_000)
    gate_redis.config_set("maxmemory-policy", "allkeys-lru")
    yield
    gate_redis.config_set("maxmemory", before["maxmemory"])
    gate_redis.config_set("maxmemory-policy", before["maxmemory-policy"])


@pytest.mark.usefixtures("evicting")
def test_a_redis_that_drops_keys_is_warned_of(taskbridge: Program) -> None:
    shown = taskbridge("doctor")
    assert "warning  eviction: allkeys-lru with 100,000,000 bytes" in shown.stdout
    assert "-> set maxmemory-policy noeviction" in shown.stdout


def test_a_pipeline_that_no_round_looks_at_is_named(taskbridge: Program, engine: Engine) -> None:
    for seconds, expected in (
        (200, "ok: workers poll for records"),
        (4000, "warning: invoices: the reconciler is not"),
    ):
        stood(engine, "tail", 0)
        stood(engine, "base", seconds)
        (text,) = findings(taskbridge("doctor", "--json"))["work"]
        assert text.startswith(expected)
    assert taskbridge("notify", "France").status == 0
    assert "messages: 1 in" in findings(taskbridge("doctor", "--json"))["broker"][0]


def test_each_server_that_cannot_be_used_is_named_without_its_password(
    taskbridge: Program, servers: Servers, engine: Engine
) -> None:
    closed = {
        "TASKBRIDGE_POSTGRES_URL": "postgresql://u:s3cr3t-Pa55@127.0.0.1:1/d",
        "TASKBRIDGE_REDIS_URL": "redis://:s3cr3t-Pa55@127.0.0.1:1/0",
        "TASKBRIDGE_BROKER_URL": make_url(servers.redis_url)
        .set(password="s3cr3t-Pa55")
        .render_as_string(hide_password=False),
    }
    ended = taskbridge("doctor", "--json", **closed)
    assert ended.status == 1
    problems = {name: texts for name, texts in findings(ended).items() if texts[0].startswith("problem")}
    assert problems == {
        "Postgres": ["problem: Postgres cannot be reached (127.0.0.1:1)"],
        "Redis": ["problem: Redis cannot be reached (127.0.0.1:1)"],
        "broker": ["problem: the broker refuses the password"],
    }
    assert "s3cr3t-Pa55" not in ended.stdout + ended.stderr
    assert str(engine.url.password) not in json.dumps(ended.json)


def test_a_broker_that_cannot_be_used_is_told_by_its_place_or_kind_and_costs_no_other_finding(
    taskbridge: Program,
) -> None:
    parameter = "the broker's URL has a query parameter that kombu does not accept "
    for url, text in (
        ("amqp://u:s3cr3t-Pa55@127.0.0.1:1//;amqp://[::1]:2//", "the broker cannot be reached (127.0.0.1:1, [::1]:2)"),
        ("rabbit://u:s3cr3t-Pa55@h//", "kombu knows no broker whose URL begins with rabbit://"),
        ("redis://:s3cr3t-Pa55@h/0?max_connections=5", f"{parameter}(max_connections)"),
        ("sqs://u:s3cr3t-Pa55@", "kombu needs the library botocore for a broker at sqs://"),
    ):
        ended = taskbridge("doctor", "--json", TASKBRIDGE_BROKER_URL=url)
        found = findings(ended)
        assert found["broker"] == [f"problem: {text}"]
        assert [name for name, texts in found.items() if texts[0].startswith("problem")] == ["broker", "work"]
        assert "s3cr3t-Pa55" not in ended.stdout + ended.stderr
