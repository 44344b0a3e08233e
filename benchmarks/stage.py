"""Where a benchmark plays: embedded servers and a worker, which live as long as the measurement."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from taskbridge import store
from taskbridge.embedded import Guarded, serve
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.settings import Settings

ROOT: Final = Path(__file__).resolve().parent.parent
CONFIGURATION: Final = "benchmarks.celeryconfig"
HANDLERS: Final = "benchmarks.handlers"

__all__ = ["stage", "wait_until", "worker"]


@contextmanager
def stage(**settings: Any) -> Iterator[tuple[Runtime, Path]]:
    """Serve Postgres and Redis with the schema, and give a runtime with `settings` and a directory for logs."""
    with tempfile.TemporaryDirectory(prefix="taskbridge-") as name:
        directory = Path(name)
        # Postgres does not run as root; another user must be able to reach its data.
        directory.chmod(0o755)
        with serve(directory / "servers") as servers:
            chosen = Settings(postgres_url=servers.postgres_url, redis_url=servers.redis_url, **settings)
            runtime = runtime_of(make_app(chosen).app)
            store.migrate(runtime.engine)
            yield runtime, directory


@contextmanager
def worker(
    runtime: Runtime,
    directory: Path,
    *options: str,
    app: str = "taskbridge",
    pipelines: str = HANDLERS,
    **environment: str,
) -> Iterator[int]:
    """Run a Celery worker of `app` with `options` of its command, and give its process id once it takes messages.

    What it writes goes to a file in `directory`. A worker of ours loads the modules `pipelines`.
    """
    name = f"bench-{secrets.token_hex(4)}@localhost"
    chosen = {
        "CELERY_CONFIG_MODULE": CONFIGURATION,
        "TASKBRIDGE_PIPELINES": pipelines,
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    environment = {**os.environ, **runtime.settings.as_environment(), **chosen}
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", name, "--without-mingle", "--without-gossip"]
    with (
        (directory / f"{name}.log").open("wb") as output,
        Guarded([*command, *options], output=output, environment=environment) as process,
    ):
        wait_until(lambda: runtime.app.control.ping(destination=[name], timeout=0.2), "the worker is ready", 60)
        yield process.pid


def wait_until(holds: Callable[[], object], what: str, seconds: float) -> None:
    """Return once `holds` does.

    Raises:
        TimeoutError: it did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)
