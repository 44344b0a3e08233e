"""Nothing outlives the process that serves, however that ends, and what is left all the same is taken over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from taskbridge.embedded import Guarded, running, serve
from taskbridge.embedded.account import as_user, server_account
from taskbridge.embedded.launch import listen
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer
from taskbridge.errors import Unavailable
from tests.waiting import wait_until

from .processes import alive, descendants, serving, watchers_of

# Says "ready" in a file, then ignores SIGTERM and waits.
_STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
signal.pause()
"""


@pytest.fixture
def data_dir(data_dir_with_cluster: Path) -> Path:
    return data_dir_with_cluster


@pytest.mark.parametrize("watchers_too", [False, True])
def test_sigkill_leaves_no_process_behind_and_nothing_in_the_way(data_dir: Path, *, watchers_too: bool) -> None:
    with serving(data_dir) as other:
        family, watchers = descendants(other.process.pid), watchers_of(other.process.pid)
        assert len(family) >= 5  # two watchers, two servers, processes of PostgreSQL
        assert len(watchers) == 2
        assert os.getsid(other.process.pid) not in {os.getsid(pid) for pid in family}
        for pid in (*(watchers if watchers_too else ()), other.process.pid):
            os.kill(pid, signal.SIGKILL)
        other.process.wait()
        assert (data_dir / "servers.json").exists()
        assert running(data_dir) is None
        if watchers_too:
            with serve(data_dir, durable=False) as servers, psycopg.connect(servers.postgres_url):
                assert not any(alive(pid) for pid in family)
        else:
            wait_until(lambda: not any(alive(pid) for pid in family), "the family ended")
            assert not (data_dir / "postgres" / "postmaster.pid").exists(), "an orderly shutdown, not a crash"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_signal_stops_the_servers_in_order_before_the_process_ends(
    data_dir: Path, number: signal.Signals, status: int
) -> None:
    with serving(data_dir) as other:
        family = descendants(other.process.pid)
        if number == signal.SIGINT:
            os.killpg(other.process.pid, number)  # as a terminal does it
        else:
            other.process.send_signal(number)
        assert other.process.wait() == status
        assert not any(alive(pid) for pid in family)
    assert running(data_dir) is None
    assert "shut down" in (data_dir / "postgres.log").read_text().splitlines()[-1]


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_or_in_a_hurry(tmp_path: Path) -> None:
    for grace in (0.2, 600.0):
        ready = tmp_path / str(grace)
        with Guarded([sys.executable, "-c", _STUBBORN, ready], stop=[(signal.SIGTERM, grace)]) as guarded:
            wait_until(ready.exists, "ready")
            stopping = threading.Thread(target=guarded.stop)
            stopping.start()
            if grace > 1:
                with pytest.raises(TimeoutError):
                    guarded.wait(0.1)
                guarded.hurry()
            stopping.join(60)
            assert guarded.poll() == 128 + signal.SIGKILL
        assert not alive(guarded.pid)


def test_processes_that_a_command_leaves_behind_end_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    guarded = Guarded(["/bin/sh", "-c", f"sleep 600 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}"])
    assert guarded.wait(10) == 0
    wait_until(lambda: not alive(int(pid_file.read_text())), "the process ended")
    guarded.stop()


def test_the_status_of_a_command_is_passed_on() -> None:
    for script, status in (("exit 3", 3), ("kill -9 $$", 137)):
        with Guarded(["/bin/sh", "-c", script]) as guarded:
            assert guarded.wait(10) == guarded.poll() == status
    with pytest.raises(Unavailable, match=r"/no/such/command cannot be started: .*No such file"):
        Guarded(["/no/such/command"])


def test_a_later_command_does_not_keep_an_earlier_one_alive() -> None:
    with Guarded(["/bin/sleep", "600"]) as earlier, Guarded(["/bin/sleep", "600"]) as later:
        assert earlier.stop() == 128 + signal.SIGTERM
        assert later.poll() is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_lives_on_keeps_neither_the_servers_nor_the_lock_and_one_that_leaves_stops_nothing(
    data_dir: Path,
) -> None:
    read_end, write_end = os.pipe()
    with ExitStack() as stack:
        servers = stack.enter_context(serve(data_dir, durable=False))
        leaves = os.fork()
        if leaves == 0:
            try:
                stack.close()
            finally:
                os._exit(0)
        os.waitpid(leaves, 0)
        with psycopg.connect(servers.postgres_url) as connection:
            connection.execute("SELECT 1")
        child = os.fork()
        if child == 0:
            os.close(write_end)
            os.read(read_end, 1)  # until the test closes its end
            os._exit(0)
    try:
        with serve(data_dir, durable=False):
            assert alive(child)
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(child, 0)


@contextmanager
def bystander() -> Iterator[int]:
    """A process of the servers' user that has nothing to do with the data directory."""
    with subprocess.Popen(["/bin/sleep", "600"], **as_user(server_account(Path("/nonexistent")))) as process:
        try:
            yield process.pid
            assert process.poll() is None, "was stopped"
        finally:
            process.kill()


def test_a_stale_pid_that_another_program_has_now_is_never_signalled(data_dir: Path) -> None:
    with bystander() as pid:
        # given what a killed process leaves, with the bystander's pid as that of Postgres
        with serve(data_dir, durable=False):
            lines = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines(keepends=True)
            published = (data_dir / "servers.json").read_text()
        (data_dir / "postgres" / "postmaster.pid").write_text("".join([f"{pid}\n", *lines[1:]]))
        (data_dir / "servers.json").write_text(published)
        with serve(data_dir, durable=False) as servers, psycopg.connect(servers.postgres_url) as connection:
            connection.execute("SELECT 1")


def test_servers_that_still_run_on_this_directory_are_stopped_first(data_dir: Path) -> None:
    postgres, redis_server = Postgres(data_dir, durable=False), RedisServer(data_dir)
    postgres.prepare()
    with (
        listen(postgres) as (_, old_postgres),
        listen(redis_server) as (_, old_redis),
        serve(data_dir, durable=False) as servers,
    ):
        assert not alive(old_postgres.pid)
        assert not alive(old_redis.pid)
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.ping()


@pytest.mark.slow
def test_a_server_that_does_not_end_by_itself_is_killed(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(data_dir, durable=False):
        pass
    monkeypatch.setattr("taskbridge.embedded.launch.LEFTOVER_SECONDS", 0.5)
    with listen(RedisServer(data_dir)) as (_, frozen):
        os.kill(frozen.pid, signal.SIGSTOP)
        with serve(data_dir, durable=False):
            assert not alive(frozen.pid)


def test_a_crash_of_postgres_under_a_long_query_does_not_stop_the_next_start(data_dir: Path) -> None:
    def compute() -> None:
        with psycopg.connect(url, autocommit=True) as other, pytest.raises(psycopg.OperationalError):
            other.execute("SELECT count(*) FROM generate_series(1, 100000000000) a")

    with serve(data_dir, durable=False) as servers:
        url = servers.postgres_url
        busy = threading.Thread(target=compute)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
            busy.start()
            active = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT count%' AND state = 'active'"
            wait_until(lambda: connection.execute(active).fetchone(), "the statement is active")
            os.kill(int((data_dir / "postgres" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGKILL)
    with serve(data_dir, durable=False) as servers, psycopg.connect(servers.postgres_url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    busy.join()
