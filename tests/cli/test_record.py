"""`taskbridge record`: each line is one message, bad ones are named, and the counts are true."""

from __future__ import annotations

import signal
import subprocess
from functools import partial

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from tests.cli.program import Program
from tests.cli.scenes import alert, count, declare, events, write
from tests.waiting import wait_until

RECORDS = "SELECT count(*) FROM taskbridge.records"


@pytest.fixture
def alerts(taskbridge: Program) -> Program:
    """The program with the pipeline `alerts`."""
    taskbridge.environment |= declare(taskbridge)
    return taskbridge


def test_every_line_is_one_message_and_those_that_match_notify_their_tenant(
    alerts: Program, keys: Keys, engine: Engine, gate_redis: redis.Redis
) -> None:
    first = b"\xef\xbb\xbf" + alert().encode() + b"\r"
    lines: list[str | bytes] = [first, alert("WARNING", "search"), "", alert(), alert("INFO"), '"text"', "  ", "null"]
    ended = alerts("record", "alerts", write(alerts.directory / "a.jsonl", lines), "--json")
    assert ended.status == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.json == {
        "lines": 6,
        "new": 6,
        "known_before": 0,
        "matched": 3,
        "unmatched": 3,
        "tenants": 2,
        "problems": 0,
        "problem_lines": [],
        "complete": True,
    }
    assert count(engine, RECORDS) == 6
    assert events(gate_redis, keys.prefix) == 3


BAD_LINES: dict[str | bytes, str] = {
    "{} {}": "not JSON in UTF-8: Extra data",
    b'{"id": "\xff"}': "can't decode",
    '{"id": "a", "at": NaN}': "NaN is not a JSON number",
    '{"id": "a", "at": %s}' % ("9" * 5000): "5000 digits",
    '{"id": "a", "text": "\\u0000"}': "the document contains a NUL character",
    '{"id": "a", "deep": %s}' % ("[" * 5_000 + "]" * 5_000): "nested too deeply",
    '"text"': "the field 'id', which should hold the message id, is not a string",
    '{"id": "\\u001b[2J[red]"}': "the message id '\\x1b[2J[red]' is not allowed",
}


def test_lines_that_cannot_be_taken_are_named_with_what_is_wrong_and_the_others_go_on(
    alerts: Program, engine: Engine
) -> None:
    file = write(alerts.directory / "a.jsonl", [alert(id="first"), *BAD_LINES, alert("WARNING", id="first")])
    ended = alerts("record", "alerts", file, "--id-field", "id", "--json")
    assert ended.status == 1
    counts = {"lines": len(BAD_LINES) + 2, "new": 1, "known_before": 1, "problems": len(BAD_LINES)}
    assert ended.json | counts == ended.json
    assert count(engine, RECORDS) == 1
    told = ended.stderr.splitlines()
    listed = ended.json["problem_lines"]
    for number, (shown, problem, expected) in enumerate(zip(told, listed, BAD_LINES.values(), strict=True), start=2):
        assert shown.startswith(f"{file}:{number}: ")
        assert problem["line"] == number
        assert expected in problem["text"]
    assert "\x1b" not in ended.stderr
    assert "\\x1b[2J[red]" in ended.stderr


def test_a_service_that_pipes_has_each_line_recorded_as_it_comes(alerts: Program, engine: Engine) -> None:
    def recorded(number: int) -> bool:
        return count(engine, RECORDS) == number

    with alerts.started_afresh("record", "alerts", "-", "--json", stdin=subprocess.PIPE) as running:
        pipe = running.stdin
        assert pipe is not None
        for number in range(1, 4):
            pipe.write(alert().encode() + b"\n")
            pipe.flush()
            wait_until(partial(recorded, number), f"line {number} is recorded")
        pipe.write(b"nix\n")
        pipe.flush()
        wait_until(lambda: "-:4: not JSON" in running.stderr, "the bad line is named")
        pipe.close()
        ended = running.end()
    assert ended.status == 1
    assert ended.json | {"lines": 4, "new": 3, "problems": 1, "complete": True} == ended.json


@pytest.mark.parametrize("by_signal", [True, False], ids=["Ctrl-C", "Redis goes away"])
def test_a_file_that_is_left_in_the_middle_has_no_record_without_its_event_and_says_how_to_go_on(
    alerts: Program,
    keys: Keys,
    engine: Engine,
    refusable: str,
    gate_redis: redis.Redis,
    by_signal: bool,
) -> None:
    write(alerts.directory / "many alerts.jsonl", [alert(id=str(number)) for number in range(5_000)])
    command = ("record", "alerts", "many alerts.jsonl", "--json")
    with alerts.started(*command, TASKBRIDGE_REDIS_URL=refusable) as running:
        wait_until(lambda: count(engine, RECORDS) >= 5, "some messages recorded")
        if by_signal:
            running.process.send_signal(signal.SIGINT)
        else:
            gate_redis.acl_deluser("importer")
        ended = running.end()
    recorded = count(engine, RECORDS)
    assert 5 <= recorded < 5_000
    assert "Traceback" not in ended.stderr
    # A line that may be recorded is not recorded twice.
    assert f"tail -n +{recorded + 1} 'many alerts.jsonl' | taskbridge record alerts -" in ended.stderr
    if by_signal:
        assert ended.status == 130
        assert ended.json | {"lines": recorded, "new": recorded, "complete": False} == ended.json
        assert events(gate_redis, keys.prefix) == recorded
    else:
        assert ended.status == 1
        assert ended.json | {"new": recorded - 1, "complete": False} == ended.json
        assert f"line {recorded}, which may have been recorded" in ended.stderr
