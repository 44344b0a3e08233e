"""Connections of the gate: a server that is not the one any more, a fork, a pool of one."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Servers
from taskbridge.embedded.redis_server import RedisServer
from taskbridge.gate import Answer, Gate, Keys, client
from tests.waiting import wait_until

SPACING = Spacing(delay=0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def redis_at(directory: Path) -> Iterator[str]:
    """A Redis server of its own; its URL."""
    directory.mkdir()
    server, port = RedisServer(directory, directory, None), free_port()
    with (directory / "output").open("wb") as output, server.start(port, output) as process:
        wait_until(lambda: server.answers(port, process.pid), "the server answers")
        yield server.url(port)


class Address:
    """One address behind which the server changes. Connections that are open stay with the server that they reached."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _address_of(url: str) -> tuple[str, int]:
    password, _, rest = url.removeprefix("redis://:").partition("@")
    return password, int(rest.partition(":")[2].partition("/")[0])


def test_a_gate_that_writes_to_a_replica_for_good_after_a_switchover(tmp_path: Path, keys: Keys) -> None:
    with redis_at(tmp_path / "old") as old_url, redis_at(tmp_path / "new") as new_url:
        (old_password, old_port), (new_password, new_port) = _address_of(old_url), _address_of(new_url)
        old, new = redis.Redis.from_url(old_url), redis.Redis.from_url(new_url)
        new.config_set("masterauth", old_password)
        new.config_set("requirepass", old_password)
        new = redis.Redis.from_url(new_url.replace(new_password, old_password), decode_responses=True)
        new.replicaof("127.0.0.1", str(old_port))
        wait_until(lambda: new.info("replication")["master_link_status"] == "up", "the replica follows")
        address = Address(old_port)
        gate = Gate(client(old_url.replace(str(old_port), str(address.port))), keys, publish=lambda *_: None)
        try:
            assert gate.notify("invoices", "a", SPACING) is Answer.STARTED
            gate.hold_polling("invoices", 700)
            gate.look("invoices", ["a"])
            wait_until(lambda: new.exists(keys.runner("invoices", "a")), "the replica has what was written")

            new.replicaof("NO", "ONE")
            address.target = new_port
            old.config_set("masterauth", old_password)
            old.replicaof("127.0.0.1", str(new_port))

            assert gate.notify("invoices", "b", SPACING) is Answer.STARTED
            gate.hold_polling("invoices", 700)
            assert new.exists(keys.runner("invoices", "b"))
            assert gate.notify_many([("invoices", name, SPACING) for name in "ab"]) == [
                Answer.ABSORBED,
                Answer.ABSORBED,
            ]
        finally:
            address.close()


def test_plain_calls_after_a_switchover(tmp_path: Path) -> None:
    with redis_at(tmp_path / "old") as old_url, redis_at(tmp_path / "new") as new_url:
        (old_password, old_port), (_, new_port) = _address_of(old_url), _address_of(new_url)
        redis.Redis.from_url(new_url).config_set("requirepass", old_password)
        address = Address(old_port)
        mine = client(old_url.replace(str(old_port), str(address.port)))
        try:
            mine.set("key", "1")
            address.target = new_port
            redis.Redis.from_url(old_url).replicaof("127.0.0.1", str(new_port))

            with mine.pipeline(transaction=False) as pipe:
                pipe.set("key", "2")
                if redis.__version__.startswith("5."):  # which tries a pipeline no second time, but connects anew
                    with pytest.raises(redis.ReadOnlyError):
                        pipe.execute()
                    pipe.set("key", "2")
                pipe.execute()

            assert mine.get("key") == "2"
        finally:
            address.close()


FORKS = """
import ctypes, os, sys
import pytest
import redis
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Gate, Keys

def connection_of(gate):
    (connection,) = gate._wire._free
    connection.send_command("CLIENT", "ID")
    return int(connection.read_response())

url, prefix = sys.argv[1:]
client, spacing = redis.Redis.from_url(url, decode_responses=True), Spacing(delay=0)
gate = Gate(client, Keys(prefix), publish=lambda *_: None)
gate.notify("invoices", "a", spacing)
read, write = os.pipe()
child = ctypes.PyDLL(None).fork()
if child == 0:
    try:
        gate.notify("invoices", "child", spacing)
        os.write(write, str(connection_of(gate)).encode())
    finally:
        os._exit(0)
os.waitpid(child, 0)
assert int(os.read(read, 100)) != connection_of(gate), "one connection"
(own,) = gate._wire._free
own.send_command("CLIENT", "INFO")
assert "cmd=client" in own.read_response(), "another's reply"
assert gate.look("invoices", ["child"])[0].events == 1
print(client.zcard(Keys(prefix).due("invoices")))
"""


@pytest.mark.usefixtures("redis_client")
def test_a_fork_that_python_was_not_told_of_reads_no_reply_of_its_parent(servers: Servers, keys: Keys) -> None:
    # In a process of its own: with threads, such a fork may stand still for ever.
    done = subprocess.run(
        [sys.executable, "-c", FORKS, servers.redis_url, keys.prefix],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("most", [1, 2])
def test_a_pool_of_few_connections(redis_client: redis.Redis, keys: Keys, most: int) -> None:
    """Threads wait for one another, and none for ever."""
    options = redis_client.connection_pool.connection_kwargs
    url = f"redis://:{options['password']}@{options['host']}:{options['port']}/{options.get('db', 0)}"
    gate = Gate(client(f"{url}?max_connections={most}"), keys, publish=lambda *_: None)

    def work(name: str) -> None:
        for _ in range(20):
            gate.notify("invoices", name, SPACING)
            gate.look("invoices", [name])
            gate.tick("invoices", 1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, ["t0", "t1", "t2", "t3"]))

    assert [status.events for status in gate.look("invoices", ["t0", "t3"])] == [20, 20]
