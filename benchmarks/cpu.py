"""CPU time by group of processes: on a machine that others use as well it varies less than wall time.

psutil reads it.
"""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime

__all__ = ["Cpu", "process", "seconds_of"]


def process(pid: int | None = None) -> Any:
    """Return psutil's view of a process (None: this one).

    Raises:
        ConfigurationError: psutil is not installed.
    """
    if find_spec("psutil") is None:
        raise ConfigurationError("psutil counts the CPU time: run `make .venv/.ready`")
    return importlib.import_module("psutil").Process(pid)


class Cpu:
    """CPU time of workers, Redis, Postgres and this process.

    Args:
        runtime: its servers are measured.
        workers: pids of the main processes of workers, by name.
    """

    def __init__(self, runtime: Runtime, workers: Mapping[str, Sequence[int]]) -> None:
        self._workers = {name: [process(pid) for pid in pids] for name, pids in workers.items()}
        server: Any = runtime.redis.info("server")
        self._redis = process(server["process_id"])
        with runtime.engine.connect() as connection:
            backend = process(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        # A backend's parent is the postmaster.
        self._postgres = backend.parent() or backend

    def seconds(self) -> dict[str, float]:
        """Return user and system time so far: "NAME main" and "NAME children" of each worker, and the rest."""
        found = {"redis": seconds_of(self._redis), "postgres": _tree(self._postgres), "producer": seconds_of(process())}
        for name, processes in self._workers.items():
            found[f"{name} main"] = sum(map(seconds_of, processes))
            found[f"{name} children"] = sum(map(_tree, processes)) - found[f"{name} main"]
        return found


def seconds_of(one: Any) -> float:
    """Return the user and system time of one process so far."""
    if platform.system() == "Linux":
        # What clock_getcpuclockid() gives; /proc, which psutil reads, counts in hundredths of a second.
        return time.clock_gettime(~one.pid << 3 | 2)
    times = one.cpu_times()
    return float(times.user + times.system)


def _tree(one: Any) -> float:
    """Return the time of a process and its children, also of those that it has reaped."""
    reaped = one.cpu_times()
    total = seconds_of(one) + float(reaped.children_user + reaped.children_system)
    for child in one.children(recursive=True):
        with suppress(OSError, importlib.import_module("psutil").Error):  # it may have ended meanwhile
            total += seconds_of(child)
    return total
