"""What a killed process left is taken over, and what belongs to others is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from taskbridge.embedded import serve
from taskbridge.embedded.account import server_account
from taskbridge.embedded.launch import listen
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer
from tests.waiting import wait_until

from .processes import alive


@pytest.fixture
def data_dir(data_dir_with_cluster: Path) -> Path:
    return data_dir_with_cluster


@contextmanager
def bystander() -> Iterator[int]:
    """A process of the servers' user that has nothing to do with the data directory."""
    account = server_account(Path("/nonexistent"))
    user = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
    with subprocess.Popen(["/bin/sleep", "600"], **user) as process:  # type: ignore[call-overload]
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
    account = server_account(data_dir / "postgres")
    postgres = Postgres(data_dir, data_dir, account, durable=False)
    redis_server = RedisServer(data_dir, data_dir, account)
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
    account = server_account(data_dir / "postgres")
    monkeypatch.setattr("taskbridge.embedded.launch.LEFTOVER_SECONDS", 0.5)
    with listen(RedisServer(data_dir, data_dir, account)) as (_, frozen):
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
