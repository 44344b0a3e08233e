"""CPU time by group of processes: on a machine that others use as well it varies less than wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from taskbridge.errors import ConfigurationError
from taskbridge.runtime import Runtime

__all__ = ["Cpu"]


class Cpu:
    """CPU time of workers, Redis, Postgres and this process.

    Args:
        here: its servers are measured.
        workers: pids of the main processes of workers, by name.

    Raises:
        ConfigurationError: psutil is not installed.
    """

    def __init__(self, here: Runtime, workers: Mapping[str, Sequence[int]]) -> None:
        psutil = _psutil()
        self._workers = {name: [psutil.Process(pid) for pid in pids] for name, pids in workers.items()}
        server: Any = here.redis.info("server")
        self._redis = psutil.Process(server["process_id"])
        with here.engine.connect() as connection:
            backend = psutil.Process(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        # A backend's parent is the postmaster.
        self._postgres = backend.parent() or backend

    def seconds(self) -> dict[str, float]:
        """Return user and system time so far: "NAME main" and "NAME children" of each worker, and the rest."""
        found = {"redis": _own(self._redis), "postgres": _tree(self._postgres), "producer": _own(_psutil().Process())}
        for name, processes in self._workers.items():
            found[f"{name} main"] = sum(map(_own, processes))
            found[f"{name} children"] = sum(map(_tree, processes)) - found[f"{name} main"]
        return found


def _psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("psutil counts the CPU time: pip install 'taskbridge[bench]'") from None
    return psutil


def _own(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _tree(process: Any) -> float:
    """Return the time of a process and its children, also of those that it has reaped."""
    times = process.cpu_times()
    total = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children(recursive=True):
        with suppress(_psutil().NoSuchProcess):
            total += _own(child)
    return total
