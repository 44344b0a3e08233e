"""Where a benchmark plays: embedded servers and a worker, which live as long as the measurement."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taskbridge import store
from taskbridge.app import make_app
from taskbridge.embedded import Guarded, serve
from taskbridge.runtime import Runtime, runtime
from taskbridge.settings import Settings

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
            app, _ = make_app(chosen)
            here = runtime(app, chosen)
            store.migrate(here.engine)
            yield here, directory


@contextmanager
def worker(here: Runtime, log: Path, pipelines: str, *options: str, **environment: str) -> Iterator[None]:
    """Run a Celery worker that loads the module `pipelines`, with `options` of its command."""
    surroundings = {
        **os.environ,
        "TASKBRIDGE_POSTGRES_URL": here.settings.postgres_url,
        "TASKBRIDGE_REDIS_URL": here.settings.redis_url,
        "TASKBRIDGE_RUN_BUDGET": str(here.settings.run_budget),
        "TASKBRIDGE_PIPELINES": pipelines,
        **environment,
    }
    command = [sys.executable, "-m", "celery", "-A", "taskbridge", "worker", "--without-mingle", "--without-gossip"]
    with log.open("wb") as output, Guarded([*command, *options], output=output, environment=surroundings):
        yield


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
