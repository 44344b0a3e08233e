"""Start and stop both servers of a data directory, and let other processes find them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from taskbridge.embedded import lock
from taskbridge.embedded.files import write_private
from taskbridge.embedded.launch import listen
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer
from taskbridge.errors import ConfigurationError, Unavailable


@dataclass(frozen=True)
class Servers:
    """The URLs of both servers. They contain passwords, so the `repr` leaves them out."""

    postgres_url: str = field(repr=False)
    redis_url: str = field(repr=False)


@contextmanager
def held(data_dir: Path) -> Iterator[Path]:
    """Create the directory if it is missing and lock it during the block; yield its absolute path.

    Raises:
        AlreadyRunning: another process has locked the directory.
        ConfigurationError: the directory cannot be used.
    """
    with ExitStack() as stack:
        with _usable(data_dir):
            data_dir = data_dir.resolve()
            data_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.hold(data_dir / "lock", data_dir))
            # A killed process has left it.
            (data_dir / "servers.json").unlink(missing_ok=True)
        yield data_dir


@contextmanager
def serve(data_dir: Path, *, durable: bool = True) -> Iterator[Servers]:
    """Run PostgreSQL and Redis for `data_dir` during the block, and stop both at its end.

    The directory is created if it is missing. It keeps the data of Postgres, but not those of Redis. During the block,
    `running(data_dir)` finds the servers from other processes. The servers also stop if this process is killed.
    `durable=False` makes tests faster, but a power failure may lose data.

    Raises: as `held`; Unavailable: a server is not installed or does not start.
    """
    owner = os.getpid()
    with held(data_dir) as directory, ExitStack() as stack:
        noted = directory / "servers.json"
        with _usable(data_dir):
            servers = _start(stack, directory, durable=durable)
            write_private(noted, json.dumps(asdict(servers)) + "\n")
        try:
            yield servers
        finally:
            if owner == os.getpid():
                noted.unlink(missing_ok=True)


@contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {data_dir} cannot be used ({error}): choose a writable one with --data-dir"
        ) from error


def running(data_dir: Path) -> Servers | None:
    """Return the servers that a process runs for `data_dir` now, or None. This creates and changes nothing.

    Servers that a killed process left behind do not count, because nobody holds the lock.

    Raises:
        Unavailable: the servers belong to another user.
    """
    try:
        if not lock.is_held(data_dir / "lock"):
            return None
        return Servers(**json.loads((data_dir / "servers.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Unavailable(
            f"the servers of {data_dir} belong to another user: run the command as that user ({error})"
        ) from error


def _start(stack: ExitStack, data_dir: Path, *, durable: bool) -> Servers:
    redis, postgres = RedisServer(data_dir), Postgres(data_dir, durable=durable)
    # A copy of the data directory may have a link to the same cluster.
    stack.enter_context(lock.hold(postgres.lock, data_dir))
    redis.prepare()
    postgres.prepare()
    postgres_port, _ = stack.enter_context(listen(postgres))
    redis_port, _ = stack.enter_context(listen(redis))
    return Servers(postgres.url(postgres_port), redis.url(redis_port))
