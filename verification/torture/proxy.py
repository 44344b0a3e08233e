"""A TCP proxy in front of Redis that can fall silent on its connections, or lose the replies of scripts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from taskbridge.embedded.launch import HOST

__all__ = ["Proxy"]

_CALL: Final = b"EVALSHA"
_CHUNK: Final = 65_536


class Proxy:
    """Forwards connections to a port of this machine, until `close`; each has two threads."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server((HOST, 0))
        self._open: list[_Connection] = []
        self._texts: Sequence[bytes] = ()
        self._to_lose = 0
        self._changing = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port to connect to."""
        port: int = self._listener.getsockname()[1]
        return port

    def fall_silent(self) -> None:
        """Forward nothing on the connections that are open now, and close none; later ones are not affected."""
        with self._changing:
            for one in self._open:
                one.is_silent = True

    @contextmanager
    def losing_replies(self, count: int, texts: Sequence[str]) -> Iterator[None]:
        """Execute the next `count` script calls that name one of these texts, and close instead of answering."""
        with self._changing:
            self._texts, self._to_lose = [text.encode() for text in texts], count
        try:
            yield
        finally:
            with self._changing:
                self._to_lose = 0

    @property
    def left_to_lose(self) -> int:
        """How many of the replies have not been lost yet."""
        return self._to_lose

    def close(self) -> None:
        self._listener.close()
        for one in [*self._open]:
            one.close()

    def loses(self, request: bytes) -> bool:
        """Whether the reply of this request is to be lost; it counts as lost then."""
        if not self._to_lose or _CALL not in request:
            return False
        with self._changing:
            found = self._to_lose > 0 and any(text in request for text in self._texts)
            self._to_lose -= found
            return found

    def forget(self, one: _Connection) -> None:
        with self._changing, suppress(ValueError):
            self._open.remove(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._upstream), timeout=5.0)
            except OSError:  # it is away
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, client, server)
            with self._changing:
                self._open.append(connection)
            connection.start()


class _Connection:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.is_silent = False
        self._proxy, self._client, self._server = proxy, client, server
        self._loses = False

    def start(self) -> None:
        for pump in (self._requests, self._replies):
            threading.Thread(target=pump, daemon=True).start()

    def close(self) -> None:
        self._proxy.forget(self)
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _requests(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_CHUNK):
                if not self.is_silent:
                    self._loses = self._loses or self._proxy.loses(data)
                    self._server.sendall(data)
        self.close()

    def _replies(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_CHUNK):
                if self._loses:
                    break
                if not self.is_silent:
                    self._client.sendall(data)
            else:
                if self.is_silent:
                    return  # the client must not see that the server has closed
        self.close()
