"""Hostile requests at a receiver and at `POST /events`: `python -m verification.web.fuzz --inputs 1000000 --seed 1`.

Most go straight into the ASGI app, some over a socket of the server that `taskbridge serve` starts. None may be
answered with 5xx or leave a traceback in the log; what is not signed is never taken, what is as it should be always
is; no answer and no line of the log has a secret or a document; and memory does not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import math
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

import psutil
import uvicorn
from celery import Celery
from starlette.applications import Starlette

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.testing.servers import fresh_database, migrated_template, servers_for_tests
from taskbridge.web import endpoint, events, receiver, storing
from tests.memory import keep_temporary_files_in_memory
from tests.waiting import wait_until
from verification.web.hostile import (
    CANARY,
    MATCHED,
    POSTED,
    SECRETS,
    SOURCES,
    TOKENS,
    Expected,
    Input,
    drawn,
    framed,
    hooks,
)

__all__ = ["Answer", "Result", "attack", "called"]

AT_ONCE: Final = 64
SOCKETS_AT_ONCE: Final = 4
SOCKET_SHARE: Final = 100
"""One of so many inputs goes over a socket."""
WARM_SHARE: Final = 10
"""Memory is looked at first after one of so many inputs."""
STALLED_WITHIN: Final = 2.0
"""Seconds in which a body must have come: 30 in earnest."""
ANSWERED_WITHIN: Final = 60.0
MOST_GROWTH: Final = 32 * 2**20
MOST_TOLD: Final = 20

App = Any
Parser = Literal["httptools", "h11"]
PARSERS: Final[tuple[Parser, ...]] = ("httptools", "h11") if find_spec("httptools") else ("h11",)
"""What reads requests below uvicorn: the first one with the extra `speed`."""


class Answer(NamedTuple):
    """What the app sent; status 0: nothing."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass
class Result:
    """What was done, and what was wrong."""

    inputs: int = 0
    over_socket: int = 0
    seconds: float = 0.0
    answers: Counter[int] = field(default_factory=Counter)
    warm: int = 0
    """Bytes of memory after the first part of the inputs."""
    end: int = 0
    violations: list[str] = field(default_factory=list)
    stored: set[tuple[str, str, str]] = field(default_factory=set)

    def __str__(self) -> str:
        answers = ", ".join(f"{status or 'none'}: {count:,}" for status, count in sorted(self.answers.items()))
        return (
            f"{self.inputs:,} inputs in {self.seconds:.0f} s ({self.inputs / self.seconds:,.0f}/s), "
            f"{self.over_socket:,} of them over a socket; answers {answers}; "
            f"memory {self.warm / 2**20:.0f} MiB when warm, {self.end / 2**20:.0f} MiB at the end; "
            f"{len(self.violations):,} violations"
        )


class _Log(logging.Handler):
    """Notes what must not be in a log."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._violations = violations
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        # uvicorn itself answers a HEAD whose body is framed wrongly, with a text that no answer to a HEAD may have.
        if record.name == "asyncio" and "send_400_response" in text and "Too much data for declared" in text:
            return
        # What is signed and brings no record is stored as unmatched, and told so.
        is_told = record.name == storing.__name__ and not record.exc_info
        if (record.levelno >= logging.ERROR and not is_told) or record.exc_info or "Traceback" in text:
            self._violations.append(f"in the log: {text[-2_000:]}")
        elif not is_told and (found := _leaked(text)) is not None:
            self._violations.append(f"in the log is {found}: {text[:500]}")


def attack(app: Celery, seed: int, numbers: Sequence[int], seconds: float = math.inf) -> Result:
    """Send the inputs with these numbers to a receiver on the servers of `app`; none after so many seconds."""
    result, ends = Result(), time.monotonic() + seconds
    pipelines = Pipelines()
    for one in SOURCES:
        pipelines.declare(Pipeline(one.webhook.source, _nothing, LatencyNeutral(), 100))
    pipelines.declare(Pipeline(POSTED, _nothing, LatencyNeutral(), 100))
    alerts = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 60),))
    pipelines.declare(Pipeline(MATCHED, _nothing, alerts, 100))
    runtime_of(app).pipelines = pipelines
    asgi = _attacked(app)
    before, endpoint.BODY_SECONDS = endpoint.BODY_SECONDS, STALLED_WITHIN  # type: ignore[misc]
    log, root = _Log(result.violations), logging.getLogger()
    root.addHandler(log)
    began = time.monotonic()
    try:
        asyncio.run(_attack_in_process(asgi, seed, [one for one in numbers if one % SOCKET_SHARE], result, ends))
        sent = -(-result.inputs // (SOCKET_SHARE - 1))
        _attack_over_sockets(asgi, seed, [one for one in numbers if not one % SOCKET_SHARE][:sent], result)
        result.end = _memory()
    finally:
        root.removeHandler(log)
        endpoint.BODY_SECONDS = before  # type: ignore[misc]
    result.seconds = time.monotonic() - began
    with runtime_of(app).engine.connect() as connection:
        there = connection.exec_driver_sql("SELECT source, tenant, key FROM taskbridge.records").all()
    if lost := result.stored - {tuple(row) for row in there}:
        result.violations.append(f"answered with 200 and not there: {sorted(lost)[:5]}")
    if result.warm and result.end - result.warm > MOST_GROWTH:
        result.violations.append(f"memory grew by {(result.end - result.warm) / 2**20:.0f} MiB")
    return result


def _nothing(_: object) -> None:
    """Handle a batch."""


def _attacked(app: Celery) -> Starlette:
    """Return a receiver and `POST /events` in one app."""
    ours = receiver(*hooks(), app=app), events(TOKENS, app=app)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in ours:
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield

    return endpoint.mountable([route for one in ours for route in one.routes], lifespan)


async def _attack_in_process(app: App, seed: int, numbers: Sequence[int], result: Result, ends: float) -> None:
    """Call the app with each input, some at the same time."""
    left = itertools.takewhile(lambda _: time.monotonic() < ends, numbers)
    warm_at = len(numbers) // WARM_SHARE
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: result.violations.append(f"in the event loop: {context}")
    )

    async def work() -> None:
        for number in left:
            one = drawn(seed, number, time.time())
            try:
                answer = await asyncio.wait_for(called(app, one), ANSWERED_WITHIN)
            except Exception as error:
                result.violations.append(f"{_named(seed, one)}: {type(error).__name__}: {error}")
                answer = Answer(0, [], b"")
            _judge(seed, one, answer, result, one.expected)
            if result.inputs == warm_at:
                result.warm = _memory()

    async with app.router.lifespan_context(app), asyncio.TaskGroup() as workers:
        for _ in range(AT_ONCE):
            workers.create_task(work())


async def called(app: App, one: Input) -> Answer:
    """Call the app as a server would."""
    parts = iter(enumerate(one.parts, 1))
    status, headers, body, is_complete = 0, list[tuple[bytes, bytes]](), b"", False

    async def receive() -> dict[str, Any]:
        for at, part in parts:
            return {"type": "http.request", "body": part, "more_body": at < len(one.parts) or not one.ends}
        if one.stalls:
            await asyncio.sleep(ANSWERED_WITHIN)
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status, headers, body, is_complete
        if message["type"] == "http.response.start":
            if status:
                raise AssertionError("two answers")
            status, headers = message["status"], list(message["headers"])
        else:
            if not status or is_complete:
                raise AssertionError("a part of no answer")
            body += message.get("body", b"")
            is_complete = not message.get("more_body", False)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": one.version,
        "method": one.method,
        "scheme": "http",
        "path": one.path,
        "raw_path": one.path.encode("utf-8", "surrogatepass"),
        "query_string": one.query,
        "root_path": "",
        "headers": one.headers,
        "client": ("203.0.113.7", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    if not is_complete:
        raise AssertionError("the answer does not end")
    return Answer(status, headers, body)


def _attack_over_sockets(app: App, seed: int, numbers: Iterable[int], result: Result) -> None:
    """Send each input over a connection of its own, to a server as `taskbridge serve` starts it."""

    def send(number: int) -> tuple[Input, Answer, Expected]:
        port = ports[number // SOCKET_SHARE % len(ports)]
        one = drawn(seed, number, time.time())
        raw, is_right = framed(seed, one)
        answer = _sent(port, raw, is_whole=is_right, goes=not (one.ends or one.stalls))
        if one.expected is Expected.STORED and not is_right:
            return one, answer, Expected.ANY
        return one, answer, one.expected

    with ExitStack() as stack:
        ports = [stack.enter_context(_served(app, parser)) for parser in PARSERS]
        threads = stack.enter_context(ThreadPoolExecutor(SOCKETS_AT_ONCE))
        for one, answer, expected in threads.map(send, numbers):
            result.over_socket += 1
            _judge(seed, one, answer, result, expected)


@contextmanager
def _served(app: App, parser: Parser) -> Iterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=parser, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the receiver listens", 60)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def _sent(port: int, raw: bytes, *, is_whole: bool, goes: bool) -> Answer:
    """Send bytes and return the first answer; who `goes` waits for none, and what is not `is_whole` is ended."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWERED_WITHIN) as connection:
        # The receiver may close the connection before all is sent.
        with suppress(ConnectionError):
            connection.sendall(raw)
            if goes:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return Answer(0, [], b"")
        if not is_whole:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError, TimeoutError):
            while part := connection.recv(65_536):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3})", head)
    lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
    return Answer(int(status[1]) if status else 0, [(name, value) for name, _, value in lines], body)


def _judge(seed: int, one: Input, answer: Answer, result: Result, expected: Expected) -> None:
    """Count an answer, and note what is wrong with it."""
    result.inputs += 1
    result.answers[answer.status] += 1
    wrong = _wrong(one, answer, expected)
    if wrong is not None:
        result.violations.append(f"{_named(seed, one)}: {wrong}: {answer.status} {answer.body[:300]!r}")
    elif answer.status == 200 and one.record is not None and expected is Expected.STORED:
        result.stored.add(one.record)


def _wrong(one: Input, answer: Answer, expected: Expected) -> str | None:
    if answer.status >= 500:
        return "an error of the receiver"
    if expected is Expected.REFUSED and 200 <= answer.status < 400:
        return "taken, and should be refused"
    # 408: this machine was too slow.
    if expected is Expected.STORED and answer.status not in (200, 408):
        return "refused, and should be taken"
    if answer.status < 400:
        return None
    text = answer.body.decode(errors="replace") + repr(answer.headers)
    found = _leaked(text)
    return None if found is None or (found == "a document" and _is_in_a_name(one.body)) else f"it has {found}"


def _leaked(text: str) -> str | None:
    if any(one in text for one in SECRETS):
        return "a secret"
    return "a document" if CANARY in text else None


def _is_in_a_name(body: bytes) -> bool:
    """Whether bytes were changed so that a part of the document is in a name, which may be told."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return False
    for entry in payload if isinstance(payload, list) else [payload]:
        if not isinstance(entry, dict):
            continue
        order = entry.get("order")
        told = [*entry, entry.get("customer"), order.get("number") if isinstance(order, dict) else None]
        told += [entry.get(name) for name in ("pipeline", "source", "tenant", "key", "message_id")]
        if any(CANARY in repr(one) for one in told):
            return True
    return False


def _named(seed: int, one: Input) -> str:
    return f"seed {seed}, input {one.number} ({one.method[:20]} {one.path[:40]!a}, {one.expected.name})"


def _memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.web.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: 1000000)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (default: 1)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="send none after so long (default: send all)")
    parser.add_argument("--only", type=int, metavar="INPUT", help="send the input with this number, alone")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Attack a receiver on servers of its own; return 1 if anything is wrong."""
    options = _options(arguments)
    numbers = range(options.inputs) if options.only is None else range(options.only, options.only + 1)
    with (
        servers_for_tests() as servers,
        migrated_template(servers) as template,
        fresh_database(servers, template) as postgres_url,
    ):
        prefix = f"fuzz-{secrets.token_hex(4)}"
        # A machine that is busy may be slow, and an event alone that Redis does not take in time is answered with 503.
        settings = Settings(postgres_url, servers.redis_url, key_prefix=prefix, notify_timeout=30)
        app = make_app(settings).app
        result = attack(app, options.seed, numbers, options.seconds)
        runtime_of(app).close()
    # The first of each kind, whatever the numbers in it.
    kinds = {re.sub(r"\d+", "", one.partition("): ")[2] or one)[:60]: one for one in reversed(result.violations)}
    for violation in [*kinds.values()][-MOST_TOLD:]:
        sys.stdout.write(f"VIOLATION {violation}\n")
    sys.stdout.write(f"seed {options.seed}: {result}\n")
    return int(bool(result.violations))


if __name__ == "__main__":
    keep_temporary_files_in_memory()
    sys.exit(main(sys.argv[1:]))
