"""`taskbridge import`: each invoice is committed before its tenant is notified, and the counts are true."""

from __future__ import annotations

import gzip
import signal
from pathlib import Path

import pytest
import redis
from sqlalchemy import Engine

from tests.cli.counts import count, events
from tests.cli.files import line, write
from tests.cli.program import Program
from tests.waiting import wait_until


def test_a_file_is_written_and_notified_once_and_a_second_time_changes_nothing(
    taskbridge: Program, configured: dict[str, str], engine: Engine, gate_redis: redis.Redis, a_day: Path
) -> None:
    first = taskbridge("import", a_day, "--json")
    assert first.status == 0
    assert first.stderr == ""
    assert first.json == {
        "invoices": 169,
        "written": 169,
        "unchanged": 0,
        "events": 169,
        "credit_notes": 47,
        "tenants": 6,
        "held_back": [],
        "problems": 0,
        "problem_lines": [],
        "complete": True,
    }
    assert count(engine) == 169
    assert events(gate_redis, configured["TASKBRIDGE_KEY_PREFIX"]) == 169
    gate_redis.flushdb()
    second = taskbridge("import", a_day, "--json")
    assert second.json | {"written": 0, "unchanged": 169, "events": 0} == second.json
    assert gate_redis.dbsize() == 0


def test_a_changed_invoice_makes_one_event(
    taskbridge: Program, configured: dict[str, str], gate_redis: redis.Redis
) -> None:
    file = taskbridge.directory / "invoices.csv"
    taskbridge("import", write(file, [line("1", "France"), line("2", "Malta")]))
    gate_redis.flushdb()
    changed = taskbridge("import", write(file, [line("1", "France"), line("2", "Malta", price="9")]), "--json")
    assert changed.json | {"written": 1, "unchanged": 1, "events": 1} == changed.json
    assert gate_redis.keys(f"{configured['TASKBRIDGE_KEY_PREFIX']}:runner:*") == [
        f"{configured['TASKBRIDGE_KEY_PREFIX']}:runner:invoices:Malta"
    ]


def test_bad_lines_are_listed_by_number_and_the_good_invoices_go_on(taskbridge: Program, engine: Engine) -> None:
    lines = [line("1"), *(line(f"bad{number}", quantity="many") for number in range(25)), line("2")]
    plain = write(taskbridge.directory / "invoices.csv", lines)
    packed = taskbridge.directory / "invoices.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    shown = taskbridge("import", packed)
    assert shown.status == 1
    assert count(engine) == 2
    listed = shown.stderr.splitlines()
    assert len(listed) == 21
    assert listed[0].startswith(f"{packed}:3: invoice bad0: Quantity 'many'")
    assert listed[-1] == "... and 5 more (--json lists all)"
    assert shown.stdout.splitlines()[-1].split() == ["problems", "25"]
    as_json = taskbridge("import", packed, "--json")
    assert as_json.status == 1
    assert [one["line"] for one in as_json.json["problem_lines"]] == list(range(3, 28))


def test_a_database_without_a_schema_is_left_as_it_is(taskbridge: Program, engine: Engine) -> None:
    assert taskbridge("migrate", "--to", "base", "--yes").status == 0
    ended = taskbridge("import", write(taskbridge.directory / "invoices.csv", [line("1")]))
    assert ended.status == 1
    assert "taskbridge migrate" in ended.stderr
    assert count(engine, "SELECT count(*) FROM pg_tables WHERE tablename = 'invoices'") == 0


@pytest.fixture
def many(directory: Path) -> Path:
    """A file whose import takes long enough to be cut short."""
    return write(directory / "many.csv", [line(f"N{number}", f"tenant-{number % 50}") for number in range(5_000)])


def test_ctrl_c_leaves_nothing_committed_without_its_event_and_says_how_far_it_got(
    taskbridge: Program, configured: dict[str, str], engine: Engine, gate_redis: redis.Redis, many: Path
) -> None:
    with taskbridge.started("import", many, "--json") as running:
        wait_until(lambda: count(engine) >= 5, "some invoices written")
        running.process.send_signal(signal.SIGINT)
        ended = running.end()
    written = count(engine)
    assert ended.status == 130
    assert 5 <= written < 5_000
    assert ended.json | {"written": written, "events": written, "complete": False} == ended.json
    assert events(gate_redis, configured["TASKBRIDGE_KEY_PREFIX"]) == written
    assert f"{written} of 5000 invoices were sent" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_redis_going_away_in_the_middle_leaves_honest_counts(
    taskbridge: Program, refusable: str, engine: Engine, gate_redis: redis.Redis, many: Path
) -> None:
    with taskbridge.started("import", many, "--json", TASKBRIDGE_REDIS_URL=refusable) as running:
        wait_until(lambda: count(engine) >= 5, "some invoices written")
        gate_redis.acl_deluser("importer")
        ended = running.end()
    written = count(engine)
    assert ended.status == 1
    assert ended.json | {"written": written, "events": written - 1, "complete": False} == ended.json
    assert "taskbridge: Redis " in ended.stderr
    assert "its tenant not notified" in ended.stderr
    assert "Traceback" not in ended.stderr
