"""Connections of the gate: a server that is not the one any more, a fork, a pool of one."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from taskbridge.declaring.policy import Spacing
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
            gate.hold_tail("invoices", 700)
            gate.look("invoices", ["a"])

            new.replicaof("NO", "ONE")
            address.target = new_port
            old.config_set("masterauth", old_password)
            old.replicaof("127.0.0.1", str(new_port))

            assert gate.notify("invoices", "b", SPACING) is Answer.STARTED
            gate.hold_tail("invoices", 700)
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
                pipe.execute()

            assert mine.get("key") == "2"
        finally:
            address.close()


def test_a_fork_that_python_was_not_told_of_reads_its_parents_replies(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, publish=lambda *_: None)
    gate.notify("invoices", "a", SPACING)
    libc: Any = ctypes.PyDLL(None)
    read, write = os.pipe()

    child = libc.fork()
    if child == 0:
        try:
            gate.notify("invoices", "child", SPACING)
            os.write(write, str(_connection_of(gate)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    own = gate._wire._free[0]
    assert int(os.read(read, 100)) != _connection_of(gate)
    assert gate.look("invoices", ["child"])[0].events == 1
    own.send_command("CLIENT", "INFO")
    assert "cmd=client" in own.read_response()
    assert _sources(redis_client, keys) == 2


def _connection_of(gate: Gate) -> int:
    """Return the number that Redis gave to the connection that the gate keeps."""
    (connection,) = gate._wire._free
    connection.send_command("CLIENT", "ID")
    return int(connection.read_response())


def _sources(redis_client: redis.Redis, keys: Keys) -> int:
    found: Any = redis_client.zcard(keys.due("invoices"))
    return int(found)


@pytest.mark.parametrize("most", [1, 2])
def test_a_pool_of_few_connections(redis_client: redis.Redis, keys: Keys, most: int) -> None:
    options = redis_client.connection_pool.connection_kwargs
    url = f"redis://:{options['password']}@{options['host']}:{options['port']}/{options.get('db', 0)}"
    gate = Gate(client(f"{url}?max_connections={most}"), keys, publish=lambda *_: None)
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(20):
                gate.notify("invoices", name, SPACING)
                gate.look("invoices", [name])
                gate.tick("invoices", 1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"t{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert [status.events for status in gate.look("invoices", ["t0", "t3"])] == [20, 20]
