"""`taskbridge up` does the work, notices what dies, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from taskbridge.testing.servers import open_directory
from tests.cli.program import Program, Running
from tests.cli.scenes import HEADER, line, write
from tests.embedded.processes import alive, command_line, descendants, watchers_of
from tests.scraping import free_ports, scrape
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

if not Path("/proc/self/stat").exists():
    pytest.skip("looks at processes through /proc, which this system does not have", allow_module_level=True)

# Tests that share the fixture `living` run in one process.
together = pytest.mark.xdist_group("up-living")

READY = "Ctrl-C stops everything"


def wait_for(running: Running, text: str) -> None:
    wait_until(lambda: text in running.stderr or running.process.poll() is not None, text, 60)
    assert text in running.stderr, running.stderr


def workers(running: Running) -> list[int]:
    """The pids of the workers' main processes."""
    found = descendants(running.process.pid) - watchers_of(running.process.pid)
    found = {pid for pid in found if "celery" in command_line(pid)}
    return sorted(pid for pid in found if not any(pid in descendants(other) for other in found))


def test_a_day_of_invoices_is_delivered_once_each_and_reported_as_one_object(bare: Program, a_day: Path) -> None:
    with bare.started_afresh("up", "--import", a_day, "--exit-when-idle", "--json", "--data-dir", "data") as running:
        ended = running.end()
    assert ended.status == 0, ended.stderr
    report = ended.json
    tenants = report.pop("tenants")
    seconds = report.pop("seconds")
    assert seconds > 0
    assert report == {
        "imported": 169,
        "unchanged": 0,
        "handled": 169,
        "pending": 0,
        "quarantined": 0,
        "deliveries": 169,
        "duplicate_deliveries": 0,
    }
    assert len(tenants) == 6
    assert sum(one["records"] for one in tenants.values()) == 169
    assert sum(one["events"] for one in tenants.values()) == 169
    assert all(0 <= one["first_event_ms"] < 1_000 * seconds for one in tenants.values())
    assert all(one["runs"] >= 1 and one["sweeps"] >= 1 for one in tenants.values())
    assert "\x1b" not in ended.stderr
    assert "\r" not in ended.stderr


@pytest.mark.slow
def test_records_that_stay_pending_end_with_status_1(taskbridge: Program) -> None:
    (taskbridge.directory / "handlers.py").write_text(
        "from taskbridge import pipeline\n@pipeline('invoices')\ndef handle(batch): raise ValueError('no')\n",
        encoding="utf-8",
    )
    file = write(taskbridge.directory / "invoices.csv", [HEADER, line("1")])
    command = ("up", "--import", file, "--exit-when-idle", "--timeout", "1", "--json")
    with taskbridge.started_afresh(*command, TASKBRIDGE_PIPELINES="handlers") as running:
        ended = running.end()
    assert ended.status == 1
    counts: dict[str, Any] = {"imported": 1, "pending": 1, "handled": 0, "deliveries": 0}
    assert ended.json | counts == ended.json


@pytest.fixture(scope="module")
def living() -> Iterator[tuple[Program, Running]]:
    """An `up` that stays, with embedded servers in the default data directory."""
    with open_directory() as directory:
        program = Program(directory, {})
        with program.started_afresh("up") as running:
            wait_for(running, READY)
            yield program, running


@together
def test_a_second_up_on_the_same_directory_refuses_and_says_who_serves_it(living: tuple[Program, Running]) -> None:
    program, running = living
    second = program("up")
    assert second.status == 1
    said = second.stderr.splitlines()[-1]
    assert f"is in use by another process (pid {running.process.pid})" in said
    assert "taskbridge env" in said
    assert running.process.poll() is None


@together
def test_other_commands_find_the_servers_and_a_worker_that_was_killed_is_started_again(
    living: tuple[Program, Running],
) -> None:
    program, running = living
    assert program("doctor", "--json").json["level"] == "ok"
    assert "@127.0.0.1:" in program("env").stdout
    (worker,) = workers(running)
    os.kill(worker, signal.SIGKILL)
    wait_for(running, f"worker1 (pid {worker}) ended with status 137; restarting it")
    with psycopg.connect(program("env").stdout.split()[0].partition("=")[2].strip("'")) as connection:
        connection.execute("SELECT taskbridge.record('invoices', 'France', '1', '{}')")

    def handled() -> bool:
        return bool(program("inspect", "France", "--json").json["pipelines"]["invoices"]["handled"] == 1)

    wait_until(handled, "the invoice is handled", 30)
    assert workers(running) != [worker]


def assert_all_ends(running: Running, number: signal.Signals, status: int) -> None:
    """Send a signal to a ready `up`: its processes end too, and before it unless it was killed."""
    wait_for(running, READY)
    family = descendants(running.process.pid)
    assert len(workers(running)) >= 1
    running.process.send_signal(number)
    ended = running.end()
    assert ended.status == status, ended.stderr
    assert "Traceback" not in ended.stderr
    if number is not signal.SIGKILL:
        assert not any(alive(pid) for pid in family)
    wait_until(lambda: not any(alive(pid) for pid in family), "all have ended", 30)


@together
def test_sigkill_leaves_no_process_behind(living: tuple[Program, Running]) -> None:
    """The last test that uses `living`."""
    assert_all_ends(living[1], signal.SIGKILL, -signal.SIGKILL)


def test_ctrl_c_ends_servers_and_workers_in_order(bare: Program) -> None:
    port = free_ports(2)
    with bare.started_afresh("up", "--workers", "2", TASKBRIDGE_METRICS_PORT=str(port)) as running:
        wait_for(running, READY)
        # Each worker serves its metrics on a port of its own.
        assert [scrape(port + number)["taskbridge_up redis"] for number in range(2)] == [1, 1]
        programs = {Path(command_line(pid)[0]).name for pid in descendants(running.process.pid)}
        assert "postgres" in programs
        assert programs & {"redis-server", "valkey-server"}
        assert len(workers(running)) == 2
        assert_all_ends(running, signal.SIGINT, 0)
    for name in ("worker-1.log", "worker-2.log"):
        log = (bare.directory / ".taskbridge" / name).read_text(encoding="utf-8")
        assert "Warm shutdown" in log
        assert "Cold shutdown" not in log
