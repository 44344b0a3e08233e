"""Both servers of a data directory: started and stopped together, found by other processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from taskbridge.embedded import lock
from taskbridge.embedded.account import server_account
from taskbridge.embedded.files import write_private
from taskbridge.embedded.launch import listen
from taskbridge.embedded.place import choose_place, noted_place
from taskbridge.embedded.postgres import Postgres
from taskbridge.embedded.redis_server import RedisServer
from taskbridge.errors import ConfigurationError, Unavailable


@dataclass(frozen=True)
class Servers:
    """Where both servers listen. The URLs hold their passwords, so neither is part of the `repr`."""

    postgres_url: str = field(repr=False)
    redis_url: str = field(repr=False)


@contextmanager
def held(data_dir: Path) -> Iterator[Path]:
    """Make the directory if it is missing and hold it while the `with` block lasts; yield its whole path.

    Raises:
        AlreadyRunning: another process holds the directory.
        ConfigurationError: the directory cannot be used.
    """
    with ExitStack() as stack:
        with _usable(data_dir):
            data_dir = data_dir.resolve()
            data_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.hold(data_dir / "lock", data_dir))
        yield data_dir


@contextmanager
def serve(data_dir: Path, *, durable: bool = True) -> Iterator[Servers]:
    """Run PostgreSQL and Redis for `data_dir` while the `with` block lasts, and stop both at its end.

    The directory is made if it is missing. Postgres's data stay in it; those of Redis do not. Until the end,
    `running(data_dir)` finds the servers from other processes. They also end when this process is killed.
    `durable=False` trades safety after a power cut for speed: for tests.

    Raises: as `held`; Unavailable: a server is not installed or does not start.
    """
    owner = os.getpid()
    with held(data_dir) as directory, ExitStack() as stack:
        noted = directory / "servers.json"
        with _usable(data_dir):
            noted.unlink(missing_ok=True)
            servers = _start(stack, directory, durable=durable)
            write_private(noted, json.dumps({"pid": owner, **asdict(servers)}) + "\n")
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
            f"the data directory {data_dir} cannot be used ({error}): choose one that is writable with --data-dir"
        ) from error


def running(data_dir: Path) -> Servers | None:
    """Return the servers that a process serves from `data_dir` now, or None. Nothing is created or changed.

    What a killed process left does not count: nobody holds its lock.

    Raises:
        Unavailable: the servers belong to another user.
    """
    try:
        pid = lock.holder(data_dir / "lock")
        if pid is None:
            return None
        document = json.loads((data_dir / "servers.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Unavailable(
            f"the servers of {data_dir} belong to another user: run the command as that user ({error})"
        ) from error
    if document.pop("pid") != pid:
        return None
    return Servers(**document)


def _start(stack: ExitStack, data_dir: Path, *, durable: bool) -> Servers:
    account = server_account(noted_place(data_dir) / "postgres")
    place = choose_place(data_dir, account)
    if place != data_dir:  # a copied data directory points to the same place
        stack.enter_context(lock.hold(place / "lock", data_dir))
    redis = RedisServer(data_dir, place, account)
    postgres = Postgres(data_dir, place, account, durable=durable)
    redis.prepare()
    postgres.prepare()
    postgres_port, _ = stack.enter_context(listen(postgres))
    redis_port, _ = stack.enter_context(listen(redis))
    return Servers(postgres.url(postgres_port), redis.url(redis_port))
