"""A Redis that packets are dropped on the way to: nothing is refused, and nothing is answered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

__all__ = ["BlackHole", "nobody_accepts"]


@contextmanager
def nobody_accepts() -> Iterator[str]:
    """The URL of a server to which no connection can be made, nor is one refused: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listener.getsockname())
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        finally:
            for one in waiting:
                one.close()


class BlackHole:
    """An address before a server that passes on what comes, until it is `open`: from then on all is swallowed.

    `lose_connections` swallows what the present connections carry, and passes new ones. Answers are passed on
    `answers_after` seconds later. `listener`: a socket that listens at an address of its own.
    """

    def __init__(self, url: str, *, answers_after: float = 0.0, listener: socket.socket | None = None) -> None:
        self._answers_after = answers_after
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        user, _, _ = parts.netloc.rpartition("@")
        place = f"{user}@127.0.0.1" if user else "127.0.0.1"
        self.url = urlunsplit(parts._replace(netloc=f"{place}:{self._listener.getsockname()[1]}"))
        self.open = threading.Event()
        self._sockets = [self._listener]
        self._lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink, seconds in ((near, far, 0.0), (far, near, self._answers_after)):
                    route = (source, sink, seconds, self._lost)
                    threading.Thread(target=self._carry, args=route, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, seconds: float, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                time.sleep(seconds)
                if not self.open.is_set() and not lost.is_set():
                    sink.sendall(data)

    def lose_connections(self) -> None:
        """Lose the present connections without a word: their ends are told nothing, and new ones are passed on."""
        lost, self._lost = self._lost, threading.Event()
        lost.set()

    def close(self) -> None:
        for one in self._sockets:
            one.close()
