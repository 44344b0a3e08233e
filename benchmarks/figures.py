"""Reports on file: each benchmark's last report, with its date, commit, machine and versions, as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.report import Report
from benchmarks.stage import ROOT, stage
from taskbridge.errors import InvalidInput

__all__ = ["FILE", "Figures", "commit", "machine", "read", "versions", "write"]

FILE: Final = "benchmarks.json"
"""The file that `make bench` writes next to the page."""

LIBRARIES: Final = ("celery", "kombu", "redis", "SQLAlchemy", "psycopg")


@dataclass(frozen=True, slots=True)
class Figures:
    """One benchmark's report, and when, at which commit, and on what it was measured."""

    date: str
    commit: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    report: Report

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        facts = {name: getattr(self, name) for name in ("date", "commit", "machine", "versions")}
        return {**facts, "report": self.report.as_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned."""
        return cls(**{**value, "report": Report.from_json(value["report"])})


def read(file: Path) -> dict[str, Figures]:
    """Return the figures in `file` by benchmark; none if there is no such file.

    Raises:
        InvalidInput: `write` did not write the file.
    """
    if not file.exists():
        return {}
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        return {name: Figures.from_json(value) for name, value in written.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(
            f"{file} does not hold figures ({type(error).__name__}: {error}): move it away and measure again"
        ) from None


def write(file: Path, figures: Mapping[str, Figures], order: Iterable[str]) -> None:
    """Write the figures of the benchmarks in `order`, in that order. A reader sees the old file or the new one."""
    written = {name: figures[name].as_json() for name in order if name in figures}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(file)


def commit() -> str:
    """Return the commit of this checkout, with "-dirty" if files differ from it; "unknown" without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


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
    """Return the versions of the libraries and of the embedded servers, which are started for this."""
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
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
