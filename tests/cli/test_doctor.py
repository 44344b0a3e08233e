"""`taskbridge doctor` finds what is wrong, says what to do, and shows no password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from tests.cli.counts import stood
from tests.cli.program import Ended, Program


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
    stood(engine, "tail", 10)
    for seconds, expected in (
        (200, "ok: workers poll for records"),
        (4000, "warning: invoices: the reconciler is not"),
    ):
        stood(engine, "base", seconds)
        (text,) = findings(taskbridge("doctor", "--json"))["work"]
        assert text.startswith(expected)


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
