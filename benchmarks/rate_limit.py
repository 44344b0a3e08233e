"""What a downstream that allows ten requests a second answers, by what the handler and its pipeline do about it.

The downstream is an HTTP server in the measuring process, with a bucket of as many requests as it allows in a second.
Each tenant has one record, which is one batch and one request.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, NamedTuple

from benchmarks.benchmark import Benchmark, Option
from benchmarks.messages import add
from benchmarks.report import Headline, Report, Table, Target
from benchmarks.stage import stage, wait_until, worker
from taskbridge.declaring.batch import RetryAfter
from taskbridge.errors import TaskBridgeError
from taskbridge.process.runtime import Runtime

__all__ = ["ADDRESS", "ALL_WAIT", "LIMITED", "RAISES", "RATE", "RATE_LIMIT", "TENANT_WAITS", "ask", "ask_or_wait"]

ADDRESS: Final = "TASKBRIDGE_BENCH_ADDRESS"
"""The variable that names the downstream: host and port."""
RATE: Final = 10
"""Requests that the downstream allows in a second."""

TENANT_WAITS: Final = "bench-tenant-waits"
ALL_WAIT: Final = "bench-all-wait"
LIMITED: Final = "bench-limited"
RAISES: Final = "bench-raises"


class TooManyRequests(TaskBridgeError):
    """The downstream answered 429 and said after how many seconds to ask again."""

    def __init__(self, after: str | None) -> None:
        super().__init__("429 Too Many Requests")
        self.after: Final = after


def ask(address: str) -> None:
    """Make one request.

    Raises:
        TooManyRequests: the downstream refused it.
    """
    connection = HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
    finally:
        connection.close()
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise TooManyRequests(answer.headers["Retry-After"])


def ask_or_wait(address: str, scope: Literal["tenant", "pipeline"]) -> None:
    """Make one request; where it is refused, the tenant or the whole pipeline waits as long as the downstream says.

    Raises:
        RetryAfter: the downstream refused it.
    """
    try:
        ask(address)
    except TooManyRequests as error:
        raise RetryAfter(error.after, scope=scope) from None


class Downstream:
    """A bucket of `RATE` requests that fills again with as many in a second, and how often each status was answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(limited=True)

    def begin(self, *, limited: bool) -> None:
        """Count from here, with a full bucket."""
        with self._lock:
            self._limited, self._left, self._filled = limited, float(RATE), time.monotonic()
            self.answered: Counter[HTTPStatus] = Counter()

    def answer(self) -> HTTPStatus:
        """Return the status of one more request."""
        with self._lock:
            now = time.monotonic()
            self._left, self._filled = min(RATE, self._left + (now - self._filled) * RATE), now
            allowed = not self._limited or self._left >= 1
            if allowed:
                self._left -= 1
            status = HTTPStatus.OK if allowed else HTTPStatus.TOO_MANY_REQUESTS
            self.answered[status] += 1
            return status


@contextmanager
def _served(downstream: Downstream) -> Iterator[str]:
    """Answer requests on a port of this machine, and give its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(downstream.answer())
            self.send_header("Retry-After", "1")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Write nothing for each request."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Outcome(NamedTuple):
    """What became of one record of each tenant, and how many answers of 429 that cost."""

    handled: int
    quarantined: int
    refused: int
    seconds: float

    @property
    def speed(self) -> float:
        """Records handled per second."""
        return self.handled / self.seconds


def _measure(tenants: int, concurrency: int, cap: float) -> Report:
    """Let one record of each tenant be handled by each pipeline in turn; wait for `cap` seconds at most."""
    downstream = Downstream()
    options = ("--pool", "threads", "--concurrency", str(concurrency))
    with stage() as (runtime, directory), _served(downstream) as address:
        modules = "benchmarks.rate_limit_handlers"
        with worker(runtime, directory, *options, pipelines=modules, **{ADDRESS: address}):
            free = _outcome(runtime, downstream, TENANT_WAITS, tenants, cap, limited=False)
            # The last may go on beyond its cap, and then no other is measured.
            found = {
                name: _outcome(runtime, downstream, name, tenants, cap)
                for name in (TENANT_WAITS, ALL_WAIT, LIMITED, RAISES)
            }
    rows = [
        ("no limit: nothing is refused", *free, free.speed),
        *((TEXTS[name], *one, one.speed) for name, one in found.items()),
    ]
    refused = found[TENANT_WAITS].refused
    return Report(
        {"tenants": tenants, "concurrency": concurrency, "cap": cap},
        [
            Table(
                f"{tenants:,} batches against {RATE} requests a second",
                ("", "handled", "in quarantine", "answers of 429", "seconds", "records/s"),
                rows,
                f"The downstream's bucket holds {RATE} requests, and with 429 it says to ask again after 1 s. A "
                f"measurement ends when nothing is pending, or after {cap:g} s.",
            )
        ],
        [
            Target("answers of 429 for each batch, the pipeline waits", found[ALL_WAIT].refused / tenants, 0.5),
            Target("answers of 429 for each batch, with the limit of calls", found[LIMITED].refused / tenants, 0.05),
            Target("records/s with the limit of calls", found[LIMITED].speed, 0.8 * RATE, at_least=True),
        ],
        headlines=[
            Headline(f"answers of 429 to {tenants:,} batches, {what}", found[name].refused, "the tenant waits", refused)
            for name, what in ((ALL_WAIT, "the whole pipeline waits"), (LIMITED, "limit of calls"))
        ],
    )


def _outcome(
    runtime: Runtime, downstream: Downstream, pipeline: str, tenants: int, cap: float, *, limited: bool = True
) -> Outcome:
    """Let one record of each of so many new tenants be handled."""
    prefix = "limited" if limited else "free"
    downstream.begin(limited=limited)
    began = time.monotonic()
    add(runtime, pipeline, [f"{prefix}-{at}" for at in range(tenants)])
    with suppress(TimeoutError):  # What was handled until then is the figure.
        wait_until(lambda: not [*runtime.pending(pipeline)], "nothing is pending", cap)
    seconds = time.monotonic() - began
    refused = downstream.answered[HTTPStatus.TOO_MANY_REQUESTS]
    with runtime.engine.connect() as connection:
        text = "SELECT state FROM taskbridge.record_states WHERE pipeline = %s AND starts_with(tenant, %s)"
        states = Counter(connection.exec_driver_sql(text, (pipeline, prefix)).scalars())
    return Outcome(states["handled"], states["quarantined"], refused, seconds)


TEXTS: Final = {
    TENANT_WAITS: "`RetryAfter(...)`: the tenant waits",
    ALL_WAIT: '`RetryAfter(..., scope="pipeline")`: all wait',
    LIMITED: f'`rate_limit="{RATE} calls/s"`',
    RAISES: "the handler raises an error",
}
"""What a pipeline does, by name."""

RATE_LIMIT: Final = Benchmark(
    "rate-limit",
    "A downstream that allows ten requests a second.",
    f"Measure what a downstream that allows {RATE} requests a second answers to many batches at once, and how fast "
    "they are handled: where the tenant waits, where the whole pipeline waits, and with a limit of calls. The "
    "baselines are a downstream without a limit, and a handler that raises an error where it is refused.",
    _measure,
    (
        Option("tenants", 200, 2, 10_000, "Tenants, with one batch each."),
        Option("concurrency", 8, 1, 64, "Runs at a time."),
        Option("cap", 120.0, 1, 3_600, "Seconds after which nobody waits any more."),
    ),
    {"tenants": 12, "concurrency": 2, "cap": 10.0},
)
