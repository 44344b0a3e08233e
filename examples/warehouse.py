"""A simulated warehouse for the example shops: it limits, fails and rejects calls, and records them."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

__all__ = ["Accepted", "Warehouse", "warehouse"]

_PATH = re.compile(r"/customers/(?P<customer>[^/]+)/orders/(?P<number>[^/]+)")


@dataclass(frozen=True)
class Accepted:
    """A call that was answered with 200: the customer, the order (None: deleted) and the idempotency key.

    This includes calls with a repeated key, which have no effect.
    """

    customer: str
    number: str
    order: dict[str, Any] | None
    key: str


@dataclass
class Warehouse:
    """How it answers, and the calls it has received.

    Orders with an amount below 1 are rejected (422). A random share `failing` of the calls gets a 500, and calls beyond
    `calls_per_second` get a 429. A call with a repeated key changes nothing.
    """

    url: str
    seconds: float = 0.0
    failing: float = 0.0
    calls_per_second: float = float("inf")
    orders: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    accepted: list[Accepted] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)
    at_once: list[str] = field(default_factory=list)
    """Customers with two concurrent calls."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calling: set[str] = field(default_factory=set)
    _keys: set[str] = field(default_factory=set)
    _second: tuple[int, int] = (0, 0)

    def call(self, customer: str, number: str, key: str, order: dict[str, Any] | None) -> tuple[int, str]:
        """Handle a call; return the status and the text of the response."""
        with self._lock:
            if customer in self._calling:
                self.at_once.append(customer)
            self._calling.add(customer)
        try:
            time.sleep(self.seconds)
            with self._lock:
                status, text = self._answer(customer, number, key, order)
                self.answers[status] += 1
                return status, text
        finally:
            with self._lock:
                self._calling.discard(customer)

    def _answer(self, customer: str, number: str, key: str, order: dict[str, Any] | None) -> tuple[int, str]:
        now = int(time.monotonic())
        self._second = (now, self._second[1] + 1 if self._second[0] == now else 1)
        if self._second[1] > self.calls_per_second:
            return 429, "too many calls"
        if random.random() < self.failing:  # noqa: S311 - no secret
            return 500, "a bad day"
        if order is not None and order["amount"] < 1:
            return 422, "the amount is below 1"
        self.accepted.append(Accepted(customer, number, order, key))
        if key not in self._keys:
            self._keys.add(key)
            if order is None:
                self.orders.pop((customer, number), None)
            else:
                self.orders[customer, number] = order
        return 200, ""


@contextmanager
def warehouse() -> Iterator[Warehouse]:
    """Run a warehouse on this machine during the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = _PATH.fullmatch(self.path)
            assert found is not None  # noqa: S101 - nobody calls anything else
            order = json.loads(body) if self.command == "PUT" else None
            customer, number = map(unquote, found.groups())
            status, text = one.call(customer, number, self.headers["Idempotency-Key"], order)
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_DELETE = do_PUT  # noqa: N815 - http.server calls it

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    one = Warehouse(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield one
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
