"""Start a server on a free port and wait until it answers; stop servers that an earlier process left behind."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import psutil

from taskbridge.embedded.files import open_log, tail
from taskbridge.embedded.guarded import Guarded
from taskbridge.errors import Unavailable

__all__ = ["HOST", "Server", "free_port", "listen", "server_environment", "stop_leftovers"]

HOST: Final = "127.0.0.1"
LEFTOVER_SECONDS = 15.0
_POLL_SECONDS: Final = 0.01


class Server(Protocol):
    """What `listen` needs to know about a server."""

    name: str
    log: Path
    start_seconds: float

    def start(self, port: int, output: BinaryIO) -> Guarded:
        """Start it on `port`, writing its output to `output`."""

    def answers(self, port: int, pid: int) -> bool:
        """Whether the process `pid` itself answers on `port`."""


@contextmanager
def listen(server: Server) -> Iterator[tuple[int, Guarded]]:
    """Run `server` on a free port of 127.0.0.1 during the block; yield the port and the process once it answers.

    Raises:
        Unavailable: it did not start, or did not answer within its `start_seconds`; the message has the end of its log.
    """
    port = free_port()
    with open_log(server.log) as output:
        log_start = output.seek(0, os.SEEK_END)
        guarded = server.start(port, output)
    with guarded:
        deadline = time.monotonic() + server.start_seconds
        while not server.answers(port, guarded.pid):
            if guarded.poll() is not None or time.monotonic() > deadline:
                text = tail(server.log, log_start)
                raise Unavailable(f"{server.name} did not start; the end of its log, {server.log}:\n{text}")
            time.sleep(_POLL_SECONDS)
        yield port, guarded


def server_environment() -> dict[str, str]:
    """Return a minimal environment for the servers, without PG* variables and without the user's secrets."""
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **inherited}


def free_port() -> int:
    """Return an unused port of 127.0.0.1, below those that the system gives to connections, which could take it."""
    while True:
        port = 10_000 + secrets.randbelow(22_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


def stop_leftovers(programs: tuple[str, ...], path: Path) -> None:
    """Stop the processes of `programs` whose working directory is `path`, or that were started with `path`.

    Every PostgreSQL process has the cluster as its working directory. After a crash, one of them may keep executing its
    query for hours, and no server can start on the cluster until it ends.
    """
    left = [one for one in psutil.process_iter() if _serves(one, programs, path)]
    for number in (signal.SIGINT, signal.SIGKILL):
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        _, left = psutil.wait_procs(left, LEFTOVER_SECONDS)


def _serves(process: psutil.Process, programs: tuple[str, ...], path: Path) -> bool:
    try:
        if process.name() not in programs:
            return False
        return process.cwd() == str(path) or str(path) in process.cmdline()
    except psutil.Error:  # it has ended, or belongs to another user
        return False
