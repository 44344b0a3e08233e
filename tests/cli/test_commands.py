"""Every command, as it is used once: its answer for people and its answer for programs, in `snapshots/`.

After a change on purpose: `TASKBRIDGE_TEST_WRITE_SNAPSHOTS=1 pytest tests/cli/test_commands.py`, and look at the
difference. What differs from run to run (times, ids, ports, who runs it) is masked.
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
import redis
from sqlalchemy import Engine

from taskbridge.cli.main import cli
from taskbridge.gate import Keys
from taskbridge.store import sum_runs
from tests.cli.program import Program
from tests.cli.scenes import alert, declare, hold_back, write
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run

SNAPSHOTS: Final = Path(__file__).with_name("snapshots")
MASKS: Final = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+\d\d:\d\d)?", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}", "UUID"),
    (r"(postgresql|redis)://\S+", r"\1://URL"),
    (r'((?:Postgres|Redis|Valkey): |"text": ")\d+\.\d+(\.\d+)?', r"\1VERSION"),
    (r"\btest-[0-9a-f]+", "PREFIX"),
    (r"\b\d+[smhd]( \d+[smh])?\b", "SPAN"),
    (r"\b[\d.]+ (m?s)\b", r"N \1"),
    (r'("(?:seconds|oldest_seconds|lease_seconds|id|revision|run_ms|first_event_ms)": )-?[\d.]+', r"\1N"),
    (r"(as revision |revision |ago by )\w+", r"\1X"),
    (r"\b\d{15,}\b", "ID"),
    (r'("paused_by": )"[^"]+"', r'\1"X"'),
    (r"celery-taskbridge-\S+|taskbridge \d\S+", "VERSION"),
    (r"^(Fr.nce +SPAN ago) +\S+", r"\1  X"),
    (r" {2,}", "  "),
    (r" +$", ""),
)
HISTORY: Final = """
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms)
SELECT 'invoices', t.tenant, '1769846399913004-' || n, now() - interval '2 hours' - n * interval '1 s',
       now() - interval '2 hours' - (n - 0.25) * interval '1 s', 'event', 'celery@one',
       t.weight, 1, 1, 0, CASE WHEN t.tenant = 'Spain' THEN 'failed' ELSE 'handled' END,
       CASE WHEN t.tenant = 'Spain' THEN 'ValueError: no price' END, 20
FROM (VALUES ('France', 5), ('Spain', 1)) t (tenant, weight), generate_series(1, 2) n
"""
SCENE: Final = (
    """INSERT INTO taskbridge.records (source, tenant, key, document)
    SELECT 'invoices', tenant, key, '{}'
    FROM (VALUES ('France', '1'), ('France', '2'), ('Malta', '3'), ('Malta', '4'), ('Spain', '5')) v (tenant, key)""",
    """INSERT INTO taskbridge.sync_cursors (pipeline, tenant, snapshot, failures, last_error, failing_since)
    VALUES ('invoices', 'Spain', '1:1:', 2, 'ValueError: no price', now() - interval '3 hours')""",
    HISTORY,
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL, amount int)",
    "INSERT INTO orders SELECT n, 'acme', n FROM generate_series(1, 3) n",
)
STEPS: Final = (
    ("status", ()),
    ("status", ("--json",)),
    ("status", ("--sort", "runs")),
    ("status", ("--recent-failures",)),
    ("status", ("--recent-failures", "--json")),
    ("status", ("--sort", "age", "--after", "France")),
    ("inspect", ("France",)),
    ("inspect", ("Spain",)),
    ("inspect", ("Spain", "--json")),
    ("inspect", ("Malta",)),
    ("inspect", ("--record", "3")),
    ("inspect", ("--record", "3", "--json")),
    ("inspect", ("nobody",)),
    ("inspect", ("--record", "nothing")),
    ("inspect", ()),
    ("pause", ("France", "--reason", "wrong prices")),
    ("pause", ("France", "--json")),
    ("pause", ("Frence",)),
    ("status", ("--pipeline", "invoices")),
    ("quarantine", ("list",)),
    ("quarantine", ("list", "--reason", "price", "--json")),
    ("quarantine", ("retry", "3", "none")),
    ("quarantine", ("discard", "--tenant", "Malta")),
    ("quarantine", ("discard", "--tenant", "Malta", "--yes", "--json")),
    ("quarantine", ("list", "--all")),
    ("quarantine", ("retry", "--all")),
    ("record", ("alerts", "alerts.jsonl")),
    ("record", ("invoices", "alerts.jsonl")),
    ("quarantine", ("list", "--unmatched")),
    ("quarantine", ("retry", "--unmatched", "--all", "--pipeline", "alerts")),
    ("quarantine", ("discard", "--unmatched", "--all", "--pipeline", "alerts", "--yes")),
    ("quarantine", ("list", "--unmatched", "--pipeline", "alerts")),
    ("inspect", ("billing",)),
    ("notify", ("Malta",)),
    ("notify", ("Malta", "--json")),
    ("drain", ("France", "--timeout", "5")),
    ("resume", ("France",)),
    ("resume", ("--json",)),
    ("drain", ("Nobody", "--json", "--timeout", "5")),
    ("prune", ("--older-than", "1s", "--json")),
    ("prune", ("--older-than", "1s")),
    ("adopt", ("orders", "--tenant", "customer", "--key", "id")),
    ("adopt", ("--source", "orders", "--backfill")),
    ("adopt", ("orders",)),
    ("unadopt", ("orders",)),
    ("unadopt", ("orders",)),
    ("pipeline", ("remove", "old")),
    ("pipeline", ("remove", "old", "--yes")),
    ("pipeline", ("remove", "alerts", "--yes")),
    ("doctor", ()),
    ("doctor", ("--json",)),
    ("env", ()),
    ("migrate", ()),
    ("migrate", ("--rebase",)),
    ("migrate", ("--to", "base")),
    ("migrate", ("--to", "nowhere")),
    ("up", ("--json",)),
    ("serve", ()),
    ("dashboard", ("--host", "192.0.2.1")),
)


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def compare(name: str, text: str) -> str | None:
    """Compare with a snapshot, or write it; return how it differs."""
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("TASKBRIDGE_TEST_WRITE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    recorded = file.read_text(encoding="utf-8") if file.exists() else ""
    return None if recorded == text else f"--- {file.name} has another text; now:\n{text}"


@pytest.fixture
def scene(taskbridge: Program, engine: Engine, gate_redis: redis.Redis, keys: Keys) -> Program:
    """Two pipelines, one of them with criteria, with tenants of each kind and no worker."""
    run(engine, *SCENE)
    sum_runs(engine, "invoices")
    forged = "ValueError: \x1b[2J [red]no customer 17[/red]\nFrance  idle\r\u2028"
    put_in_quarantine(engine, "Malta", "3", reason=forged, attempts=5)
    put_in_quarantine(engine, "Malta", "4", reason="no price", cause="rejected")
    hold_back(gate_redis, keys, "Spain")
    taskbridge.environment |= declare(taskbridge)
    lines = [alert(), alert("INFO"), "no JSON", alert("WARNING", "shop")]
    write(taskbridge.directory / "alerts.jsonl", lines)
    return taskbridge


def test_each_command_says_what_its_snapshot_has(
    scene: Program, root: Path, engine: Engine, gate_redis: redis.Redis
) -> None:
    found = defaultdict[str, list[str]](list)
    for name, arguments in STEPS:
        if name == "doctor":
            # What is overdue, and since when nobody looks, would depend on how long the steps before have taken.
            run(engine, "DELETE FROM taskbridge.tails")
            gate_redis.flushdb()
        elif name == "prune" and name not in found:
            # The steps before have just written records, and `--older-than 1s` is to include them.
            time.sleep(1)
        ended = scene(name, *arguments)
        assert "Traceback" not in ended.stderr
        stderr = "".join(f"2> {line}\n" for line in ended.stderr.splitlines())
        found[name].append(f"$ taskbridge {' '.join((name, *arguments))}\n{ended.stdout}{stderr}exit {ended.status}\n")
    hidden = {str(scene.directory): "DIR", str(root): "ROOT"}
    differences = []
    for name, parts in found.items():
        text = "\n".join(parts)
        for path, instead in hidden.items():
            text = text.replace(path, instead)
        differences.append(compare(name, masked(text)))
    assert {name for name, _ in STEPS} >= {*cli.commands} - {"metrics"}
    assert not [one for one in differences if one], "\n".join(filter(None, differences))
