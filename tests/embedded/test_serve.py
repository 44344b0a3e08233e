"""Both servers answer, keep what they should keep, and one process serves a data directory."""

from __future__ import annotations

import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from taskbridge.embedded import Servers, directories, running, serve
from taskbridge.embedded.lock import hold, is_held
from taskbridge.embedded.postgres import Postgres
from taskbridge.errors import ConfigurationError, Unavailable

from .processes import command_line, serving


def query(servers: Servers, statement: str) -> str:
    with psycopg.connect(servers.postgres_url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return str(row[0])


@dataclass(frozen=True)
class Served:
    data_dir: Path
    servers: Servers


# Tests that share the fixture `served` run in one process.
together = pytest.mark.xdist_group("embedded-served")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Servers for the tests that only look at them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        data_dir = Path(name).resolve() / "data"
        with serve(data_dir, durable=False) as servers:
            yield Served(data_dir, servers)


@together
def test_both_servers_answer_with_the_settings_that_the_project_relies_on(served: Served) -> None:
    assert query(served.servers, "SELECT version()").startswith("PostgreSQL 18.")
    expected = {
        "server_encoding": "UTF8",
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": "200",
        "fsync": "off",
        "synchronous_commit": "on",
        "full_page_writes": "off",
    }
    assert {name: query(served.servers, f"SHOW {name}") for name in expected} == expected
    with redis.Redis.from_url(served.servers.redis_url, decode_responses=True) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("appendonly") == {"appendonly": "no"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


@together
def test_a_password_is_needed_and_on_no_command_line_in_no_repr_and_in_no_file_for_others(served: Served) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(re.sub(r":[^:@]+@", ":wrong@", served.servers.postgres_url))
    without = f"redis://{served.servers.redis_url.rpartition('@')[2]}"
    with redis.Redis.from_url(without) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    urls = (served.servers.postgres_url, served.servers.redis_url)
    everything = [command_line(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    assert str(served.data_dir) in str(everything)
    for password in (url.partition("@")[0].rpartition(":")[2] for url in urls):
        assert len(password) >= 24
        assert password not in str(everything)
        assert password not in repr(served.servers)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in served.data_dir.iterdir() if path.is_file()}
    assert {"servers.json", "postgres.log", "redis.conf"} <= set(files)
    assert set(files.values()) == {0o600}


def test_another_process_is_told_who_serves_the_directory_and_finds_its_servers(data_dir: Path) -> None:
    assert running(data_dir) is None
    assert not data_dir.exists()
    with serving(data_dir) as other:
        assert running(data_dir) == Servers(other.postgres_url, other.redis_url)
        other.process.terminate()
        other.process.wait()
        assert running(data_dir) is None
        assert not (data_dir / "servers.json").exists()


def test_by_default_rows_survive_everything_and_keys_do_not_survive_a_restart(data_dir: Path) -> None:
    with serve(data_dir) as servers:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert query(servers, f"SHOW {name}") == "on"
        with psycopg.connect(servers.postgres_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(servers.redis_url) as client:
            client.set("key", "value")
    with serve(data_dir) as servers:
        assert query(servers, "SELECT answer FROM kept") == "42"
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.dbsize() == 0


@pytest.mark.slow
def test_a_path_with_spaces_quotes_and_letters_of_any_language_works(open_directory: Path) -> None:
    data_dir = open_directory / 'Jörg\'s "Daten" für #1 日本' / "data"
    # one that was left half made is made again
    half_made = data_dir / "postgres.new-0123"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    for _ in range(2):
        with serve(data_dir, durable=False) as servers:
            assert query(servers, "SELECT 1") == "1"
    assert [path.name for path in data_dir.glob("postgres*") if path.is_dir()] == ["postgres"]


def test_a_data_directory_that_is_a_file_gives_a_clear_error(open_directory: Path) -> None:
    path = open_directory / "file"
    path.write_text("")
    with pytest.raises(ConfigurationError, match=r"data directory .*/file cannot be used"), serve(path):
        pass
    assert running(path) is None


def test_the_cluster_may_be_a_link_that_its_user_made(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "SHARED", Path("/proc/nobody-may-create-this"))
    elsewhere, data_dir = open_directory / "elsewhere", open_directory / "data"
    elsewhere.mkdir()
    data_dir.mkdir()
    (data_dir / "postgres").symlink_to(elsewhere)
    assert directories.choose_cluster(data_dir, None) == elsewhere


def test_a_failing_initdb_leaves_no_cluster_and_no_password_file(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbridge.embedded.postgres.NAME", "pg_reserved")  # initdb refuses such a name
    with pytest.raises(Unavailable, match=r"(?s)initdb could not create a cluster.*pg_reserved"), serve(data_dir):
        pass
    assert sorted(path.name for path in data_dir.iterdir()) == ["lock", "postgres.lock", "postgres.log"]


def test_a_server_that_does_not_answer_in_time_is_stopped(
    data_dir_with_cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postgres, "start_seconds", 0.0)
    with pytest.raises(Unavailable, match="PostgreSQL did not start"), serve(data_dir_with_cluster, durable=False):
        pass


def test_a_cluster_of_another_major_version_is_refused(data_dir_with_cluster: Path) -> None:
    (data_dir_with_cluster / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(Unavailable, match=r"(?s)PostgreSQL did not start.*version 17, which is not compatible"):
        serve(data_dir_with_cluster).__enter__()


def test_those_who_only_look_never_keep_a_server_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_held(path)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(look)
        for _ in range(100):
            with hold(path, tmp_path):
                pass
        stop.set()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        hold(tmp_path / "lock", tmp_path).__enter__()
    assert victim.read_text() == "kept"
