"""What a benchmark was measured on: the machine and the versions. Neither names the host, a user or a path."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.stage import stage

__all__ = ["machine", "versions"]

LIBRARIES: Final = ("celery", "kombu", "redis", "SQLAlchemy", "psycopg")


def machine() -> dict[str, str]:
    """Return CPU, cores, memory, kernel and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "CPU": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries, and those of the servers, which are started for it."""
    found = {f"{name} (Python)" if name == "redis" else name: version(name) for name in LIBRARIES}
    with stage() as (runtime, _):
        server: Any = runtime.redis.info("server")
        with runtime.engine.connect() as connection:
            postgres = connection.exec_driver_sql("SHOW server_version").scalar_one()
    return {**found, "PostgreSQL": str(postgres).split()[0], "Redis": str(server["redis_version"])}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
