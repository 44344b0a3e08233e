"""`taskbridge doctor` finds what is wrong, says what to do, and shows no password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, make_url

from taskbridge.embedded import Servers
from taskbridge.gate import Keys, Queue
from tests.cli.passes import stood
from tests.cli.program import Ended, Program


def findings(ended: Ended) -> dict[str, list[str]]:
    """Level and text of what was found, by check."""
    found: dict[str, list[str]] = {}
    for one in ended.json["findings"]:
        found.setdefault(one["check"], []).append(f"{one['level']}: {one['text']}")
    return found


def test_without_a_worker_nothing_is_handled_and_that_is_a_problem(taskbridge: Program) -> None:
    ended = taskbridge("doctor", "--json")
    assert ended.status == 1
    assert ended.json["level"] == "problem"
    found = findings(ended)
    assert found.pop("workers") == ["problem: no worker replied within 1 s, so nothing is handled"]
    assert found.pop("work") == ["problem: invoices: no worker has ever polled for its records"]
    assert all(text.startswith("ok: ") for texts in found.values() for text in texts)
    servers = {"Postgres", "schema", "cluster", "Redis", "eviction", "clocks", "broker"}
    assert set(found) == servers | {"encoding", "pipelines"}


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


def test_a_runner_that_nobody_starts_is_found(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    taskbridge("notify", "France")
    gate_redis.zincrby(keys.due("invoices"), -60_000, "France")
    ended = taskbridge("doctor", "--json")
    assert any("and no worker has begun it" in text for text in findings(ended)["work"])
    assert f"1 in {keys.queue(Queue.FIRST)}" in findings(ended)["broker"][0]


def test_a_pipeline_that_no_round_looks_at_is_named(taskbridge: Program, engine: Engine) -> None:
    def found() -> list[str]:
        return findings(taskbridge("doctor", "--json"))["work"]

    stood(engine, "tail", 10)
    stood(engine, "base", 200)
    assert [text.partition(",")[0] for text in found()] == ["ok: workers poll for records; no run is overdue"], (
        "rounds may rest as long"
    )
    stood(engine, "base", 4000)
    (text,) = found()
    assert text.startswith("warning: invoices: the reconciler is not running (last 4,0")
    stood(engine, "tail", 100)
    shown = taskbridge("doctor").stdout
    assert "invoices: no worker has polled for records for 10" in shown
    assert "-> start a worker that declares the pipeline; if one is running, read its log" in shown


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
    away = "start it, or correct"
    parameter = "the broker's URL has a query parameter that kombu does not accept "
    for url, text, remedy in (
        ("redis://:s3cr3t-Pa55@127.0.0.1:1/0", "the broker cannot be reached (127.0.0.1:1)", away),
        ("amqp://u:s3cr3t-Pa55@127.0.0.1:1//", "the broker cannot be reached (127.0.0.1:1)", away),
        ("amqp://u@127.0.0.1:1//;amqp://[::1]:2//", "the broker cannot be reached (127.0.0.1:1, [::1]:2)", away),
        ("rabbit://u:s3cr3t-Pa55@h//", "kombu knows no broker whose URL begins with rabbit://", "correct"),
        ("redis://:s3cr3t-Pa55@h/0?max_connections=5", f"{parameter}(max_connections)", "set"),
        ("sqs://u:s3cr3t-Pa55@", "kombu needs the library botocore for a broker at sqs://", "install it, or correct"),
    ):
        ended = taskbridge("doctor", "--json", TASKBRIDGE_BROKER_URL=url)
        found = findings(ended)
        assert found["broker"] == [f"problem: {text}"]
        assert [name for name, texts in found.items() if texts[0].startswith("problem")] == ["broker", "work"]
        (told,) = [one["remedy"] for one in ended.json["findings"] if one["check"] == "broker"]
        assert told.startswith(f"{remedy} TASKBRIDGE_BROKER_URL")
        assert "s3cr3t-Pa55" not in ended.stdout + ended.stderr
