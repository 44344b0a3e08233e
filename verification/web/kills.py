"""Webhooks at a steady rate while what takes them is killed.

`python -m verification.web.kills --deliveries 10000 --rate 200` runs it once. A receiver, Redis and Postgres are killed
with SIGKILL in turn and started again. The provider sends a delivery again where no answer comes, or one of 5xx. At the
end all that was answered with 2xx is downstream in its last version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psycopg

from taskbridge.testing.servers import open_directory
from taskbridge.web import StandardWebhooks
from tests.deployment import worker_command
from tests.ending import kill_all
from tests.memory import keep_temporary_files_in_memory
from tests.scraping import free_ports
from tests.waiting import wait_until
from tests.web.secrets import SECRET
from verification.torture.servers import PostgresHere, RedisHere

__all__ = ["Account", "survive"]

ROOT = Path(__file__).resolve().parents[2]
TASKBRIDGE = (sys.executable, "-c", "from taskbridge.cli.main import main; main()")
APP = "verification.web.orders:app"
KILLED = ("the receiver", "Redis", "Postgres")
CUSTOMERS = 20
STARTS_WITHIN = 60.0
ANSWERED_WITHIN = 180.0
QUIET_WITHIN = 180.0
FAILS_EVERY = 15
"""Of so many requests the endpoint takes one and says that it has not."""

Place = tuple[str, str]
"""Customer and order."""


class Delivery(NamedTuple):
    """One webhook of the provider."""

    place: Place
    version: int
    webhook_id: str
    body: bytes


class Account(NamedTuple):
    """What was done: the provider's requests by status (0: no answer), and the downstream's."""

    answered: int
    tries: Counter[int]
    requests: int
    repeated: int
    records: int
    killed: Counter[str]

    def __str__(self) -> str:
        tries = ", ".join(f"{status or 'no answer'}: {count:,}" for status, count in sorted(self.tries.items()))
        killed = ", ".join(f"{what} {count} times" for what, count in self.killed.items())
        return (
            f"{self.answered:,} deliveries answered with 2xx ({tries}); {self.requests:,} requests downstream with "
            f"{self.records:,} records, {self.repeated:,} of the requests with an id that came before; killed: {killed}"
        )


class Downstream:
    """An endpoint that writes down what it takes. Now and then it takes a request and answers 500."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        downstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                downstream.requests.append((self.headers["webhook-id"], body))
                self.send_response(500 if len(downstream.requests) % FAILS_EVERY == 0 else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/orders"

    @contextmanager
    def served(self) -> Iterator[Downstream]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


class Provider:
    """Sends deliveries at a steady rate, and each until it is answered with 2xx."""

    def __init__(self, url: str, deliveries: Sequence[Delivery], rate: float) -> None:
        self._url = url
        self._deliveries = deliveries
        self._rate = rate
        self._signing = StandardWebhooks(SECRET)
        self.begun = 0
        """How many deliveries were sent at least once."""
        self.most = 0
        """How many may be: so that the load lasts until all is killed, however slow the machine is."""
        self.answered: list[Delivery] = []
        self.tries: Counter[int] = Counter()

    def send(self) -> None:
        """Send all.

        Raises:
            AssertionError: a delivery was refused, or not taken within `ANSWERED_WITHIN`.
        """
        asyncio.run(self._send_all())

    def wait_for(self, count: int, sending: Future[None]) -> None:
        """Return when so many deliveries were sent at least once."""
        seconds = 60 + 10 * len(self._deliveries) / self._rate
        wait_until(lambda: self.begun >= count or sending.done(), f"{count} deliveries are sent", seconds)

    async def _send_all(self) -> None:
        limits = httpx2.Limits(max_connections=500, max_keepalive_connections=50)
        due = time.monotonic()
        async with httpx2.AsyncClient(timeout=20, limits=limits) as client, asyncio.TaskGroup() as sending:
            for one in self._deliveries:
                while self.begun >= self.most:
                    await asyncio.sleep(0.01)
                due = max(due + 1 / self._rate, time.monotonic() - 0.5)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self.begun += 1
                sending.create_task(self._send(client, one))

    async def _send(self, client: httpx2.AsyncClient, one: Delivery) -> None:
        deadline, rest = time.monotonic() + ANSWERED_WITHIN, 0.1
        while True:
            headers = self._signing.sign(one.webhook_id, one.body, time.time())
            try:
                status = (await client.post(self._url, content=one.body, headers=headers)).status_code
            except httpx2.TransportError:
                status = 0
            self.tries[status] += 1
            if 200 <= status < 300:
                self.answered.append(one)
                return
            assert status == 0 or status >= 500, f"{one.place} was answered with {status}"
            assert time.monotonic() < deadline, f"{one.place} is not taken"
            await asyncio.sleep(rest)
            rest = min(rest * 2, 2.0)


@dataclass
class Scene:
    """A receiver and a worker at work, and their servers."""

    folder: Path
    app: str
    downstream: Downstream
    postgres: PostgresHere
    redis: RedisHere
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")}
        return {
            **kept,
            "TASKBRIDGE_POSTGRES_URL": self.postgres.url,
            "TASKBRIDGE_REDIS_URL": self.redis.url,
            "TASKBRIDGE_PIPELINES": "verification.web.orders",
            "TEST_ENDPOINT": self.downstream.url,
            "PYTHONPATH": str(ROOT),
        }

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )

    def start_receiver(self) -> None:
        self.start("receiver", *TASKBRIDGE, "serve", self.app, "--port", str(self.port))

    def listens(self) -> bool:
        assert self.processes["receiver"].poll() is None, (self.folder / "receiver.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self, what: str) -> Callable[[], None]:
        """Kill something with SIGKILL; return what starts it again, and returns when it can be used."""
        if what == "the receiver":
            self.processes["receiver"].kill()
            self.processes["receiver"].wait()

            def start() -> None:
                self.start_receiver()
                wait_until(self.listens, "the receiver listens", STARTS_WITHIN)

            return start
        server: PostgresHere | RedisHere = self.redis if what == "Redis" else self.postgres
        server.strike(signal.SIGKILL)
        return server.start

    def states(self) -> dict[str, int]:
        """Return how many records there are in each state."""
        with psycopg.connect(self.postgres.url) as connection:
            return dict(
                connection.execute("SELECT state, count(*) FROM taskbridge.record_states GROUP BY 1").fetchall()
            )

    def end(self) -> None:
        kill_all(self.processes.values())


@contextmanager
def at_work(folder: Path, app: str) -> Iterator[Scene]:
    """Start the servers, a receiver, a worker and the endpoint to which that delivers; end all of it."""
    with ExitStack() as stack:
        downstream = stack.enter_context(Downstream().served())
        postgres, redis = PostgresHere(folder), RedisHere(folder, "appendonly yes\n")
        for server in (postgres, redis):
            stack.callback(server.close)
            server.start()
        scene = Scene(folder, app, downstream, postgres, redis, free_ports())
        migrated = subprocess.run(
            [*TASKBRIDGE, "migrate"], env=scene.environment, cwd=ROOT, check=False, capture_output=True, text=True
        )
        assert migrated.returncode == 0, migrated.stderr
        stack.callback(scene.end)
        scene.start("worker", *worker_command("-n", "one@kills", "-c", "2"))
        scene.start_receiver()
        wait_until(scene.listens, "the receiver listens", STARTS_WITHIN)
        yield scene


def survive(folder: Path, count: int, rate: float, *, rounds: int = 1, app: str = APP) -> Account:
    """Send so many deliveries, kill everything `rounds` times meanwhile, and compare what came downstream.

    Raises:
        AssertionError: something that was answered with 2xx is not downstream as it should be.
    """
    deliveries = _deliveries(count)
    with at_work(folder, app) as scene:
        provider = Provider(f"http://127.0.0.1:{scene.port}/orders", deliveries, rate)
        killed: Counter[str] = Counter()
        with ThreadPoolExecutor(1) as threads:
            kills = [what for _ in range(rounds) for what in KILLED]
            limits = [count * (at + 1) // (len(kills) + 1) for at in range(len(kills))] + [count]
            provider.most = limits[0]
            sending = threads.submit(provider.send)
            try:
                for what, at, most in zip(kills, limits, limits[1:], strict=False):
                    provider.wait_for(at, sending)
                    start = scene.kill(what)
                    killed[what] += 1
                    provider.most = most
                    start()
            finally:
                provider.most = count
            sending.result()
        places = len({one.place for one in deliveries})
        wait_until(lambda: set(scene.states()) == {"handled"}, "all records are handled", QUIET_WITHIN)
        account = _account(provider, scene.downstream, killed)
        _check(provider.answered, scene.downstream.requests)
        assert scene.states() == {"handled": places}
        assert "Traceback" not in (folder / "receiver.log").read_text(errors="replace")
        assert scene.processes["worker"].poll() is None, "the worker ended, and nobody had killed it"
        return account


def _deliveries(count: int) -> list[Delivery]:
    """Three of five are about an order that comes once, the others about orders that come again and again."""
    found = []
    versions: Counter[Place] = Counter()
    for at in range(count):
        order = f"once-{at}" if at % 5 < 3 else f"often-{at % max(1, count // 20)}"
        place = (f"customer-{zlib.crc32(order.encode()) % CUSTOMERS}", order)
        versions[place] += 1
        payload = {"customer": place[0], "order": order, "version": versions[place]}
        found.append(Delivery(place, versions[place], f"msg_{at}", json.dumps(payload).encode()))
    return found


def _account(provider: Provider, downstream: Downstream, killed: Counter[str]) -> Account:
    requests = downstream.requests
    return Account(
        len(provider.answered),
        provider.tries,
        len(requests),
        len(requests) - len({webhook_id for webhook_id, _ in requests}),
        sum(len(body["data"]) for _, body in requests),
        killed,
    )


def _check(answered: Sequence[Delivery], requests: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Compare what was answered with what came downstream."""
    newest: dict[Place, int] = {}
    for one in answered:
        newest[one.place] = max(one.version, newest.get(one.place, 0))
    # Of each order, which version came in which revision.
    versions: dict[Place, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    contents: dict[str, list[Any]] = defaultdict(list)
    for webhook_id, body in requests:
        contents[webhook_id].append(body["data"])
        for record in body["data"]:
            versions[body["tenant"], record["id"]][record["revision"]].add(record["document"]["version"])
    last = {place: max(versions[place][max(versions[place])]) for place in versions}
    missing = {place: (version, last.get(place)) for place, version in newest.items() if last.get(place) != version}
    assert missing == {}, "answered with 2xx, and not downstream in its last version"
    assert set(versions) <= set(newest), "nobody sent it"
    for place, revisions in versions.items():
        came = [version for revision in sorted(revisions) for version in sorted(revisions[revision])]
        assert came == sorted(set(came)), f"{place}: a version in two revisions, or an older one over a newer: {came}"
        assert all(len(some) == 1 for some in revisions.values()), f"{place}: a revision has two versions: {revisions}"
    assert [one for one, data in contents.items() if any(other != data[0] for other in data)] == [], (
        "one id, two bodies"
    )


def main(arguments: Sequence[str]) -> int:
    """Run it once, and print the account."""
    parser = argparse.ArgumentParser(prog="python -m verification.web.kills", description=__doc__)
    parser.add_argument("--deliveries", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--rate", type=float, default=200, help="per second (default: 200)")
    parser.add_argument("--rounds", type=int, default=2, help="times that each is killed (default: 2)")
    parser.add_argument("--app", default=APP, help=f"the receiver (default: {APP})")
    options = parser.parse_args(arguments)
    with open_directory() as folder:
        account = survive(folder, options.deliveries, options.rate, rounds=options.rounds, app=options.app)
    sys.stdout.write(f"{account}\n")
    return 0


if __name__ == "__main__":
    keep_temporary_files_in_memory()
    sys.exit(main(sys.argv[1:]))
