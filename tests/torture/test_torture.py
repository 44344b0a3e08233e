"""A few schedules of random faults, and proof that they would notice: without a guard they find what it prevents."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest
from sqlalchemy import create_engine

from taskbridge.gate import gate
from taskbridge.gate.scripts import SCRIPTS
from taskbridge.store import cursor
from taskbridge.store import queries as store
from taskbridge.worker import poller
from tests.ending import ended
from tests.store.pgbouncer import NEEDS_PGBOUNCER
from tests.waiting import TIME_FACTOR
from verification.torture.__main__ import main
from verification.torture.faults import FAULTS, SERVERS, available
from verification.torture.guards import GUARDS, take_out
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


def torture(*options: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run schedules; return the exit status, each schedule's line, and all that was said."""
    command = [sys.executable, "-m", "verification.torture", "--margin", str(MARGIN), *options]
    done = ended(command, seconds=1_000)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"], done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_or_doubled_under_random_faults() -> None:
    status, results, said = torture("--schedules", "3", "--seed", "7", "--arenas", "2", "--only", ",".join(QUICK))

    assert status == 0, said
    assert [result["violations"] for result in results] == [[], [], []]
    assert all(len(result["recoveries"]) >= 3 and result["committed"] for result in results)


@pytest.mark.slow
@pytest.mark.timeout(600)
@NEEDS_PGBOUNCER
def test_nothing_is_lost_or_doubled_behind_pgbouncer_and_sentinel() -> None:
    servers = ("--servers", ",".join(SERVERS), "--only", ",".join(name for name in FAULTS if FAULTS[name].needs))

    status, results, said = torture("--schedules", "2", "--seed", "901", "--arenas", "2", *servers)

    assert status == 0, said
    assert [result["violations"] for result in results] == [[], []]
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


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    subjects = {name: fault.subject for name, fault in FAULTS.items()}

    drawn = [draw(seed, subjects) for seed in range(300)]

    assert drawn == [draw(seed, subjects) for seed in range(300)]
    assert {planned.fault for schedule in drawn for group in schedule.groups for planned in group} == set(FAULTS)
    assert all(sum(map(len, schedule.groups)) >= 3 for schedule in drawn)
    for group in (group for schedule in drawn for group in schedule.groups):
        assert len({FAULTS[planned.fault].subject for planned in group}) == len(group)


def test_an_arena_has_other_servers_and_their_faults_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [name for name, fault in available().items() if fault.needs]
    assert all(available([kind]).keys() - available().keys() for kind in SERVERS)

    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="there is no pgbouncer on this machine"):
        main(["--servers", "pgbouncer"])


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
