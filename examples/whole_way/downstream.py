"""A third party's server: it limits requests per second, sometimes fails, and rejects some orders."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Downstream", "serve_downstream", "takes"]

ALLOWED = 15
"""Requests per second."""
FAILS_EVERY = 20


def takes(order: dict[str, Any]) -> bool:
    """Whether the server accepts an order."""
    return bool(order["item"]) and int(order["amount"]) > 0


@dataclass
class Downstream:
    """The requests that it has received, and its responses."""

    url: str
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    """The latest version of each order, by customer and order."""
    accepted: list[tuple[str, str, int, int, float]] = field(default_factory=list)
    """Customer, order, revision and version of what it accepted, and when."""
    answers: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _second: Counter[int] = field(default_factory=Counter)

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the response."""
        with self._lock:
            self._second[int(time.time())] += 1
            status, body = self._judge(request["tenant"], request["data"])
            self.answers[status] += 1
            return status, body

    def _judge(self, customer: str, records: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        if self._second[int(time.time())] > ALLOWED:
            return 429, {"error": "too many requests"}
        if sum(self.answers.values()) % FAILS_EVERY == FAILS_EVERY - 1:
            return 500, {"error": "a bad day"}
        if not all(one["document"]["item"] for one in records):
            return 422, {"error": "an order without an item"}
        failures = [{"id": one["id"], "error": "nothing is ordered"} for one in records if not takes(one["document"])]
        for one in records:
            if takes(one["document"]):
                version = one["document"]["version"]
                self.versions[customer, one["id"]] = version
                self.accepted.append((customer, one["id"], one["revision"], version, time.time()))
        return 200, {"failures": failures}


@contextmanager
def serve_downstream() -> Iterator[Downstream]:
    """Run the server on this machine during the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, body = downstream.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            content = json.dumps(body).encode()
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        downstream = Downstream(f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield downstream
        finally:
            server.shutdown()
            thread.join()
