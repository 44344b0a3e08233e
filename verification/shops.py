"""A shop under load whose processes are killed, one after another: what came to its warehouse, against its own table.

A shop has three addresses: `POST /customers/{customer}/orders`, `PUT /orders/{number}` and
`DELETE /orders/{number}`, the first two with `{"item": ..., "amount": ...}`; the first answers with the number. Its
table of orders has the columns id, customer, item, amount and version, the last another number after each change.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from examples.warehouse import Warehouse, warehouse
from tests.ending import kill_all
from tests.waiting import wait_until
from verification.torture.servers import PostgresHere, RedisHere

ROOT = Path(__file__).resolve().parents[1]
CUSTOMERS = [f"customer-{number}" for number in range(6)]
LOAD_BETWEEN_KILLS = 4.0
QUIET_WITHIN = 120.0


@dataclass(frozen=True)
class Shop:
    """What is started of a shop, each as arguments of `python`; `{port}` is where the web process listens."""

    web: Sequence[str]
    worker: Sequence[str]
    prepare: Sequence[Sequence[str]]
    environment: Callable[[str, str], Mapping[str, str]]
    """From the URLs of Postgres and Redis, the variables of each process of the shop."""
    table: str = "orders"


@dataclass
class Scene:
    """A shop at work."""

    shop: Shop
    folder: Path
    postgres: PostgresHere
    redis: RedisHere
    stock: Warehouse
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process, as whoever watches over it would."""
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                self.command(command), env=self.environment(), cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )

    def command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, *(word.format(port=self.port) for word in words)]

    def environment(self) -> dict[str, str]:
        """Return what each process of the shop is started with."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")},
            "WAREHOUSE_URL": self.stock.url,
            **self.shop.environment(self.postgres.url, self.redis.url),
        }

    def start_web(self) -> None:
        self.start("web", self.shop.web)

    def start_worker(self, name: str) -> None:
        self.start(name, (*self.shop.worker, "-n", f"{name}@shop", "-c", "2", "--without-mingle", "--without-gossip"))

    def web_answers(self) -> bool:
        """Return whether the web process takes connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self, name: str) -> None:
        """Kill one process, and none of those that it started."""
        self.processes[name].kill()
        self.processes[name].wait()

    def kill_child(self, name: str) -> None:
        """Kill a process of a worker's pool; the worker makes another."""
        children = psutil.Process(self.processes[name].pid).children()
        if children:
            children[0].kill()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the shop until it answers; fail if it does not."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - the same
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                time.sleep(0.2)
            except (OSError, json.JSONDecodeError):
                time.sleep(0.2)
        raise AssertionError(f"{method} {path}: no answer within 60 s")

    def customer(self, name: str, stop: threading.Event) -> None:
        """Place, change and cancel orders."""
        chance, mine = random.Random(name), list[int]()  # noqa: S311 - no secret
        while not stop.is_set():
            wish = {"item": chance.choice("abc"), "amount": chance.choice([0, *range(1, 20)])}
            deed = chance.random() if mine else 0.0
            if deed < 0.4:
                mine.append(self.call("POST", f"/customers/{name}/orders", wish))
            elif deed < 0.9:
                self.call("PUT", f"/orders/{chance.choice(mine)}", wish)
            else:
                self.call("DELETE", f"/orders/{mine.pop(chance.randrange(len(mine)))}")
            time.sleep(chance.random() * 0.2)

    def somebody_with_psql(self, stop: threading.Event) -> None:
        """Change orders by plain SQL, and notify nobody."""
        while not stop.wait(0.7):
            with suppress(psycopg.Error), psycopg.connect(self.postgres.url, connect_timeout=5) as connection:
                connection.execute(
                    f"UPDATE {self.shop.table} SET amount = amount + 1, version = version + 1 "  # noqa: S608 - ours
                    "WHERE customer = %s AND amount > 0",
                    (random.choice(CUSTOMERS),),  # noqa: S311 - no secret
                )

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url) as connection:
            return connection.execute(statement).fetchall()

    def pending(self) -> bool:
        return bool(self.rows("SELECT FROM taskbridge.record_states WHERE state = 'pending' LIMIT 1"))


@contextmanager
def at_work(shop: Shop, folder: Path) -> Iterator[Scene]:
    """Start a shop with two workers, its servers and a warehouse that limits, fails and rejects; end all of it."""
    with ExitStack() as stack:
        stock = stack.enter_context(warehouse())
        stock.seconds, stock.failing, stock.calls_per_second = 0.01, 0.02, 60
        postgres, redis = PostgresHere(folder), RedisHere(folder, "appendonly yes\n")
        for server in (postgres, redis):
            stack.callback(server.close)
            server.start()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            scene = Scene(shop, folder, postgres, redis, stock, probe.getsockname()[1])
        for command in shop.prepare:
            done = subprocess.run(
                scene.command(command), env=scene.environment(), cwd=ROOT, check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        stack.callback(lambda: kill_all(scene.processes.values()))
        scene.start_web()
        for name in ("one", "two"):
            scene.start_worker(name)
        yield scene


def kills(scene: Scene) -> Iterator[str]:
    """Kill each process in turn, and start again what nobody else does; yield its name."""
    for worker in ("one", "two"):
        scene.kill(worker)
        scene.start_worker(worker)
        yield "a worker"
        scene.kill_child(worker)
        yield "a process of a worker's pool"
    scene.kill("web")
    scene.start_web()
    wait_until(scene.web_answers, "the web process answers", 60)
    yield "the web process"
    scene.redis.strike(signal.SIGKILL)
    scene.redis.start()
    yield "Redis"
    scene.postgres.strike(signal.SIGKILL)
    scene.postgres.start()
    yield "Postgres"


def survive(shop: Shop, folder: Path, check_own: Callable[[Scene], None] = lambda _: None) -> None:
    """Run a shop under load, kill each of its processes in turn, and compare the warehouse with its table.

    `check_own` looks at what else the shop has written.
    """
    with at_work(shop, folder) as scene:
        stop = threading.Event()
        threads = [threading.Thread(target=scene.customer, args=(name, stop)) for name in CUSTOMERS]
        threads.append(threading.Thread(target=scene.somebody_with_psql, args=(stop,)))
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(scene.stock.accepted) > 20, "orders come to the warehouse", 60)
            for struck in kills(scene):
                before = len(scene.stock.accepted)
                wait_until(lambda: len(scene.stock.accepted) > before, f"orders come again after {struck} died", 60)  # noqa: B023 - at once
                time.sleep(LOAD_BETWEEN_KILLS)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        wait_until(lambda: not scene.pending(), "nothing is pending", QUIET_WITHIN)
        ended = [name for name, process in scene.processes.items() if process.poll() is not None]
        assert ended == [], "a process ended that nobody had killed"
        check(scene)
        check_own(scene)


def check(scene: Scene) -> None:
    """Compare the warehouse with the shop's table."""
    stock = scene.stock
    rows = scene.rows(f"SELECT id, customer, item, amount, version FROM {scene.shop.table}")  # noqa: S608 - ours
    names = ("id", "customer", "item", "amount", "version")
    orders = {(row[1], str(row[0])): dict(zip(names, row, strict=True)) for row in rows}
    good = {place: order for place, order in orders.items() if order["amount"] > 0}
    assert len(good) > 20
    missing = {
        place: (order, stock.orders.get(place)) for place, order in good.items() if stock.orders.get(place) != order
    }
    assert missing == {}, "an order is not in the warehouse in its last version"
    assert set(stock.orders) - set(orders) == set(), "an order that was cancelled is in the warehouse"
    bad = {number for (_, number), order in orders.items() if order["amount"] < 1}
    quarantined = {
        key for (key,) in scene.rows("SELECT external_id FROM taskbridge.record_states WHERE state = 'quarantined'")
    }
    assert quarantined == bad, "what was rejected, and nothing else, is in quarantine"
    keys = defaultdict[tuple[object, ...], set[str]](set)
    meant = defaultdict[str, set[tuple[object, ...]]](set)
    for one in stock.accepted:
        what = (one.customer, one.number, one.order and one.order["version"])
        keys[what].add(one.key)
        meant[one.key].add(what)
    assert {what: several for what, several in keys.items() if len(several) > 1} == {}, (
        "accepted twice, with other keys"
    )
    assert {key: several for key, several in meant.items() if len(several) > 1} == {}, "one key for several things"
    assert stock.at_once == [], "two calls of one customer came at once"
