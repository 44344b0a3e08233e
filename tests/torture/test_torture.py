"""A few schedules of random faults, and proof that they would notice: without a guard they find what it prevents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine

from taskbridge.gate import gate
from taskbridge.gate.scripts import SCRIPTS, render
from taskbridge.store import cursor
from taskbridge.store import queries as store
from taskbridge.store.queries import query
from taskbridge.worker import poller
from tests.deployment import ROOT
from tests.waiting import TIME_FACTOR, wait_until
from verification.torture.arenas import Order, in_arenas
from verification.torture.faults import FAULTS
from verification.torture.guards import EVERY, GUARDS, TEXTS, take_out
from verification.torture.schedule import draw

pytestmark = pytest.mark.e2e

QUICK = (
    "worker_killed",
    "worker_terminated",
    "redis_rewound",
    "redis_lost",
    "redis_full",
    "redis_alone",
    "replies_lost",
    "postgres_immediate",
    "sessions_terminated",
    "messages_lost",
    "messages_doubled",
    "committed_late",
    "lease_outlasted",
    "handler_failed",
    "record_hangs",
    "record_leaves_state",
    "record_runs_out_of_memory",
    "backfilled_beside_users",
    "written_plainly",
    "poller_killed",
    "poller_rewound",
    "hold_deleted",
)
"""What takes seconds; the others need many tries or many tenants."""
MARGIN = 5.0 * TIME_FACTOR
"""Seconds that a busy machine is given beyond each bound."""


def torture(*options: str, path: Path | None = None) -> tuple[int, list[dict[str, Any]], str]:
    """Run schedules, with programs from `path`; return the exit status, each schedule's line, and all that was said."""
    done = subprocess.run(
        [sys.executable, "-m", "verification.torture", "--margin", str(MARGIN), *options],
        cwd=ROOT,
        env={**os.environ, "PATH": os.environ["PATH"] if path is None else str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"], done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_under_random_faults() -> None:
    status, results, said = torture("--schedules", "3", "--seed", "7", "--arenas", "2", "--only", ",".join(QUICK))

    assert status == 0, said
    assert [result["violations"] for result in results] == [[], [], []]
    assert all(len(result["recoveries"]) >= 3 and result["committed"] for result in results)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_frozen_worker_is_found_to_advance_twice_where_nobody_checks_the_owner() -> None:
    # A lock of a frozen worker holds up its successor; so some freeze without one, in the middle of a batch.
    without = ("--only", "worker_frozen", "--without", "owner,end-replaced")

    status, results, said = torture("--schedules", "3", "--seed", "1", "--arenas", "2", *without)

    assert status == 1, said
    kinds = {violation.partition(":")[0] for result in results for violation in result["violations"]}
    assert {"doubled", "double advance"} <= kinds
    assert any(f"--schedule {result['seed']} {' '.join(without)}" in said for result in results)


@pytest.mark.slow
def test_a_schedule_whose_harness_fails_is_told_and_the_next_one_is_begun(tmp_path: Path) -> None:
    """Where there is no compiler no clock can be moved, and the fault that would do it raises."""
    status, results, said = torture("--schedules", "2", "--seed", "3", "--only", "redis_clock", path=tmp_path)

    assert status == 1
    assert [result["seed"] for result in results] == [3_000_000, 3_000_001], said
    for result in results:
        (violation,) = result["violations"]
        assert violation.startswith("harness failed: Traceback")
        assert "in redis_clock" in violation
    assert ", 2 harness failed." in said
    assert "The harness failed in schedules 3000000, 3000001" in said


@pytest.mark.skipif(sys.platform != "linux", reason="an arena compiles nothing there")
@pytest.mark.slow
def test_a_schedule_whose_arena_cannot_be_opened_gets_one_more_and_no_third(tmp_path: Path) -> None:
    """A compiler that fails keeps Redis of an arena from its clock."""
    compiler, tries = tmp_path / "cc", tmp_path / "tries"
    compiler.write_text(f"#!/bin/sh\necho >> {tries}\nexit 1\n")
    compiler.chmod(0o755)

    status, results, said = torture("--schedules", "3", "--seed", "3", path=tmp_path)

    assert status == 1
    assert [(result["seed"], result["violations"][0][:25]) for result in results] == [
        (3_000_000, "harness failed: Traceback")
    ]
    assert len(tries.read_text().splitlines()) == 3
    assert "BROKEN" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_arena_that_hangs_is_ended_with_all_that_it_started_and_the_next_one_is_begun() -> None:
    """Where a schedule may not even take as long as its servers need, each of them counts as hung."""
    started: set[psutil.Process] = set()
    done = threading.Event()

    def note() -> None:
        while not done.wait(0.05):
            started.update(psutil.Process().children(recursive=True))

    noting = threading.Thread(target=note)
    noting.start()
    try:
        results = [*in_arenas(Order(only=("producer_died",)), [1, 2], 1, within=4.0)]
    finally:
        done.set()
        noting.join()

    assert [result.seed for result in results] == [1, 2]
    for result in results:
        (violation,) = result.violations
        assert violation.startswith("harness failed: no result within 4 s")
    assert len(started) > 4
    # multiprocessing keeps one for this process.
    ours = [one for one in psutil.Process().children() if "resource_tracker" in " ".join(one.cmdline())]
    left = started - {*ours}
    wait_until(lambda: not any(map(_runs, left)), "all have ended", 60)


def _runs(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may wait for its parent to ask."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    subjects = {name: fault.subject for name, fault in FAULTS.items()}

    drawn = [draw(seed, subjects) for seed in range(300)]

    assert drawn == [draw(seed, subjects) for seed in range(300)]
    assert {planned.fault for schedule in drawn for group in schedule.groups for planned in group} == set(FAULTS)
    assert all(sum(map(len, schedule.groups)) >= 3 for schedule in drawn)
    for group in (group for schedule in drawn for group in schedule.groups):
        assert len({FAULTS[planned.fault].subject for planned in group}) == len(group)


@pytest.mark.parametrize("guard", TEXTS)
def test_what_a_guard_is_taken_out_of_is_there(guard: str) -> None:
    name, present, _ = TEXTS[guard]
    rendered = {script: render(SCRIPTS[script], "") for script in SCRIPTS}
    texts = [*rendered.values()] if name == EVERY else [rendered[name]] if name in rendered else [query(name)]

    assert [text.count(present) for text in texts] == [1] * len(texts)


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_can_be_taken_out(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (poller, "poll_page"), (poller, "reconcile_page")
    for module, name in ((store, "query"), (gate, "render"), *pages, (cursor, "SHORT_WAIT")):
        monkeypatch.setitem(vars(module), name, vars(module)[name])
    before = _what_workers_use()

    take_out(guard)

    assert _what_workers_use() != before


def _what_workers_use() -> list[object]:
    query = store.queries(create_engine("postgresql+psycopg://"))
    texts = [query(name) for name in ("advance", "end_replaced")]
    scripts = [vars(gate)["render"](SCRIPTS[name], "") for name in SCRIPTS]
    return [*texts, *scripts, poller.poll_page, poller.reconcile_page, vars(cursor)["SHORT_WAIT"]]
