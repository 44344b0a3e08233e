"""`python -m benchmarks.flames DIRECTORY`: flame graphs of the three hot paths; `make flames` runs it.

py-spy samples a process from outside. That takes Linux and the right to trace another process: root, or a
`kernel.yama.ptrace_scope` of 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import click

from benchmarks import figures, page
from benchmarks.cpu import process
from benchmarks.environment import machine, versions
from benchmarks.figures import FILE, Figures
from benchmarks.lateness import HEAD_START_MS, IDLE_SECONDS, let_wait_evenly
from benchmarks.lateness import PIPELINE as ALERTS
from benchmarks.profiles import PROFILES, Profile, by_function, by_package, read_raw
from benchmarks.report import Report
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.embedded import Guarded
from taskbridge.errors import ConfigurationError, TaskBridgeError, Unavailable
from taskbridge.gate import Keys, Spacing
from taskbridge.process.runtime import Runtime

__all__ = ["main"]

RATE: Final = 250
MOST_FUNCTIONS: Final = 12
TENANTS: Final = 300
"""Tenants whose runs follow each other while a worker's pool is recorded."""

PRODUCER: Final = "from taskbridge import notify_event\nwhile True:\n    notify_event.delay('busy')\n"


class HotPath(NamedTuple):
    """One hot path: its name, what it is, and how to get it going; the context gives the process to record."""

    name: str
    text: str
    going: Callable[[Runtime, Path, float, int], AbstractContextManager[int]]

    @property
    def key(self) -> str:
        """Its name among all figures; benchmarks have theirs."""
        return f"profile-{self.name}"


@contextmanager
def _notify(runtime: Runtime, directory: Path, seconds: float, tenants: int) -> Iterator[int]:  # noqa: ARG001
    environment = {
        **os.environ,
        "TASKBRIDGE_POSTGRES_URL": runtime.settings.postgres_url,
        "TASKBRIDGE_REDIS_URL": runtime.settings.redis_url,
    }
    with (
        (directory / "producer.log").open("wb") as output,
        Guarded([sys.executable, "-c", PRODUCER], output=output, environment=environment) as process,
    ):
        wait_until(lambda: runtime.redis.hget(Keys().runner(INVOICES, "busy"), "events"), "the producer notifies", 30)
        yield process.pid
    runtime.redis.flushdb()


@contextmanager
def _run(runtime: Runtime, directory: Path, seconds: float, tenants: int) -> Iterator[int]:  # noqa: ARG001
    stopped = threading.Event()
    with worker(runtime, directory, "--concurrency", "1", pipelines="benchmarks.capacity_handlers") as main_process:
        feeding = threading.Thread(target=_feed, args=(runtime, stopped), daemon=True)
        feeding.start()
        try:
            wait_until(lambda: list(runtime.tenants_of(INVOICES).every_count(INVOICES)), "the first run", 30)
            (child,) = process(main_process).children()
            yield child.pid
        finally:
            stopped.set()
            feeding.join()
    runtime.redis.flushdb()


def _feed(runtime: Runtime, stopped: threading.Event) -> None:
    """Let `TENANTS` tenants have a new record each, and their runs follow each other, until told to stop."""
    names = [f"tenant-{at}" for at in range(TENANTS)]
    text = (
        "INSERT INTO taskbridge.records (source, tenant, key, document) "
        "SELECT 'invoices', tenant, %(number)s, '{\"total\": \"74.25\"}' "
        "FROM unnest(%(names)s::text[]) tenant"
    )
    events = [(INVOICES, name, Spacing(delay=50)) for name in names]
    due, turn = Keys().due(INVOICES), 0
    while not stopped.is_set():
        turn += 1
        with runtime.engine.begin() as connection:
            connection.exec_driver_sql(text, {"number": str(turn), "names": names})
        runtime.gate.notify_many(events)
        wait_until(lambda: runtime.redis.zcard(due) < TENANTS // 4, "the runs", 60)


@contextmanager
def _ticker(runtime: Runtime, directory: Path, seconds: float, tenants: int) -> Iterator[int]:
    # It serves no queue: what it does is what its ticker does.
    with worker(runtime, directory, "-P", "solo", "-Q", "taskbridge.nobody") as pid:
        wait_until(lambda: runtime.redis.exists(runtime.keys.tailing(ALERTS)), "the worker's ticker starts", 60)
        due = let_wait_evenly(runtime, tenants, 2 * seconds + 2)
        first = min(due.values())
        wait_until(
            lambda: _now_ms(runtime) > first, "the first tenant is due", HEAD_START_MS / 1000 + IDLE_SECONDS + 10
        )
        yield pid
    runtime.redis.flushdb()


def _now_ms(runtime: Runtime) -> int:
    now, microseconds = runtime.redis.time()
    return int(now) * 1000 + int(microseconds) // 1000


PATHS: Final = (
    HotPath("notify", "A producer whose events are all absorbed", _notify),
    HotPath("run", "The pool process of a worker, through short runs of one record each", _run),
    HotPath("ticker", "The main process of a worker while tenants come due", _ticker),
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--only", multiple=True, type=click.Choice([one.name for one in PATHS]), help="This one; repeatable.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=10.0, show_default=True, help="Span of a recording.")
@click.option("--tenants", type=click.IntRange(2, 100_000), default=10_000, show_default=True, help="That come due.")
@click.option(
    "--figures",
    "store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where profiles.json is written: the shares of functions and packages.",
)
@click.option("--pages", multiple=True, type=click.Path(path_type=Path, exists=True), help="Pages to refresh from it.")
def main(
    directory: Path, only: Sequence[str], seconds: float, tenants: int, store: Path | None, pages: Sequence[Path]
) -> None:
    """Record flame graphs of the three hot paths into DIRECTORY, as SVG, and the samples that they were drawn from.

    Needs py-spy, Linux, and the right to trace other processes.
    """
    try:
        program = _py_spy()
        directory.mkdir(parents=True, exist_ok=True)
        store = directory if store is None else store
        found = figures.read(store / PROFILES)
        for one in PATHS:
            if not only or one.name in only:
                click.echo(f"{one.name}: {one.text.lower()}", err=True)
                found[one.key] = _record(program, one, directory, seconds, tenants)
                figures.write(store / PROFILES, found, [each.key for each in PATHS])
        page.refresh(pages, {**figures.read(store / FILE), **found})
    except TaskBridgeError as error:
        raise click.ClickException(str(error)) from None


def _record(program: str, one: HotPath, directory: Path, seconds: float, tenants: int) -> Figures:
    raw = directory / f"{one.name}.raw"
    with stage() as (runtime, logs), one.going(runtime, logs, seconds, tenants) as pid:
        for kind, file in (("raw", raw), ("flamegraph", raw.with_suffix(".svg"))):
            _sample(program, pid, seconds, kind, file)
    profile = read_raw(raw.read_text(encoding="utf-8").splitlines())
    return Figures(
        one.text,
        f"{one.text}, sampled {RATE} times a second for {seconds:g} s.",
        datetime.now(UTC).date().isoformat(),
        machine(),
        versions(),
        _report(one, profile, seconds, tenants),
    )


def _report(one: HotPath, profile: Profile, seconds: float, tenants: int) -> Report:
    note = f"{profile.samples:,} samples; those in which the thread waited are left out."
    return Report(
        {"seconds": seconds, "tenants": tenants},
        [by_package(one.text, profile, note), by_function(one.text, profile, MOST_FUNCTIONS, note)],
    )


def _sample(program: str, pid: int, seconds: float, kind: str, file: Path) -> None:
    # Stopping the process for each sample wakes threads that sleep, and they would count as working.
    options = (
        "--pid",
        str(pid),
        "--nonblocking",
        "--duration",
        f"{seconds:.0f}",
        "--rate",
        str(RATE),
        "--format",
        kind,
    )
    # The picture's title is this command line: it names the program and the file without their folders.
    done = subprocess.run(
        ["py-spy", "record", *options, "--output", file.name],  # noqa: S607 - `executable` has the whole path
        executable=program,
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Unavailable(
            f"py-spy cannot record process {pid}: {said[-1] if said else 'it does not say why'}. Run this as root, or "
            "allow tracing with `sysctl kernel.yama.ptrace_scope=0`"
        )


def _py_spy() -> str:
    found = shutil.which("py-spy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if found is None or sys.platform != "linux":
        raise ConfigurationError("py-spy records the flame graphs, on Linux: run `make .venv/.ready`")
    return found


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.flames")
