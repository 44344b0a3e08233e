"""Which servers a command works with.

Those of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL; where neither is set, those that a `taskbridge up` serves in
the data directory now. Where there are none either a command ends with an error: only `taskbridge up` makes a database,
so nobody who forgot the variables works on another one than they think.

The choice goes into the environment, so that `Settings.read`, Celery and child processes see it: make it before the
first call of `taskbridge.process.runtime.runtime_of`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from taskbridge.common.texts import storable
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.settings import Settings

if TYPE_CHECKING:
    from taskbridge.embedded import Servers
    from taskbridge.observing.context import Context
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.process.runtime import Runtime
    from taskbridge.store import Paused

__all__ = [
    "POSTGRES",
    "REDIS",
    "context_of",
    "existing",
    "kept",
    "light_runtime",
    "note",
    "ready",
    "resume",
    "runtime",
    "served",
    "session",
    "start",
    "system_user",
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

    found = LightRuntime(Settings.read())
    # The process may outlive the command, as one of Django's tests does.
    if context := click.get_current_context(silent=True):
        context.call_on_close(found.close_sessions)
    return found


def context_of(runtime: LightRuntime) -> Context:
    """Return what the answers about the pipelines of a runtime are made from."""
    from taskbridge.observing.context import Context

    return Context.of(runtime)


def start(tenants: Iterable[str], pipeline: str) -> None:
    """Start the runners of tenants that may run again.

    Raises:
        Unavailable: Redis is unavailable; the message says that nothing is lost.
    """
    from taskbridge.producing import notify

    try:
        notify.start(runtime().app, sorted(tenants), pipeline)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. The change is stored: a worker finds it within TASKBRIDGE_BASE_INTERVAL"
        ) from error


def resume(pending: Iterable[str], pipeline: str, tenant: str | None, left: Paused) -> None:
    """Start the tenants with `pending` records, and release what the pause holds of others.

    `tenant`: whose pause it was; None: the whole pipeline's. `left`: what is still paused.

    Raises: as `start`.
    """
    start(pending, pipeline)
    gate = runtime().gate
    held = [one for one in gate.paused(pipeline) if tenant in (None, one) and left.holding(one) is None]
    gate.expire(pipeline, held, early=True)


def note(runtime: LightRuntime, action: str, **what: Any) -> None:
    """Write what the user is about to do into the audit."""
    from taskbridge.store import Audit

    Audit(runtime.database).note(system_user(), action, **what)


def system_user() -> str:
    """Return the operating system's user who runs the command."""
    import pwd

    try:
        # Not `getpass.getuser`, which believes environment variables that anybody may set.
        return storable(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        # A container may have a user without a name.
        return f"uid {os.getuid()}"


def existing(data_dir: Path) -> None:
    """Choose among servers that run already.

    Raises:
        ConfigurationError: one of the two variables is set and the other is not, or one cannot be read.
        Unavailable: there are none.
    """
    if not _found(data_dir):
        raise Unavailable(
            f"{POSTGRES} and {REDIS} are not set, and no `taskbridge up` serves {data_dir}: set both, or start "
            "`taskbridge up` to try it (another directory is chosen with --data-dir)"
        )


@contextmanager
def kept(data_dir: Path) -> Iterator[None]:
    """Choose as `existing`, or start servers for the `with` block on what an earlier `taskbridge up` has left.

    For what has to be done before `taskbridge up` can start again.

    Raises: as `existing`, also where the data directory holds nothing; as `taskbridge.embedded.serve`.
    """
    if not (data_dir / "lock").exists() or _found(data_dir):
        existing(data_dir)
        yield
        return
    from taskbridge import embedded

    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield


def session(data_dir: Path, opened: Callable[[], R], *, redis: bool = True) -> R:
    """Choose the servers, see that they can be used, and return `opened()`.

    `opened` is `runtime`, or `light_runtime` where the command neither notifies nor runs. Without `redis` that is left
    alone: the command's answer is in Postgres.

    Raises: as `existing` and `ready`.
    """
    existing(data_dir)
    lent = opened()
    ready(lent, migrate=False, redis=redis)
    return lent


def ready(runtime: LightRuntime, *, migrate: bool, redis: bool = True) -> None:
    """See that everything can be used; with `migrate` the schema is brought up to date, else it must be.

    Without `redis` that is left alone.

    Raises:
        TaskBridgeError: it cannot; the message says what to do.
    """
    if migrate:
        from taskbridge import store

        store.check_version(runtime.engine)
        store.migrate(runtime.engine)
    runtime.check(redis=redis)


@contextmanager
def served(data_dir: Path) -> Iterator[bool]:
    """Use the configured servers, or else serve the data directory for the `with` block; either way it is locked.

    Yields whether the servers are ours.

    Raises: as `existing` and `taskbridge.embedded.serve`; AlreadyRunning where another process holds the directory.
    """
    if _configured():
        with _held(data_dir):
            yield False
        return
    from taskbridge import embedded

    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield True


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


def _found(data_dir: Path) -> bool:
    if _configured():
        return True
    from taskbridge import embedded

    servers = embedded.running(data_dir)
    if servers is not None:
        _choose(servers)
    return servers is not None


def _configured() -> bool:
    settings = Settings.read()
    if bool(settings.postgres_url) != bool(settings.redis_url):
        there, missing = (POSTGRES, REDIS) if settings.postgres_url else (REDIS, POSTGRES)
        raise ConfigurationError(f"{there} is set and {missing} is not: set both, or neither for the embedded servers")
    return bool(settings.postgres_url)


def _choose(servers: Servers) -> None:
    os.environ[POSTGRES] = servers.postgres_url
    os.environ[REDIS] = servers.redis_url
