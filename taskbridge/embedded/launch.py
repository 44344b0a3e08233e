"""Start a server on a free port and wait until it answers; stop one that an earlier process left."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import psutil

from taskbridge.embedded.files import open_log, tail
from taskbridge.embedded.guarded import Guarded
from taskbridge.errors import Unavailable

__all__ = ["HOST", "Server", "free_port", "listen", "server_environment", "stop_leftovers"]

HOST: Final = "127.0.0.1"
LEFTOVER_SECONDS = 15.0
_ATTEMPTS: Final = 5
_POLL_SECONDS: Final = 0.01
_PORT_TAKEN: Final = re.compile(r"Address (already )?in use")


class Server(Protocol):
    """What `listen` needs to know of a server."""

    name: str
    log: Path
    start_seconds: float

    def start(self, port: int, output: BinaryIO) -> Guarded:
        """Start it on `port`, with its output to `output`."""

    def answers(self, port: int, pid: int) -> bool:
        """Say whether the process `pid` itself answers on `port`."""


@contextmanager
def listen(server: Server) -> Iterator[tuple[int, Guarded]]:
    """Run `server` on a free port of 127.0.0.1; yield port and process. It answers by then, and ends with the block.

    Another process can take the port before the server does; then another port is tried.

    Raises:
        Unavailable: it does not start, or does not answer within its `start_seconds`; with the end of its log.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        port = free_port()
        with open_log(server.log) as output:
            log_start = output.seek(0, os.SEEK_END)
            guarded = server.start(port, output)
        with guarded:
            deadline = time.monotonic() + server.start_seconds
            while guarded.poll() is None and time.monotonic() < deadline:
                if server.answers(port, guarded.pid):
                    yield port, guarded
                    return
                time.sleep(_POLL_SECONDS)
        said = tail(server.log, log_start)
        if not attempts_left or not _PORT_TAKEN.search(said):
            raise Unavailable(f"{server.name} did not start; the end of its log, {server.log}:\n{said}")


def server_environment() -> dict[str, str]:
    """Return the environment of the servers.

    It is short: PG* variables would change what PostgreSQL does, and the user's secrets are not theirs to see.
    """
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **inherited}


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def stop_leftovers(programs: tuple[str, ...], path: Path) -> None:
    """Stop the processes of `programs` that work in the directory `path` or were started with `path`.

    Every process of PostgreSQL works in its cluster. After a crash one of them may go on for hours with its query, and
    until it ends no server starts on the cluster.

    Raises:
        Unavailable: one does not end.
    """
    left = [one for one in psutil.process_iter() if _serves(one, programs, path)]
    for number in (signal.SIGINT, signal.SIGKILL):
        for one in left:
            try:
                one.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        _, left = psutil.wait_procs(left, LEFTOVER_SECONDS)
    if left:
        raise Unavailable(f"process {left[0].pid} still serves {path} and does not end: restart the machine")


def _serves(process: psutil.Process, programs: tuple[str, ...], path: Path) -> bool:
    try:
        if process.name() not in programs:
            return False
        return process.cwd() == str(path) or str(path) in process.cmdline()
    except psutil.Error:  # it has ended, or is another user's
        return False
