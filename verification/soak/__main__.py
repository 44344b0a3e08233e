"""Everything at once for hours, under a light load: does anything grow? `python -m verification.soak --minutes 60`."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from typing import Any, Final

from examples.whole_way.__main__ import SECRET, TASKBRIDGE
from examples.whole_way.downstream import serve_downstream
from taskbridge.embedded import Guarded, serve
from taskbridge.settings import Settings
from taskbridge.store import connect
from tests.deployment import ROOT, worker_command
from tests.waiting import wait_until
from verification.soak import report
from verification.soak.ledger import Ledger, Row
from verification.soak.load import CYCLE, TABLES, Load
from verification.soak.samples import Sampler

SAMPLE_EVERY: Final = 30.0
STARTS_WITHIN: Final = 60.0
QUIET_WITHIN: Final = 180.0
WORKERS: Final = {
    "steady": ("--pool", "prefork", "-c", "2"),
    "blue": ("--pool", "prefork", "-c", "2"),
    "green": ("--pool", "threads", "-c", "2"),
}
"""The first one runs from the beginning to the end, the others are restarted in each cycle."""
RETRY: Final = ("quarantine", "retry", "--pipeline", "payments", "--all")
DISCARD: Final = ("quarantine", "discard", "--pipeline", "orders", "--all", "--yes")
PRUNE: Final = ("prune", "--older-than", "3m", "--deliveries")


class Scene:
    """The processes of a soak, and what an operator does with them."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.restarts = 0
        self._running: dict[str, Guarded] = {}
        self._starts = 0

    def start(self, name: str, *command: str, ready: str) -> str:
        """Start a process, wait until its log matches `ready`, and return what matches."""
        self._starts += 1
        log = self.folder / f"{self._starts:04}-{name}.log"
        with log.open("wb") as output:
            self._running[name] = Guarded(
                command, stop=((SIGTERM, 60.0),), output=output, environment=dict(self.environment), directory=ROOT
            )
        found = wait_until(lambda: re.findall(ready, log.read_text()), f"{name} is ready: {log}", STARTS_WITHIN)
        return str(found[0])

    def start_worker(self, name: str) -> None:
        self.start(name, *worker_command("-l", "INFO", "-n", f"{name}@soak", *WORKERS[name]), ready=" ready[.]")

    def restart_worker(self, name: str) -> None:
        """Deploy: end a worker with SIGTERM, then start the next."""
        if status := self._running.pop(name).stop():
            raise RuntimeError(f"worker {name} ended with status {status}")
        self.start_worker(name)
        self.restarts += 1

    def run(self, *words: str) -> None:
        """Run a command of `taskbridge`."""
        done = subprocess.run(
            [*TASKBRIDGE, *words],
            env=self.environment,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for this program
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"taskbridge {' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")

    def operate(self, stop: threading.Event) -> None:
        """Prune, retry, discard and restart, all in every cycle."""
        steps: list[Callable[[], None]] = []
        for worker in ("blue", "green"):
            steps += [partial(self.run, *RETRY), partial(self.restart_worker, worker)]
            steps += [partial(self.run, *PRUNE), partial(self.run, *DISCARD)]
        due = time.monotonic()
        for step in cycle(steps):
            due += CYCLE / len(steps)
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            step()

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in dict(self._running).items()}

    def ended(self) -> list[str]:
        """Return the processes that ended by themselves."""
        return [name for name, process in dict(self._running).items() if process.poll() is not None]

    def close(self) -> None:
        for process in reversed(self._running.values()):
            process.stop()


def main() -> int:
    """Soak, then write the page; return 1 if a record was lost or doubled, or if something grows that should not."""
    parser = argparse.ArgumentParser(prog="python -m verification.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--samples", type=Path, default=Path(".soak.json"), help="where the samples go (.soak.json)")
    parser.add_argument(
        "--write", type=Path, metavar="DOCS", help="write explanation/soak.md and pictures/soak.svg there"
    )
    parser.add_argument("--render", type=Path, metavar="FILE", help="do not run: report the samples of FILE")
    options = parser.parse_args()
    if options.render:
        run = json.loads(options.render.read_text())
    else:
        with TemporaryDirectory(prefix="taskbridge-soak-") as name:
            run = soak(Path(name), options.minutes, options.samples)
    print(report.text(run))  # noqa: T201 - a program
    if options.write:
        report.write(run, options.write)
    return int(bool(report.problems(run)))


def soak(folder: Path, minutes: float, samples: Path) -> dict[str, Any]:
    """Run everything for so long, or until Ctrl-C; return what was found, which `samples` has at every moment."""
    folder.chmod(0o755)  # if root runs this, Postgres runs as another user
    notes = folder / "notes"
    notes.mkdir()
    run: dict[str, Any] = {**report.about(), "cycle_minutes": CYCLE / 60, "samples": []}
    with ExitStack() as stack:
        servers = stack.enter_context(serve(folder / "data"))
        downstream = stack.enter_context(serve_downstream())
        os.environ.update(
            {
                **Settings(postgres_url=servers.postgres_url, redis_url=servers.redis_url).as_environment(),
                "TASKBRIDGE_PIPELINES": "examples.whole_way.shop,verification.soak.pipelines",
                "SHOP_SECRET": SECRET,
                "DOWNSTREAM_URL": downstream.url,
                "DOWNSTREAM_SECRET": SECRET,
                "SOAK_NOTES": str(notes),
            }
        )
        scene = Scene(folder, os.environ)
        stack.callback(scene.close)
        scene.run("migrate")
        engine = connect(servers.postgres_url)
        stack.callback(engine.dispose)
        with engine.begin() as connection:
            for statement in TABLES:
                connection.exec_driver_sql(statement)
        scene.run("adopt", "soak_goods", "--tenant", "tenant", "--key", "id", "--source", "goods")
        for worker in WORKERS:
            scene.start_worker(worker)
        place = scene.start(
            "receiver",
            *(*TASKBRIDGE, "serve", "examples.whole_way.shop:app", "--port", "0"),
            ready=r"running on (http://\S+)",
        )
        ledger = Ledger(notes, downstream)
        load = Load(ledger, f"{place}/orders", downstream.url, servers.postgres_url, engine)
        sampler = Sampler(servers.postgres_url, servers.redis_url, ledger)
        stack.callback(sampler.close)

        def sample() -> None:
            run["samples"].append(sampler.sample(scene.pids()))
            run.update(restarts=scene.restarts, answers=dict(downstream.answers))
            samples.write_text(json.dumps(run))
            print(report.line(run["samples"][-1]), flush=True)  # noqa: T201 - a program

        stop = threading.Event()
        with ThreadPoolExecutor(2) as threads:
            parts = [threads.submit(load.run, stop), threads.submit(scene.operate, stop)]
            try:
                _sample_until(time.monotonic() + 60 * minutes, sample, parts, scene)
            except KeyboardInterrupt:
                print("ending; Ctrl-C again to stop at once", flush=True)  # noqa: T201 - a program
            finally:
                stop.set()
        for part in parts:
            part.result()
        run["missing"] = _settle(scene, ledger)
        sample()
    return run


def _sample_until(end: float, sample: Callable[[], None], parts: Sequence[Future[None]], scene: Scene) -> None:
    due = time.monotonic()
    while time.monotonic() < end:
        sample()
        due += SAMPLE_EVERY
        done, _ = wait(parts, min(due, end) - time.monotonic(), return_when=FIRST_COMPLETED)
        if done:
            return  # by an error, which its result raises
        if ended := scene.ended():
            raise RuntimeError(f"ended by themselves: {', '.join(ended)}")


def _settle(scene: Scene, ledger: Ledger) -> list[Row]:
    """Wait until all that fails on purpose is over and everything is delivered; return what is missing."""
    end = time.monotonic() + QUIET_WITHIN
    while True:
        scene.run(*RETRY)
        ledger.read()
        if not (missing := ledger.missing()) or time.monotonic() > end:
            return missing
        time.sleep(5)


if __name__ == "__main__":
    sys.exit(main())
