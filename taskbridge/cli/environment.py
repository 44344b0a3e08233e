"""Which servers a command works with.

Those of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL; if neither is set, those that a `taskbridge up` serves in the
data directory now. If there are none either a command ends with an error: only `taskbridge up` makes a database, so
nobody who forgot the variables works on another one than they think.

The choice goes into the environment, so that `Settings.read`, Celery and child processes see it: make it before the
first call of `taskbridge.process.runtime.runtime_of`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console
from taskbridge.common.texts import storable
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.settings import Settings

if TYPE_CHECKING:
    from celery import Celery

    from taskbridge.embedded import Servers
    from taskbridge.observe.context import Context
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.process.runtime import Runtime

__all__ = [
    "POSTGRES",
    "REDIS",
    "checked_runtime",
    "context",
    "existing",
    "kept",
    "light_runtime",
    "note",
    "runtime",
    "served",
    "start",
    "system_user",
    "tell_left_out",
]

POSTGRES: Final = "TASKBRIDGE_POSTGRES_URL"
REDIS: Final = "TASKBRIDGE_REDIS_URL"


def runtime(app: Celery | None = None) -> Runtime:
    """Return this process's runtime, of TaskBridge's own app or of another; the servers must be chosen by then."""
    from taskbridge.integration.app import app as own_app
    from taskbridge.process.runtime import runtime_of

    found = runtime_of(app or own_app)
    # A person waits, and no request.
    found.is_interactive = True
    return found


def light_runtime(data_dir: Path) -> LightRuntime:
    """Choose the servers and return what a command needs that neither notifies nor runs; raises as `existing`."""
    from taskbridge.process.light_runtime import LightRuntime

    existing(data_dir)
    found = LightRuntime(Settings.read())
    # The process may outlive the command, as one of Django's tests does.
    if command := click.get_current_context(silent=True):
        command.call_on_close(found.close_sessions)
    return found


def context(data_dir: Path, *, redis: bool = True) -> Context:
    """Choose the servers, see that they can be used, and return what answers are made from.

    Without `redis` that is left alone: the answer is in Postgres.

    Raises: as `existing`; TaskBridgeError: a server cannot be used.
    """
    from taskbridge.observe.context import Context

    found = light_runtime(data_dir)
    found.check(redis=redis)
    return Context.of(found)


def checked_runtime(data_dir: Path) -> Runtime:
    """Choose the servers, see that they can be used, and return the runtime; raises as `context`."""
    existing(data_dir)
    found = runtime()
    found.check()
    return found


def start(tenants: Iterable[str], pipeline: str) -> None:
    """Start the runners of tenants that may run again.

    Raises:
        Unavailable: Redis is unavailable; the message says that nothing is lost.
    """
    from taskbridge.producer import notify

    try:
        notify.start(runtime().app, sorted(tenants), pipeline)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. The change is stored: a worker finds it within TASKBRIDGE_BASE_INTERVAL"
        ) from error


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


def tell_left_out(context: Context) -> None:
    """Say on stderr which pipelines an answer about all leaves out, because they are not declared here."""
    from taskbridge.observe.health import left_out

    others = left_out(context)
    if others is not None:
        console.tell(f"{others.sentence}; {console.spoken(others.remedy)}")


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

    Raises: as `existing`, also if the data directory holds nothing; as `taskbridge.embedded.serve`.
    """
    if not (data_dir / "lock").exists() or _found(data_dir):
        existing(data_dir)
        yield
        return
    from taskbridge import embedded

    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield


@contextmanager
def served(data_dir: Path) -> Iterator[bool]:
    """Use the configured servers, or else serve the data directory for the `with` block; either way it is locked.

    Yields whether the servers are ours.

    Raises: as `existing` and `taskbridge.embedded.serve`; AlreadyRunning if another process holds the directory.
    """
    from taskbridge import embedded

    if _configured():
        with embedded.held(data_dir):
            yield False
        return
    with embedded.serve(data_dir) as servers:
        _choose(servers)
        yield True


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
