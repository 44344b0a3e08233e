"""Why a tenant is not running, what became of a record, and who causes the most work, on the command line."""

from __future__ import annotations

import os
import pwd
import re

import redis
from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.observing.standing import MOST_RECORDS
from taskbridge.store import record, record_many, sum_runs
from tests.cli.held import hold_back
from tests.cli.program import Program
from tests.cli.test_output import on_a_terminal
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run

RUNS = """
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms)
SELECT 'invoices', t.tenant, '1769846399913004-' || n, now() - n * interval '1 s', now() - (n - 0.25) * interval '1 s',
       'event', 'celery@one', t.weight, 1, 1, 0, CASE WHEN t.tenant = 'bolt' THEN 'failed' ELSE 'handled' END,
       CASE WHEN t.tenant = 'bolt' THEN 'ValueError: no price' END, 20
FROM (VALUES ('acme', 5), ('bolt', 1)) t (tenant, weight), generate_series(1, 3) n
"""


def earlier(engine: Engine, minutes: int, which: str = "true") -> None:
    """Let runs be so much older."""
    moved = ", ".join(f"{name} = {name} - {minutes} * interval '1 min'" for name in ("began_at", "ended_at"))
    run(engine, f"UPDATE taskbridge.runs SET {moved} WHERE {which}")  # noqa: S608 - the test's own conditions


def test_why_says_one_sentence_and_then_the_figures(
    taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    record(engine, "invoices", "acme & co", "7", {})
    hold_back(gate_redis, keys, "acme & co", failed=False)
    shown = taskbridge("why", "acme & co")
    assert shown.status == 0, shown.stderr
    first, *rest = shown.stdout.splitlines()
    assert re.fullmatch(
        r"invoices, acme & co: its handler asked to wait \(RetryAfter\); next try in (5m 0s|4m \d+s)", first
    )
    assert any(line.startswith("  records: 1 pending (the oldest for ") for line in rest), rest
    assert (
        "  there is no run history: no run yet, or TASKBRIDGE_HISTORY_DAYS is 0, so its last runs are not known" in rest
    )
    found = taskbridge("why", "acme & co", "--pipeline", "invoices", "--json").json["pipelines"]["invoices"]
    assert (found["cause"], found["pending"], found["holder"]) == ("asked to wait", 1, None)
    missing = taskbridge("why", "nobody")
    assert (missing.status, "no tenant is called 'nobody'" in missing.stderr, missing.stdout) == (1, True, "")
    assert taskbridge("why", "acme & co", "--pipeline", "typo").status == 2
    run(
        engine,
        "INSERT INTO taskbridge.pipelines (pipeline, source) VALUES ('orders', 'orders')",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot) VALUES ('orders', 'nobody', '1:1:')",
    )
    assert taskbridge("pause", "--pipeline", "invoices").status == 0
    assert taskbridge("why", "nobody").status == 1, "that a pipeline is paused makes no tenant"
    assert taskbridge("resume", "--pipeline", "invoices").status == 0
    for command in ("why", "status"):
        missing = taskbridge(command, "nobody")
        assert (missing.status, "in invoices; orders cannot be asked here" in missing.stderr) == (1, True)


def test_why_answers_where_so_many_records_are_pending_that_the_handled_ones_are_not_counted(
    taskbridge: Program, engine: Engine
) -> None:
    record_many(engine, "invoices", (("acme", str(number), {}) for number in range(MOST_RECORDS)))
    shown = taskbridge("why", "acme")
    assert shown.status == 0, shown.stderr
    assert re.search(r"records: 10,000 pending \(the oldest for .*\), - handled, 0 in quarantine", shown.stdout)


def test_who_paused_and_who_resumed_is_written_down(taskbridge: Program, engine: Engine) -> None:
    who = pwd.getpwuid(os.getuid()).pw_name
    record(engine, "invoices", "acme", "7", {})
    assert taskbridge("pause", "acme", "--reason", "wrong prices", "--json").json["paused_by"] == who
    assert f"paused by {who}, " in taskbridge("why", "acme").stdout
    assert re.search(rf"acme: paused \d+s ago by {who} \(wrong prices\)", taskbridge("status").stdout)
    assert taskbridge("resume", "acme").status == 0
    assert taskbridge("resume", "acme").status == 0
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT who, action, pipeline, tenant, detail FROM taskbridge.audit ORDER BY id"
        ).all()
    assert [tuple(row) for row in rows] == [
        (who, "pause", "invoices", "acme", "wrong prices"),
        (who, "resume", "invoices", "acme", None),
    ]


def test_who_drained_and_who_decided_about_quarantine_is_written_down(taskbridge: Program, engine: Engine) -> None:
    who = pwd.getpwuid(os.getuid()).pw_name
    for number in ("7", "8"):
        record(engine, "invoices", "acme", number, {})
        put_in_quarantine(engine, "acme", number)
    assert taskbridge("quarantine", "retry", "7").status == 0
    assert taskbridge("quarantine", "discard", "--tenant", "acme", "--yes").status == 0
    assert taskbridge("quarantine", "discard", "--reason", "nothing has this", "--yes").status == 0
    assert taskbridge("pause", "bolt").status == 0
    assert taskbridge("drain", "bolt", "--timeout", "5").status == 0
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT who, action, pipeline, tenant, key, detail FROM taskbridge.audit ORDER BY id"
        ).all()
    assert [tuple(row) for row in rows] == [
        (who, "retry", "invoices", "acme", "7", "1 record"),
        (who, "discard", "invoices", "acme", None, "2 records"),
        (who, "pause", "invoices", "bolt", None, None),
        (who, "drain", "invoices", "bolt", None, None),
    ]


def test_where_tells_the_story_and_says_what_is_not_known(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", "7", {})
    assert taskbridge("status").status == 0
    head, recorded, pending, note = taskbridge("where", "7").stdout.splitlines()
    assert head.endswith(": pending in invoices; `taskbridge why acme` says when it is taken")
    assert re.fullmatch(r"  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  recorded as revision \d+", recorded)
    assert pending == f"  {'-':24}  pending"
    assert note.startswith("  there is no run history: no run yet, or TASKBRIDGE_HISTORY_DAYS is 0")
    (told,) = taskbridge("where", "7", "--json").json["records"]
    assert [step["what"] for step in told["steps"]] == ["recorded", "pending"]


def test_top_orders_tenants_by_what_was_asked_for(taskbridge: Program, engine: Engine) -> None:
    assert "there is no run history" in taskbridge("top").stdout
    run(engine, RUNS)
    lines = taskbridge("top").stdout.splitlines()
    assert [line.split() for line in lines[:-1]] == [
        ["tenant", "pipeline", "events", "runs", "records", "failures", "run", "time"],
        ["acme", "invoices", "15", "3", "3", "0", "0.8", "s"],
        ["bolt", "invoices", "3", "3", "3", "3", "0.8", "s"],
    ]
    assert lines[-1] == "from 6 runs of the last 24 hours"
    found = taskbridge("top", "--sort", "failures", "--pipeline", "invoices", "--json").json
    assert [one["tenant"] for one in found["tenants"]] == ["bolt"]
    assert taskbridge("top", "--by", "run-time", "--limit", "1", "--json").json["by"] == "run time"
    assert [one["tenant"] for one in taskbridge("top", "--sort", "runs", "--json").json["tenants"]] == ["acme", "bolt"]
    assert taskbridge("top", "--pipeline", "typo").status == 2


def test_top_goes_on_on_a_terminal(taskbridge: Program, engine: Engine) -> None:
    run(engine, RUNS)
    on_a_terminal(taskbridge, "top", status=-9, kill_when=lambda sent: sent.count("from 6 runs") > 1)
    assert "from 6 runs" in on_a_terminal(taskbridge, "top", "--once")


def test_only_those_that_fail_are_shown_if_asked_for(taskbridge: Program, engine: Engine) -> None:
    run(
        engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, runs, last_error) "
        "SELECT 'invoices', 't' || n, n % 2, n, 'bad' FROM generate_series(1, 6) n",
    )
    assert [*taskbridge("status", "--failing", "--json").json["pipelines"]["invoices"]["tenants"]] == ["t1", "t3", "t5"]
    page = taskbridge("status", "--failing", "--limit", "2")
    assert "more tenants: taskbridge status --failing --after 't3'" in page.stdout
    after = taskbridge("status", "--failing", "--after", "t3", "--json").json["pipelines"]["invoices"]
    assert [*after["tenants"]] == ["t5"]
    header, first, *_ = taskbridge("status", "--sort", "runs").stdout.splitlines()
    assert (header.rsplit("  ", 1)[1], first.split()[0], first.split()[-1]) == ("runs in all", "t6", "6")
    header, first, *_ = taskbridge("status", "--sort", "failures").stdout.splitlines()
    assert (header.rsplit("  ", 1)[1], first.split()[0], first.split()[-1]) == ("failures in a row", "t1", "1")
    by_runs = taskbridge("status", "--failing", "--sort", "runs", "--json").json["pipelines"]["invoices"]
    assert [*by_runs["tenants"]] == ["t5", "t3", "t1"]
    every = taskbridge("status", "--sort", "runs", "--limit", "1", "--json").json["pipelines"]["invoices"]
    assert [*every["tenants"]] == ["t6"]
    assert taskbridge("status", "t1", "--failing").status == 2


def test_states_have_colours_on_a_terminal_alone(taskbridge: Program, engine: Engine) -> None:
    record(engine, "invoices", "acme", "7", {})
    assert taskbridge("pause", "acme").status == 0
    magenta = "\x1b[35m"
    assert f"{magenta}paused" in on_a_terminal(taskbridge, "status")
    without = on_a_terminal(taskbridge, "status", NO_COLOR="1")
    assert ("paused" in without, magenta in without) == (True, False)
    assert "\x1b" not in taskbridge("status").stdout


def test_what_failed_lately_is_grouped_by_its_error(taskbridge: Program, engine: Engine) -> None:
    assert taskbridge("failed").stdout.startswith("there is no run history")
    run(engine, RUNS)
    first, times, basis = taskbridge("failed").stdout.splitlines()
    assert first == "invoices: 3 runs of 1 tenant ('bolt'): ValueError: no price"
    assert re.fullmatch(r"  first [-\d]+ [\d:.]+Z, last [-\d]+ [\d:.]+Z", times)
    assert basis == "from 3 failed runs of the last 24 hours"
    (found,) = taskbridge("failed", "--json").json["errors"]
    assert (found["error"], found["runs"], found["sample"], found["first"] < found["last"]) == (
        "ValueError: no price",
        3,
        ["bolt"],
        True,
    )
    earlier(engine, 5, "token LIKE '%-1'")
    assert "3 runs of 1 tenant" in taskbridge("failed").stdout, "no worker has summed these minutes"
    earlier(engine, 120, "token NOT LIKE '%-3'")
    assert taskbridge("failed", "--hours", "1").stdout.splitlines()[-1] == "from 1 failed run of the last hour"
    sum_runs(engine, "invoices")
    assert taskbridge("failed", "--hours", "1").stdout.splitlines()[-1] == "from 1 failed run of the last hour"
    assert "3 runs of 1 tenant" in taskbridge("failed").stdout
    assert taskbridge("failed", "--pipeline", "typo").status == 2


def test_what_held_a_tenant_is_no_cause_when_it_is_over(
    taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys
) -> None:
    record(engine, "invoices", "acme", "7", {})
    hold_back(gate_redis, keys, "acme", failed=False)
    gate_redis.hset(keys.runner("invoices", "acme"), "permits", 0)
    assert "acme: its rate limit is used up" in taskbridge("why", "acme").stdout
    assert "acme: its rate limit is used up; it may go on in " in taskbridge("status").stdout
    gate_redis.zincrby(keys.due("invoices"), -320_000, "acme")
    late = r"acme: its run was due \d+ s ago, and no worker has ever looked for records"
    assert re.search(late, taskbridge("why", "acme").stdout)
    row = next(line for line in taskbridge("status").stdout.splitlines() if line.startswith("acme "))
    assert row.split()[1] == "waiting"
    assert re.search(late, taskbridge("status").stdout)


def test_saved_shows_days_and_the_bursts_of_a_tenant(taskbridge: Program, engine: Engine) -> None:
    nothing = taskbridge("saved").stdout.splitlines()
    assert nothing[0].startswith("invoices: no run in the last 7 days")
    assert nothing[-1].startswith("there is no run history")
    run(engine, RUNS)
    earlier(engine, 2)
    sum_runs(engine, "invoices")
    first, heads, *rows = taskbridge("saved", "--days", "2").stdout.splitlines()
    assert first == "invoices: in the last 2 days 18 events became 6 runs: 67% of the runs saved"
    assert re.match(r"day \(UTC\) +events +bursts +runs +records +runs saved", heads)
    assert len(rows) in (1, 2)
    days = taskbridge("saved", "--json").json["pipelines"]["invoices"]["days"]
    assert sum(one["runs_saved"] for one in days) == 12
    assert {one["first_event_p99_ms"] for one in days} == {25}
    assert re.search(r" ≤ 25 ms +≤ 25 ms$", rows[0])
    title, _, *bursts = taskbridge("saved", "acme", "--limit", "2").stdout.splitlines()
    assert (title, len(bursts)) == ("invoices, acme", 2)
    assert re.search(r" 5 +1 +1 +80% +0 +20 ms +520 ms$", bursts[0])
    (burst, *_) = taskbridge("saved", "acme", "--json").json["pipelines"]["invoices"]["bursts"]
    assert (burst["events"], burst["runs_saved"], burst["windowed_ms"]) == (5, 4, 520)
    assert taskbridge("saved", "nobody").stdout == "invoices, nobody: no burst is known\n"
    assert taskbridge("saved", "--pipeline", "typo").status == 2
    run(engine, "UPDATE taskbridge.run_minutes SET records = 9 * runs")
    many = "they had 54 records: a run for each would have been 9.0 times as many"
    assert taskbridge("saved").stdout.splitlines()[1].strip() == many


def test_a_burst_that_waited_longer_than_the_last_bound_is_not_told_as_within_it(
    taskbridge: Program, engine: Engine
) -> None:
    run(engine, RUNS.replace("END, 20\n", "END, 90000\n"))
    earlier(engine, 2)
    sum_runs(engine, "invoices")
    assert re.search(r" > 10,000 ms +> 10,000 ms$", taskbridge("saved").stdout.splitlines()[-1])
    (day, *_) = taskbridge("saved", "--json").json["pipelines"]["invoices"]["days"]
    for name in ("first_event_p50", "first_event_p99"):
        assert (day[f"{name}_ms"], day[f"{name}_over_ms"]) == (None, 10_000)
