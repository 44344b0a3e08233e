"""Which servers a command works with.

Those of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL; where neither is set, those that another process serves in
the data directory; where there are none either, embedded ones for the time of the command, if it makes sense alone.

The choice goes into the environment, so that `Settings.read`, Celery and child processes see it: make it before the
first call of `taskbridge.process.runtime.runtime_of`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.settings import Settings

if TYPE_CHECKING:
    from taskbridge.embedded import Servers
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.process.runtime import Runtime

__all__ = [
    "POSTGRES",
    "REDIS",
    "Origin",
    "enter",
    "existing",
    "light_runtime",
    "need_data",
    "ready",
    "runtime",
    "served",
    "session",
]

R = TypeVar("R", bound="LightRuntime")

POSTGRES: Final = "TASKBRIDGE_POSTGRES_URL"
REDIS: Final = "TASKBRIDGE_REDIS_URL"


def runtime() -> Runtime:
    """Return this process's runtime; the servers must be chosen by then."""
    from taskbridge.integration.app import app
    from taskbridge.process.runtime import runtime_of

    found = runtime_of(app)
    # A person waits, and no request.
    found.patient = True
    return found


def light_runtime() -> LightRuntime:
    """Return what a command needs that neither notifies nor runs."""
    from taskbridge.process.light_runtime import LightRuntime

    return LightRuntime(Settings.read())


class Origin(Enum):
    """Where the servers of a command come from."""

    CONFIGURED = "the environment"
    RUNNING = "another process that serves the data directory"
    OURS = "this process"


def existing(data_dir: Path) -> Origin:
    """Choose among servers that run already.

    Raises:
        ConfigurationError: one of the two variables is set and the other is not, or one cannot be read.
        Unavailable: there are none.
    """
    origin = _find(data_dir)
    if origin is None:
        raise Unavailable(
            f"no servers: start `taskbridge up` (it serves {data_dir}; another directory is chosen with --data-dir), "
            f"or set {POSTGRES} and {REDIS}"
        )
    return origin


@contextmanager
def enter(data_dir: Path) -> Iterator[Origin]:
    """Choose among servers that run already, and start embedded ones for the `with` block where there are none.

    Raises: as `existing` and `taskbridge.embedded.serve`.
    """
    origin = _find(data_dir)
    if origin is not None:
        yield origin
        return
    from taskbridge import embedded

    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield Origin.OURS


def need_data(data_dir: Path) -> None:
    """Refuse to look into a data directory that is not there, rather than make one.

    Raises:
        Unavailable: no servers are configured, and nothing was ever served in the directory.
    """
    if not _configured() and not (data_dir / "lock").exists():
        raise Unavailable(
            f"there is nothing in {data_dir} yet: start `taskbridge up`, choose another directory with --data-dir, or "
            f"set {POSTGRES} and {REDIS}"
        )


@contextmanager
def session(data_dir: Path, opened: Callable[[], R], *, makes: bool = False) -> Iterator[tuple[R, Origin]]:
    """Choose the servers for the `with` block, see that they can be used, and lend `opened()`.

    `opened` is `runtime`, or `light_runtime` where the command neither notifies nor runs.

    Servers of this process are brought up to date; others must be. With `makes` the data directory is made where there
    is none.

    Raises: as `need_data`, `enter` and `ready`.
    """
    if not makes:
        need_data(data_dir)
    with enter(data_dir) as origin:
        lent = opened()
        ready(lent, migrate=origin is Origin.OURS)
        yield lent, origin


def ready(runtime: LightRuntime, *, migrate: bool) -> None:
    """See that everything can be used; with `migrate` the schema is brought up to date, else it must be.

    Raises:
        TaskBridgeError: it cannot; the message says what to do.
    """
    if migrate:
        from taskbridge import store

        store.check_version(runtime.engine)
        store.migrate(runtime.engine)
    runtime.check()


@contextmanager
def served(data_dir: Path) -> Iterator[Origin]:
    """Use the configured servers, or else serve the data directory for the `with` block; either way it is locked.

    Raises: as `enter`; AlreadyRunning where another process holds the directory.
    """
    if _configured():
        with _held(data_dir):
            yield Origin.CONFIGURED
        return
    from taskbridge import embedded

    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield Origin.OURS


@contextmanager
def _held(data_dir: Path) -> Iterator[None]:
    """Hold the directory for the logs of workers that use other servers."""
    from taskbridge.embedded import lock

    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        stack = ExitStack()
        stack.enter_context(lock.hold(data_dir / "lock", data_dir))
    except OSError as error:
        raise ConfigurationError(f"the data directory {data_dir} cannot be used ({error}): choose another") from error
    with stack:
        yield


def _find(data_dir: Path) -> Origin | None:
    if _configured():
        return Origin.CONFIGURED
    from taskbridge import embedded

    servers = embedded.running(data_dir)
    if servers is None:
        return None
    _choose(servers)
    return Origin.RUNNING


def _configured() -> bool:
    settings = Settings.read()
    if bool(settings.postgres_url) != bool(settings.redis_url):
        there, missing = (POSTGRES, REDIS) if settings.postgres_url else (REDIS, POSTGRES)
        raise ConfigurationError(f"{there} is set and {missing} is not: set both, or neither for the embedded servers")
    return bool(settings.postgres_url)


def _choose(servers: Servers) -> None:
    os.environ[POSTGRES] = servers.postgres_url
    os.environ[REDIS] = servers.redis_url
