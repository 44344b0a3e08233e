"""For root, PostgreSQL runs as another user, and nothing is opened that was closed."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from pathlib import Path

import psycopg
import pytest
import redis

from taskbridge.embedded import Servers, serve
from taskbridge.embedded.account import Account, server_account
from taskbridge.embedded.postgres import Postgres
from taskbridge.errors import AlreadyRunning, Unavailable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="shows what root does")
INITDB = Postgres._initdb


@pytest.fixture
def closed(open_directory: Path) -> Path:
    """A directory that only root may enter, such as a home."""
    directory = open_directory / "home"
    directory.mkdir(mode=0o700)
    return directory


def modes(path: Path) -> dict[Path, int]:
    return {each: stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents)}


def check(servers: Servers) -> None:
    with psycopg.connect(servers.postgres_url) as connection:
        connection.execute("SELECT 1")
    with redis.Redis.from_url(servers.redis_url) as client:
        assert client.ping()


def nobody() -> Account:
    account = server_account(Path("/nonexistent"))
    assert account is not None
    return account


def user_of_postgres(cluster: Path) -> int:
    pid = (cluster / "postmaster.pid").read_text().splitlines()[0]
    return Path(f"/proc/{pid}").stat().st_uid


def test_below_a_closed_home_no_mode_changes_and_the_cluster_lies_outside(closed: Path, shared: Path) -> None:
    data_dir = closed / "project" / ".taskbridge"
    data_dir.mkdir(parents=True)
    before = modes(data_dir)
    for _ in range(2):
        with serve(data_dir, durable=False) as servers:
            check(servers)
            outside = (data_dir / "postgres").resolve()
            assert user_of_postgres(outside) == nobody().pw_uid
    assert modes(data_dir) == before
    assert {path.name for path in shared.iterdir()} - {"binaries"} == {outside.name, f"{outside.name}.lock"}
    assert stat.S_IMODE(outside.stat().st_mode) == 0o700


def test_in_an_open_directory_no_mode_changes_and_the_cluster_lies_inside(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o751)
    before = modes(data_dir)
    with serve(data_dir, durable=False) as servers:
        check(servers)
        assert user_of_postgres(data_dir / "postgres") == nobody().pw_uid
    assert modes(data_dir) == before
    assert not (data_dir / "postgres").is_symlink()


@pytest.mark.usefixtures("shared")
def test_a_data_directory_that_was_made_again_has_a_new_cluster(closed: Path) -> None:
    with serve(closed / "data", durable=False) as servers, psycopg.connect(servers.postgres_url) as connection:
        connection.execute("CREATE TABLE old ()")
    shutil.rmtree(closed / "data")
    with serve(closed / "data", durable=False) as servers, psycopg.connect(servers.postgres_url) as connection:
        assert connection.execute("SELECT to_regclass('old')").fetchone() == (None,)


@pytest.mark.usefixtures("shared")
def test_a_copy_of_the_data_directory_does_not_serve_the_same_cluster(closed: Path) -> None:
    with serve(closed / "data", durable=False) as servers:
        shutil.copytree(closed / "data", closed / "copy", symlinks=True)
        with pytest.raises(AlreadyRunning):
            serve(closed / "copy", durable=False).__enter__()
        check(servers)


def test_a_new_cluster_leaves_one_alone_that_another_deployment_is_making(closed: Path, shared: Path) -> None:
    half_made = []

    def initdb(postgres: Postgres, cluster: Path, password: Path) -> None:
        half_made.append(cluster)
        if len(half_made) == 1:
            # Meanwhile, another deployment makes its own.
            with serve(closed / "other", durable=False) as servers:
                check(servers)
        INITDB(postgres, cluster, password)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Postgres, "_initdb", initdb)
        with serve(closed / "data", durable=False) as servers:
            check(servers)
    assert {one.parent.parent for one in half_made} == {shared}


def test_a_directory_that_was_closed_later_gives_a_clear_error(
    open_directory: Path, data_dir_with_cluster: Path
) -> None:
    open_directory.chmod(0o700)
    with pytest.raises(Unavailable, match=r"the user 'nobody'.*has no access.*chmod o\+x"):
        serve(data_dir_with_cluster).__enter__()
    assert stat.S_IMODE(open_directory.stat().st_mode) == 0o700


def test_the_owner_of_a_cluster_goes_on_serving_it(data_dir: Path) -> None:
    owner = next(each for each in pwd.getpwall() if each.pw_uid not in (0, nobody().pw_uid))
    (data_dir / "postgres").mkdir(parents=True)
    os.chown(data_dir / "postgres", owner.pw_uid, owner.pw_gid)
    assert server_account(data_dir / "postgres") == owner
