"""Posts webhooks from a process of its own: `python -m benchmarks.posting` reads an order as JSON, writes what came.

A request is sent when it is due, whether or not those before it were answered. Its clock starts when its last byte is
with the kernel, and stops with the last byte of the answer.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hmac
import json
import re
import sys
import time
from collections import Counter, deque
from typing import Final, NamedTuple

__all__ = ["Order", "Posted"]

TENANTS: Final = 100
ANSWERED_WITHIN: Final = 60.0
OPENED_AT_ONCE: Final = 100
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Order(NamedTuple):
    """What is to be sent: `number` requests at `rate` per second (0: all at once), their keys with a prefix."""

    port: int
    path: str
    secret: str
    prefix: str
    number: int
    rate: float
    connections: int


class Posted(NamedTuple):
    """What came: milliseconds and keys of what was answered with 200, statuses, seconds until the last answer."""

    milliseconds: list[float]
    stored: list[str]
    answers: dict[str, int]
    without_retry_after: int
    seconds: float


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    transport: asyncio.Transport

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._received = b""
        self._sent = 0.0
        self._at: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be free."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type
        self.transport = transport
        self._sender.is_free(self)

    def post(self, at: int) -> None:
        """Send a request."""
        self._at = at
        self.transport.write(self._sender.requests[at])
        self._sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        """Take a part of the answer."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or self._at is None or length is None or len(body) < int(length[1]):
            return
        took, at = time.perf_counter() - self._sent, self._at
        self._received, self._at = b"", None
        self._sender.answered(at, int(head[9:12]), took, b"\r\nretry-after:" in head.lower())
        self._sender.is_free(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Let another take its place."""
        self._sender.lost(self, self._at)


class _Sender:
    """Sends the requests of one order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.requests = [_request(order, at) for at in range(order.number)]
        self._free: list[_Connection] = []
        self._late: deque[int] = deque()
        """What is due and has no connection."""
        self._left = order.number
        self._ended = asyncio.Event()
        self._ends = False
        self._opening: set[asyncio.Task[None]] = set()
        self._milliseconds: list[float] = []
        self._stored: list[str] = []
        self._answers: Counter[str] = Counter()
        self._without_retry_after = 0

    async def send(self) -> Posted:
        """Send all, and wait for the answers."""
        for at in range(0, self._order.connections, OPENED_AT_ONCE):
            some = min(OPENED_AT_ONCE, self._order.connections - at)
            await asyncio.gather(*(self._open() for _ in range(some)))
        began, rate = time.perf_counter(), self._order.rate
        for at in range(self._order.number):
            if rate:
                await asyncio.sleep(max(0.0, began + at / rate - time.perf_counter()))
            self._post(at)
        try:
            await asyncio.wait_for(self._ended.wait(), ANSWERED_WITHIN)
        except TimeoutError:
            self._answers["none"] += self._left
        self._ends = True
        seconds = time.perf_counter() - began
        return Posted(self._milliseconds, self._stored, dict(self._answers), self._without_retry_after, seconds)

    def is_free(self, connection: _Connection) -> None:
        """Use a connection for what is late, or keep it."""
        if self._late:
            connection.post(self._late.popleft())
        else:
            self._free.append(connection)

    def answered(self, at: int, status: int, took: float, has_retry_after: bool) -> None:
        """Count an answer."""
        self._answers[str(status)] += 1
        if status == 200:
            self._milliseconds.append(took * 1000)
            self._stored.append(_key(self._order, at))
        elif status == 503 and not has_retry_after:
            self._without_retry_after += 1
        self._count()

    def lost(self, connection: _Connection, at: int | None) -> None:
        """Open another connection; what was sent over this one has no answer."""
        if self._ends:
            return
        if at is None:
            self._free = [one for one in self._free if one is not connection]
        else:
            self._answers["none"] += 1
            self._count()
        task = asyncio.get_running_loop().create_task(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _post(self, at: int) -> None:
        if self._free:
            self._free.pop().post(at)
        else:
            self._late.append(at)

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._ended.set()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._order.port)


def _key(order: Order, at: int) -> str:
    return f"{order.prefix}-{at}"


def _request(order: Order, at: int) -> bytes:
    """Return a request of some 600 bytes, signed as Standard Webhooks."""
    key, when = _key(order, at), str(int(time.time()))
    lines = [{"item": f"item-{line}", "quantity": line + 1, "price": "19.90"} for line in range(4)]
    payload = {"tenant": f"tenant-{at % TENANTS}", "key": key, "version": at, "order": {"number": key, "lines": lines}}
    body = json.dumps(payload).encode()
    secret = base64.b64decode(order.secret.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.digest(secret, f"{key}.{when}.".encode() + body, "sha256")).decode()
    head = (
        f"POST {order.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nwebhook-id: {key}\r\nwebhook-timestamp: {when}\r\n"
        f"webhook-signature: v1,{signature}\r\n\r\n"
    )
    return head.encode() + body


def _main() -> None:
    async def send() -> Posted:
        return await _Sender(Order(**json.load(sys.stdin))).send()

    gc.disable()
    json.dump(asyncio.run(send())._asdict(), sys.stdout)


if __name__ == "__main__":
    _main()
