"""`taskbridge unmatched`: what no criterion matched is shown with its reason, and matched when the criteria change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import redis
from click.testing import CliRunner
from sqlalchemy import Engine

from taskbridge.cli.main import cli
from tests.cli.alerts import alert, declare, write
from tests.cli.counts import count, events
from tests.cli.program import Program
from tests.cli.test_output import on_a_terminal

NO_LEVEL = 'no criterion applies: $.level gives {}, needed "ERROR" or "WARNING"'


@pytest.fixture
def alerts(taskbridge: Program) -> Program:
    """Servers with one record that matched and three that did not."""
    taskbridge.environment |= declare(taskbridge)
    lines = [
        alert(id="m1"),
        alert("INFO", id="m2"),
        alert("INFO", "\x1b[31m", id="[red]m3", a="\u202e", text="x" * 200),
        '{"id": "m4", "level": "ERROR"}',
    ]
    file = write(taskbridge.directory / "a.jsonl", lines)
    assert taskbridge("record", "alerts", file, "--id-field", "id").status == 0
    return taskbridge


def test_all_that_is_known_of_them_is_in_the_json(alerts: Program) -> None:
    found = alerts("unmatched", "list", "alerts", "--json").json
    records = found.pop("records")
    assert found == {"pipeline": "alerts", "unmatched": 3}
    assert [one["message_id"] for one in records] == ["m2", "[red]m3", "m4"]
    ids = [one.pop("id") for one in records]
    assert ids == sorted(ids)
    text = records[0].pop("recorded_at")
    at = datetime.fromisoformat(text)
    assert text == at.astimezone(UTC).isoformat()
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    assert records[0] == {
        "message_id": "m2",
        "reason": NO_LEVEL.format('"INFO"'),
        "payload": {"level": "INFO", "service": "billing", "id": "m2"},
    }
    assert "its parameter path $.service gives no value" in records[2]["reason"]


def test_the_table_shortens_payloads_and_shows_no_control_sequence(alerts: Program) -> None:
    shown = alerts("unmatched", "list", "alerts")
    assert shown.status == 0
    header, *rows = shown.stdout.splitlines()
    assert header.split("  ")[0] == "message id"
    assert [row.split()[0] for row in rows] == ["m2", "[red]m3", "m4"]
    assert NO_LEVEL.format('"INFO"') in rows[0]
    assert rows[1].endswith("...")
    assert "x" * 100 not in rows[1]
    assert "\\u202e" in rows[1]
    assert "\u202e" not in shown.stdout
    assert "\x1b" not in shown.stdout
    sent = on_a_terminal(alerts, "unmatched", "list", "alerts", NO_COLOR="1")
    assert "[red]m3" in sent
    assert "\x1b[31m" not in sent


def test_no_more_than_the_limit_are_shown_and_the_rest_is_counted(alerts: Program) -> None:
    assert alerts("unmatched", "list", "alerts", "--limit", "2").stdout.splitlines()[-1].startswith("and 1 more")
    limited = alerts("unmatched", "list", "alerts", "--limit", "1", "--json").json
    assert limited["unmatched"] == 3
    assert [one["message_id"] for one in limited["records"]] == ["m2"]
    assert alerts("unmatched", "list", "alerts", "--limit", "0").status == 2


def test_none_is_an_answer(taskbridge: Program) -> None:
    variables = declare(taskbridge)
    assert taskbridge("unmatched", "list", "alerts", **variables).stdout == "alerts: a criterion matched every record\n"
    empty = {"pipeline": "alerts", "unmatched": 0, "records": []}
    assert taskbridge("unmatched", "list", "alerts", "--json", **variables).json == empty
    none = {"pipeline": "alerts", "matched": 0, "unmatched": 0, "tenants": {}, "reasons": {}}
    assert taskbridge("unmatched", "match", "alerts", "--json", **variables).json == none


def test_with_the_same_criteria_all_stay_and_nobody_is_notified(alerts: Program, gate_redis: redis.Redis) -> None:
    gate_redis.flushdb()
    shown = alerts("unmatched", "match", "alerts")
    assert shown.status == 0
    first, header, *rows = shown.stdout.splitlines()
    assert first == "0 matched now, of 0 tenants; 3 stay unmatched"
    assert header.split() == ["reason", "records"]
    assert [row.split()[-1] for row in rows] == ["2", "1"]
    as_json = alerts("unmatched", "match", "alerts", "--json").json
    assert (as_json["unmatched"], sorted(as_json["reasons"].values())) == (3, [1, 2])
    assert gate_redis.dbsize() == 0


def test_after_the_criteria_changed_they_get_their_tenants_and_events(
    alerts: Program, configured: dict[str, str], engine: Engine, gate_redis: redis.Redis
) -> None:
    gate_redis.flushdb()
    changed = declare(alerts, "changed", ERROR=300.0, INFO=60.0)
    matched = alerts("unmatched", "match", "alerts", "--json", **changed)
    assert matched.status == 0, matched.stderr
    reasons = matched.json.pop("reasons")
    assert (
        matched.json
        | {
            "pipeline": "alerts",
            "matched": 1,
            "unmatched": 2,
            "tenants": {"billing": 1},
        }
        == matched.json
    )
    assert sum(reasons.values()) == 2
    assert any("a string that is no tenant" in reason for reason in reasons), reasons
    assert events(gate_redis, configured["TASKBRIDGE_KEY_PREFIX"]) == 1
    assert (
        count(
            engine,
            "SELECT count(*) FROM taskbridge.records WHERE tenant = 'billing' AND position('INFO' IN criterion) > 0",
        )
        == 1
    )
    left = alerts("unmatched", "list", "alerts", "--json", **changed).json
    assert [one["message_id"] for one in left["records"]] == ["[red]m3", "m4"]
    assert alerts("status", "billing", "--json", **changed).json["pipelines"]["alerts"]["unmatched"] == 2


@pytest.mark.parametrize("command", ["list", "match"])
def test_the_help_has_an_example_that_names_the_command(command: str) -> None:
    shown = CliRunner().invoke(cli, ["unmatched", command, "--help"], prog_name="taskbridge")
    assert shown.exit_code == 0
    assert f"\n    taskbridge unmatched {command} " in shown.output
