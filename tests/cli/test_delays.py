"""`taskbridge status` while records wait for their delay, and what `taskbridge up` takes for idle."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.cli.tenants import has_pending, is_idle, view
from taskbridge.common.times import ahead
from taskbridge.gate import Keys
from tests.cli.alerts import alert, declare, write
from tests.cli.counts import CLOSED, NO_WORKER, TOTALS
from tests.cli.files import line
from tests.cli.files import write as write_invoices
from tests.cli.program import Program
from tests.cli.test_output import on_a_terminal
from tests.deployment import Deployment
from tests.second.world import PIPELINE, World

AGO_MS = 48_000


@pytest.fixture
def alerts(taskbridge: Program) -> Program:
    """The program with the pipeline `alerts`."""
    taskbridge.environment |= declare(taskbridge)
    return taskbridge


@pytest.fixture
def last_run_ms(engine: Engine, keys: Keys, gate_redis: redis.Redis) -> int:
    """The tenant billing was last run 48 s ago, and took records."""
    seconds: Any = gate_redis.time()
    last = int(seconds[0]) * 1000 - AGO_MS
    gate_redis.set(keys.last("alerts", "billing"), last, px=900_000)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, last_run_at, last_taken_at) "
            "VALUES ('alerts', 'billing', now(), to_timestamp(%s))",
            (last / 1000,),
        )
    return last


def record(program: Program, *lines: str) -> None:
    assert program("record", "alerts", write(program.directory / "a.jsonl", lines)).status == 0


def billing(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = program("status", "billing", "--json").json["pipelines"]["alerts"]["tenants"]["billing"]
    return found


def test_a_tenant_that_waits_shows_when_it_is_due_and_which_criterion_set_that(
    alerts: Program, last_run_ms: int
) -> None:
    record(alerts, alert("WARNING"))
    last = datetime.fromtimestamp(last_run_ms / 1000, UTC)
    expected = {"state": "waiting", "held": False, "last_taken_at": last.isoformat(), "records_waiting": 1}
    waiting = billing(alerts)
    assert waiting | expected == waiting
    assert waiting["criterion"] == '$.level = "WARNING"'
    due = datetime.fromisoformat(waiting["due_at"])
    assert due.tzinfo == UTC
    assert (due - last).total_seconds() == 900

    record(alerts, alert("ERROR"), alert("WARNING"))
    sooner = billing(alerts)
    assert (datetime.fromisoformat(sooner["due_at"]) - last).total_seconds() == 300
    assert sooner | {"criterion": '$.level = "ERROR"', "records_waiting": 3, "pending": 3} == sooner


def test_the_table_says_in_how_long_and_how_much_matched_nothing(alerts: Program, last_run_ms: int) -> None:
    assert last_run_ms
    write_invoices(alerts.directory / "invoices.csv", [line("1")])
    assert alerts("import", "invoices.csv").status == 0
    record(alerts, alert(), alert(), alert("INFO"), alert("ERROR", "search"))
    shown = alerts("status").stdout.splitlines()
    assert shown[0].strip() == "alerts"
    header, waiting, queued, unserved, last = shown[1:6]
    assert header.split("  ")[0] == "tenant"
    name, state, minutes, *rest = waiting.replace("in 4m ", "in:4m:").split()
    assert (name, state) == ("billing", "waiting")
    assert minutes.startswith("in:4m:")
    assert rest[:3] == ["2", "0", "0"]
    assert rest[-3:] == ["$.level", "=", '"ERROR"']
    assert queued.split()[:4] == ["search", "queued", "-", "1"]
    assert unserved == f"alerts: {NO_WORKER}"
    assert last == "alerts: 1 record matches no criterion; `taskbridge unmatched list alerts` shows why"
    invoices = shown[shown.index(next(row for row in shown if row.strip() == "invoices")) + 1 :]
    assert invoices[0].split()[1:4] == ["state", "lease", "pending"]
    assert invoices[1].split()[0] == "France"


def test_a_narrow_terminal_loses_no_column_but_that_of_the_quarantine(alerts: Program, last_run_ms: int) -> None:
    assert last_run_ms
    record(alerts, alert())
    sent = on_a_terminal(alerts, "status", "--pipeline", "alerts", COLUMNS="60", NO_COLOR="1")
    for column in ("tenant", "state", "due", "waiting", "handled", "last run", "criterion"):
        assert column in sent
    assert "quarantine" not in sent
    assert "quarantine" in on_a_terminal(alerts, "status", "--pipeline", "alerts", NO_COLOR="1")


def test_a_pipeline_of_invoices_has_no_delays_in_its_json(alerts: Program) -> None:
    write_invoices(alerts.directory / "invoices.csv", [line("1")])
    alerts("import", "invoices.csv")
    found = alerts("status", "--json").json["pipelines"]
    assert set(found["invoices"]) == {"tenants", "totals", "next", "paused", "circuit", "unserved"}
    assert "due_at" not in found["invoices"]["tenants"]["France"]
    totals = {"totals": TOTALS, "next": None}
    assert found["alerts"] == {
        "tenants": {},
        **totals,
        "paused": False,
        "circuit": CLOSED,
        "unserved": [NO_WORKER],
        "unmatched": 0,
    }


def test_a_tenant_that_has_a_runner_and_no_record_yet_is_shown(alerts: Program) -> None:
    assert alerts("notify", "billing", "--pipeline", "alerts").status == 0
    nothing = {"state": "queued", "due_at": None, "last_taken_at": None, "criterion": None, "records_waiting": 0}
    found = billing(alerts)
    assert found | nothing == found
    assert alerts("status").status == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-5.0, "now"),
        (0.4, "now"),
        (12.2, "in 12s"),
        (59.6, "in 1m 0s"),
        (252.0, "in 4m 12s"),
        (3_599.7, "in 1h 0m"),
        (7_500.0, "in 2h 5m"),
        (30 * 86_400.0 - 60, "in 29d 23h"),
    ],
)
def test_a_time_ahead_is_said_in_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert ahead(seconds) == text


def test_a_tenant_that_waits_for_its_delay_is_not_idle_even_when_redis_lost_it(deployment: Deployment) -> None:
    world = World(deployment)
    assert is_idle(world.runtime)
    world.record("ERROR", "billing")
    assert not is_idle(world.runtime)
    world.run_all()
    assert is_idle(world.runtime)

    world.go_to(60_000)
    world.record("WARNING", "billing")
    assert [one.due_at is not None for one in view(world.runtime, PIPELINE, "billing")] == [True]
    assert not is_idle(world.runtime)
    deployment.redis.flushdb()
    assert not world.runtime.gate.active(PIPELINE)
    assert has_pending(world.runtime)
    assert not is_idle(world.runtime)

    world.runtime.gate.notify(PIPELINE, "billing", world.runtime.pipelines[PIPELINE].policy.spacing)
    world.run_all()
    assert is_idle(world.runtime)
