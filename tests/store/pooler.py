"""A pooler such as PgBouncer whose sessions of Postgres are all in use."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.transactions.black_hole import BlackHole

__all__ = ["ExhaustedPooler"]


class ExhaustedPooler(BlackHole):
    """An address before Postgres that lets every client log in, and answers no statement."""

    def _carry(self, source: socket.socket, sink: socket.socket, seconds: float, lost: threading.Event) -> None:  # noqa: ARG002 - none come back
        with suppress(OSError):
            # A message begins with its kind: Query or Parse.
            while (data := source.recv(65_536)) and data[:1] not in (b"Q", b"P"):
                sink.sendall(data)
            while source.recv(65_536):
                pass
