"""Connections of the gate: a server that is not the one any more, a fork, a pool of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from sqlalchemy import make_url

from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Servers
from taskbridge.embedded.redis_server import RedisServer
from taskbridge.errors import Unavailable
from taskbridge.gate import Answer, Gate, Keys, client
from tests.ending import ended
from tests.scraping import free_ports
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until

SPACING = Spacing(delay=0)


@contextmanager
def redis_at(directory: Path) -> Iterator[str]:
    """A Redis server of its own; its URL."""
    directory.mkdir()
    server, port = RedisServer(directory), free_ports()
    with (directory / "output").open("wb") as output, server.start(port, output) as process:
        wait_until(lambda: server.answers(port, process.pid), "the server answers")
        yield server.url(port)


def test_calls_that_go_to_a_replica_for_good_after_a_switchover(tmp_path: Path, keys: Keys) -> None:
    with redis_at(tmp_path / "old") as old_url, redis_at(tmp_path / "new") as new_url:
        (old, to_old), (new, to_new) = [
            (redis.Redis.from_url(url, decode_responses=True), make_url(url)) for url in (old_url, new_url)
        ]
        password = str(to_old.password)
        new.config_set("masterauth", password)
        new.config_set("requirepass", password)
        new = redis.Redis.from_url(to_new.set(password=password).render_as_string(False), decode_responses=True)
        new.replicaof("127.0.0.1", str(to_old.port))
        wait_until(lambda: new.info("replication")["master_link_status"] == "up", "the replica follows")
        # Connections that are open stay with the server that they reached.
        address = BlackHole(old_url)
        gate, plain = Gate(client(address.url), keys, publish=lambda *_: None), client(address.url)
        assert gate.notify("invoices", "a", SPACING) is Answer.STARTED
        gate.hold_polling("invoices", 700)
        gate.look("invoices", ["a"])
        plain.set("key", "1")
        wait_until(lambda: new.exists("key"), "the replica has what was written")

        new.replicaof("NO", "ONE")
        address._target = (to_new.host, to_new.port)
        old.config_set("masterauth", password)
        old.replicaof("127.0.0.1", str(to_new.port))

        assert gate.notify("invoices", "b", SPACING) is Answer.STARTED
        gate.hold_polling("invoices", 700)
        assert new.exists(keys.runner("invoices", "b"))
        answers = gate.notify_many([("invoices", name, SPACING) for name in "ab"])
        assert answers == [Answer.ABSORBED, Answer.ABSORBED]
        with plain.pipeline(transaction=False) as pipe:
            pipe.set("key", "2")
            if redis.__version__.startswith("5."):  # which tries a pipeline no second time, but connects anew
                with pytest.raises(redis.ReadOnlyError):
                    pipe.execute()
                pipe.set("key", "2")
            pipe.execute()
        assert new.get("key") == "2"
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
    done = ended([sys.executable, "-c", FORKS, servers.redis_url, keys.prefix])

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


def test_a_redis_that_is_too_old_is_refused_with_the_remedy(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(redis_client, keys, publish=lambda *_: None)
    gate.check_server()
    monkeypatch.setattr("taskbridge.gate.inspector.OLDEST_REDIS", (99, 1))
    with pytest.raises(Unavailable, match=r"Redis [\d.]+ is too old: upgrade it to 99.1 or newer"):
        gate.check_server()
