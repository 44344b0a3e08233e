"""Poolers such as PgBouncer, as far as a test needs them."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from tests.transactions.black_hole import BlackHole

__all__ = ["ExhaustedPooler", "SettingPooler"]


class ExhaustedPooler(BlackHole):
    """An address before Postgres that lets every client log in, and answers no statement."""

    def _carry(self, source: socket.socket, sink: socket.socket, seconds: float, lost: threading.Event) -> None:  # noqa: ARG002 - none come back
        with suppress(OSError):
            # A message begins with its kind: Query or Parse.
            while (data := source.recv(65_536)) and data[:1] not in (b"Q", b"P"):
                sink.sendall(data)
            while source.recv(65_536):
                pass


_ENCRYPTION = (80877103, 80877104)
"""What a client sends first to ask for TLS or GSSAPI."""


class SettingPooler(BlackHole):
    """An address before Postgres that logs in without the client's start parameters, and applies them by SET."""

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._serve, args=(near, far), daemon=True).start()

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while (start := _body(near)) and struct.unpack("!I", start[:4])[0] in _ENCRYPTION:
                near.sendall(b"N")
            texts = start[4:].rstrip(b"\0").split(b"\0")
            given = dict(zip(texts[::2], texts[1::2], strict=True))
            whose = b"".join(b"%s\0%s\0" % (name, given.pop(name)) for name in (b"user", b"database"))
            far.sendall(_message(b"", start[:4] + whose + b"\0"))
            threading.Thread(target=self._carry, args=(near, far, 0.0, self._lost), daemon=True).start()
            while (kind := _exactly(far, 1)) != b"Z":
                near.sendall(_message(kind, _body(far)))
            _body(far)
            sets = b"; ".join(b"SET %s = '%s'" % pair for pair in given.items())
            far.sendall(_message(b"Q", sets + b"\0"))
            kind = b""
            while kind != b"Z":
                kind, body = _exactly(far, 1), _body(far)
                if kind != b"C":
                    near.sendall(_message(kind, body))
            self._carry(far, near, 0.0, self._lost)


def _exactly(source: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        if not (more := source.recv(length - len(found))):
            raise EOFError
        found += more
    return found


def _body(source: socket.socket) -> bytes:
    return _exactly(source, struct.unpack("!I", _exactly(source, 4))[0] - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
