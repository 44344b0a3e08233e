"""Which servers a command uses.

A command uses the servers of TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL. If neither is set, it uses those that
`taskbridge up` is running for the data directory; if there are none, it fails. Only `taskbridge up` creates a database,
so forgetting the variables never makes a command work on a database other than the intended one.

The choice is stored in the environment, where `Settings.read`, Celery and child processes find it. Make it before the
first call of `taskbridge.process.runtime.runtime_of`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console
from taskbridge.common.texts import spoken, storable
from taskbridge.errors import ConfigurationError, MissingExtra, TaskBridgeError, Unavailable
from taskbridge.settings import Settings, redis_variable

if TYPE_CHECKING:
    from celery import Celery
    from sqlalchemy import Engine

    from taskbridge.embedded import Servers
    from taskbridge.observe.context import Context
    from taskbridge.process.runtime import Runtime

__all__ = [
    "checked_runtime",
    "context",
    "data_dir",
    "engine",
    "existing",
    "kept",
    "note",
    "runtime",
    "runtime_without_app",
    "served",
    "start",
    "system_user",
    "tell_left_out",
]

POSTGRES: Final = "TASKBRIDGE_POSTGRES_URL"
REDIS: Final = "TASKBRIDGE_REDIS_URL"


def data_dir() -> Path:
    """Return the value of the option `--data-dir` of the current command."""
    directory: Path = click.get_current_context().meta["data_dir"]
    return directory


def runtime(app: Celery | None = None) -> Runtime:
    """Return the runtime of TaskBridge's own app or of another one; choose the servers first."""
    from taskbridge.integration.app import app as own_app
    from taskbridge.process.runtime import runtime_of

    found = runtime_of(app or own_app)
    # A person is waiting, not a request.
    found.is_interactive = True
    return found


def runtime_without_app() -> Runtime:
    """Choose the servers and return a runtime that can neither notify nor run; raises as `existing`."""
    from taskbridge.process.runtime import Runtime

    existing()
    found = Runtime(Settings.read())
    # The process may outlive the command, as in Django's tests.
    click.get_current_context().call_on_close(found.close_sessions)
    return found


def context(*, redis: bool = True) -> Context:
    """Choose and check the servers, and return what answers are made from; `redis=False` does not use Redis.

    The context knows which of several Redis servers do not answer.

    Raises: as `existing`; TaskBridgeError: a server cannot be used.
    """
    from taskbridge.observe.context import Context

    found = runtime_without_app()
    found.check(redis=False)
    return Context.of(found, found.check_gates() if redis else {})


def checked_runtime(pipeline: str | None = None) -> Runtime:
    """Choose and check the servers, and return the runtime: that of a pipeline's Redis; without one, no Redis is used.

    Raises: as `context`.
    """
    existing()
    found = runtime() if pipeline is None else runtime().on(pipeline)
    found.check(redis=pipeline is not None)
    return found


def engine() -> Engine:
    """Choose the servers, check only the database, and return it; raises as `context`."""
    from taskbridge import store

    existing()
    found = runtime().engine
    store.check_version(found)
    store.check_schema(found)
    store.check_cluster(found)
    return found


def start(tenants: Iterable[str], pipeline: str) -> None:
    """Start the runners of tenants that can run again. If Redis is unavailable, a worker will notice the change."""
    from taskbridge.producer import notify

    try:
        notify.start(runtime().app, sorted(tenants), pipeline)
    except Unavailable:
        console.tell("The change has been saved; a worker will notice it within TASKBRIDGE_BASE_INTERVAL.")
        raise


def note(runtime: Runtime, action: str, **what: Any) -> None:
    """Record what the user is about to do in the audit table."""
    from taskbridge.store import audit

    audit(runtime.engine, system_user(), action, **what)


def system_user() -> str:
    """Return the operating system user who runs the command."""
    import pwd

    try:
        # Not `getpass.getuser`, which trusts environment variables.
        return storable(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        # In a container, the user may have no name.
        return f"uid {os.getuid()}"


def tell_left_out(context: Context) -> None:
    """Report on stderr which pipelines are left out because they are not declared here."""
    from taskbridge.observe.health import left_out

    others = left_out(context)
    if others is not None:
        console.tell(f"{others.sentence}; {spoken(others.remedy)}")


def existing() -> None:
    """Choose servers that are already running.

    Raises:
        ConfigurationError: only one of the two variables is set, or one cannot be parsed.
        Unavailable: there are no servers.
    """
    if not _found():
        raise Unavailable(
            f"{POSTGRES} and {REDIS} are not set, and no `taskbridge up` is running for {data_dir()}: "
            "set both, or start `taskbridge up` (--data-dir chooses another directory)"
        )


@contextmanager
def kept() -> Iterator[None]:
    """Choose as `existing`, or else start the servers of an earlier `taskbridge up` during the block.

    This is for what must be done before `taskbridge up` can start again.

    Raises: as `existing`, even if the data directory is empty; as `taskbridge.embedded.serve`.
    """
    if (data_dir() / "lock").exists() and not _found():
        with served():
            yield
    else:
        existing()
        yield


@contextmanager
def served() -> Iterator[bool]:
    """Use the configured servers, or else start embedded ones during the block; yield whether they are embedded.

    Either way the data directory is locked.

    Raises: as `existing` and `taskbridge.embedded.serve`; AlreadyRunning if another process uses the directory.
    """
    from taskbridge import embedded

    if _configured():
        with embedded.held(data_dir()):
            yield False
        return
    with embedded.serve(data_dir()) as servers:
        _choose(servers)
        yield True


def _found() -> bool:
    if _configured():
        return True
    try:
        from taskbridge import embedded
    except MissingExtra:
        return False
    servers = embedded.running(data_dir())
    if servers is not None:
        _choose(servers)
    return servers is not None


def _configured() -> bool:
    settings = Settings.read()
    if bool(settings.postgres_url) != bool(settings.redis_url):
        there, missing = (POSTGRES, REDIS) if settings.postgres_url else (REDIS, POSTGRES)
        raise ConfigurationError(
            f"{spoken(there)} is set but {missing} is not", f"set {missing}, or neither for the embedded servers"
        )
    return bool(settings.postgres_url)


def _choose(servers: Servers) -> None:
    from taskbridge.declaring.pipeline import DECLARED

    os.environ[POSTGRES] = servers.postgres_url
    os.environ[REDIS] = servers.redis_url
    # There is one embedded Redis. An error in a pipeline module is reported where it is needed.
    with suppress(TaskBridgeError):
        DECLARED.load(Settings.read().pipelines)
    for name in DECLARED.names():
        os.environ.setdefault(redis_variable(DECLARED[name].redis), servers.redis_url)
