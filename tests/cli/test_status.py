"""`status`, `notify` and `env` say what is there, and `migrate` what it did."""

from __future__ import annotations

import json
import subprocess

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys, Queue
from tests.cli.counts import CLOSED, TOTALS
from tests.cli.files import line, write
from tests.cli.held import open_circuit
from tests.cli.program import Program


def test_a_tenant_that_was_notified_and_not_run_is_pending_with_its_lease(taskbridge: Program) -> None:
    file = write(taskbridge.directory / "invoices.csv", [line("1"), line("2"), line("3", "Malta")])
    assert taskbridge("import", file).status == 0
    one = taskbridge("status", "France", "--json").json["pipelines"]["invoices"]["tenants"]
    assert list(one) == ["France"]
    france = one["France"]
    assert 0 < france.pop("lease_seconds") <= 1.2
    assert france == {
        "state": "queued",
        "held": False,
        "paused": False,
        "pending": 2,
        "handled": 0,
        "quarantined": 0,
        "discarded": 0,
        "last_run_at": None,
        "burst_events": 0,
        "burst_runs": 0,
        "first_event_ms": None,
        "events": 0,
        "runs": 0,
        "sweeps": 0,
        "records": 0,
        "failures": 0,
        "last_error": None,
        "failing_since": None,
        "next_try_at": None,
        "held_because": None,
    }


def test_failures_are_shown_with_their_error(taskbridge: Program, engine: Engine) -> None:
    taskbridge("import", write(taskbridge.directory / "invoices.csv", [line("1")]))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, last_run_at) "
            "VALUES ('invoices', 'France', 3, E'ValueError: \\x1b[2Jno', now() - interval '3 hours')"
        )
    shown = taskbridge("status")
    assert "3h ago" in shown.stdout
    assert "France: failed 3 times in a row, last: ValueError: \\x1b[2Jno" in shown.stdout


def test_a_tenant_that_nobody_knows_is_said_to_be_unknown(taskbridge: Program) -> None:
    for more in ((), ("--json",)):
        ended = taskbridge("status", "Nobody", *more)
        assert ended.status == 1
        assert "no tenant is called 'Nobody'" in ended.stderr


def test_no_tenants_is_an_answer(taskbridge: Program) -> None:
    assert taskbridge("status").stdout == "invoices: no tenants\n"
    assert taskbridge("status", "--json").json == {
        "pipelines": {"invoices": {"tenants": {}, "totals": TOTALS, "next": None, "paused": False, "circuit": CLOSED}},
        "parked": 0,
    }


def test_all_pipelines_are_shown_or_the_one_that_is_named(taskbridge: Program) -> None:
    (taskbridge.directory / "handlers.py").write_text(
        "from taskbridge import pipeline\n@pipeline('other')\n@pipeline('invoices')\ndef handle(batch): pass\n",
        encoding="utf-8",
    )
    handlers = {"TASKBRIDGE_PIPELINES": "handlers"}
    assert set(taskbridge("status", "--json", **handlers).json["pipelines"]) == {"invoices", "other"}
    assert set(taskbridge("status", "--pipeline", "other", "--json", **handlers).json["pipelines"]) == {"other"}


def test_notify_says_what_the_gate_made_of_the_event(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    assert taskbridge("notify", "France").stdout.startswith("started: ")
    assert taskbridge("notify", "France").stdout.startswith("absorbed: ")
    assert taskbridge("notify", "Malta", "--json").json == {
        "pipeline": "invoices",
        "tenant": "Malta",
        "answer": "started",
    }
    assert gate_redis.llen(keys.queue(Queue.FIRST)) == 2


@pytest.mark.parametrize("use", ["export $(cat urls)", 'set -a; eval "$(cat urls)"'])
def test_the_urls_reach_another_shell_as_they_are(use: str, taskbridge: Program) -> None:
    printed = taskbridge("env").stdout
    (taskbridge.directory / "urls").write_text(printed, encoding="utf-8")
    shell = f"{use}; exec python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    found = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=taskbridge.directory, check=True, capture_output=True, text=True
    ).stdout
    variables = json.loads(found)
    for name in ("TASKBRIDGE_POSTGRES_URL", "TASKBRIDGE_REDIS_URL"):
        assert variables[name] == taskbridge.environment[name]
    assert variables["TASKBRIDGE_BROKER_URL"] == taskbridge.environment["TASKBRIDGE_REDIS_URL"]


def test_a_url_that_a_shell_would_take_apart_is_quoted(taskbridge: Program) -> None:
    url = taskbridge.environment["TASKBRIDGE_POSTGRES_URL"] + "?application_name=a%20b&connect_timeout=3"
    (taskbridge.directory / "urls").write_text(taskbridge("env", TASKBRIDGE_POSTGRES_URL=url).stdout, encoding="utf-8")
    shell = 'set -a; eval "$(cat urls)"; printf %s "$TASKBRIDGE_POSTGRES_URL"'
    found = subprocess.run(
        ["/bin/sh", "-c", shell], cwd=taskbridge.directory, check=True, capture_output=True, text=True
    ).stdout
    assert found == url


def test_migrate_prints_what_the_schema_was_and_is(taskbridge: Program) -> None:
    assert taskbridge("migrate").stdout.endswith(": nothing to do\n")
    dropped = taskbridge("migrate", "--to", "base", "--yes").stdout
    assert dropped.endswith(" -> none\n")
    newest = dropped.split()[1]
    assert taskbridge("migrate").stdout == f"schema none -> {newest}\n"
    unknown = taskbridge("migrate", "--to", "nix")
    assert unknown.status == 2
    assert "there is no schema 'nix'" in unknown.stderr


def test_dropping_all_tables_must_be_confirmed(taskbridge: Program, engine: Engine) -> None:
    assert taskbridge("migrate", "--to", "base").status == 2
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar_one() == 0


def test_an_open_circuit_is_shown(taskbridge: Program, gate_redis: redis.Redis, keys: Keys) -> None:
    open_circuit(gate_redis, keys, "France", "Spain")
    shown = taskbridge("status").stdout
    assert "invoices: the circuit is open, since " in shown
    circuit = taskbridge("status", "--json").json["pipelines"]["invoices"]["circuit"]
    assert (circuit["open"], circuit["opened"], circuit["failed_probes"]) == (True, 1, 0)
    assert circuit["opened_at"] is not None
