"""Start a server on a free port and wait until it answers."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from taskbridge.embedded.files import open_log, tail
from taskbridge.embedded.guarded import Guarded
from taskbridge.errors import Unavailable

HOST = "127.0.0.1"

_ATTEMPTS = 5
_POLL_SECONDS = 0.01
_PORT_TAKEN = re.compile(r"Address (already )?in use")


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
            if _answers_in_time(server, port, guarded):
                yield port, guarded
                return
        said = tail(server.log, log_start)
        if not attempts_left or not _PORT_TAKEN.search(said):
            raise Unavailable(f"{server.name} did not start; the end of its log, {server.log}:\n{said}")


def server_environment() -> dict[str, str]:
    """Return the environment of the servers and their guards.

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


def _answers_in_time(server: Server, port: int, guarded: Guarded) -> bool:
    deadline = time.monotonic() + server.start_seconds
    while guarded.poll() is None and time.monotonic() < deadline:
        if server.answers(port, guarded.pid):
            return True
        time.sleep(_POLL_SECONDS)
    return False
