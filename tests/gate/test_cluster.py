"""The gate on a Redis Cluster: its keys are in one slot, which fails over and moves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from taskbridge.common.server_errors import is_refused
from taskbridge.declaring.policy import Spacing
from taskbridge.embedded import Servers
from taskbridge.errors import Unavailable
from taskbridge.gate import Answer, Gate, Keys, client, deadline, wire
from tests.redis_cluster import Node, RedisCluster, answers, redis_cluster, redis_server
from tests.scraping import free_ports
from tests.transactions.black_hole import BlackHole
from tests.waiting import wait_until

KEYS = Keys("{shop}")
SPACING = Spacing(delay=0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    try:
        with redis_cluster(tmp_path_factory.mktemp("cluster"), replicas=1, password="secret") as running:
            yield running
    except Unavailable as error:
        pytest.skip(str(error))


def without(nodes: list[Node], gone: Node) -> list[Node]:
    return [node for node in nodes if node is not gone]


def gate_at(url: str, *, publishes: bool = False) -> Gate:
    pushed: Any = {"message": "local function publish() end"} if publishes else {"publish": lambda *_: None}
    return Gate(client(url, slot_key=KEYS.owner), KEYS, **pushed)


def test_a_gate_follows_its_slot_to_another_node(cluster: RedisCluster) -> None:
    source = cluster.owner_of(KEYS.owner)
    target = without(cluster.masters, source)[0]
    gate = gate_at(cluster.url_of(target))
    gate.check_server()
    gate.check_scripts()
    assert gate.notify_many([("invoices", name, SPACING) for name in "ab"]) == [Answer.STARTED] * 2
    cluster.begin_moving(KEYS.owner, target)
    with pytest.raises(redis.ResponseError) as refused:
        gate.notify("invoices", "new", SPACING)
    assert is_refused(refused.value), "a worker waits, and asks again"
    cluster.end_moving(KEYS.owner, source, target)
    assert cluster.owner(KEYS.owner) is target
    assert gate.notify("invoices", "a", SPACING) is Answer.ABSORBED
    assert [status.events for status in gate.look("invoices", ["a", "b"])] == [2, 1]


def test_a_gate_follows_a_failover_though_its_url_names_only_the_node_that_died(cluster: RedisCluster) -> None:
    owner = cluster.owner_of(KEYS.owner)
    gate = gate_at(cluster.url_of(owner))
    gate.notify("invoices", "kept", SPACING)
    assert owner.client.wait(1, 5000) == 1, "the replica has it"
    owner.process.stop()

    def is_answered() -> bool:
        with suppress(redis.ConnectionError, redis.ResponseError):
            return gate.notify("invoices", "kept", SPACING) is Answer.ABSORBED
        return False

    wait_until(is_answered, "the promoted replica answers")
    assert gate.look("invoices", ["kept"])[0].events == 2
    wait_until(lambda: cluster.owner(KEYS.owner) not in (None, owner), "all nodes know of it")
    cluster.nodes.remove(owner)


@pytest.fixture
def silent_nodes() -> Iterator[list[socket.socket]]:
    """Servers that accept connections and never answer."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]


def url_of(nodes: list[socket.socket]) -> str:
    return ";".join(f"redis://127.0.0.1:{node.getsockname()[1]}" for node in nodes)


def connections_to(node: socket.socket) -> int:
    """How many connections were made since the last call."""
    node.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            node.accept()[0].close()
            count += 1
    return count


def test_events_get_through_after_one_timeout_though_the_node_that_is_asked_first_is_silent(
    servers: Servers, silent_nodes: list[socket.socket]
) -> None:
    node = BlackHole(servers.redis_url, answers_after=0.005)
    password = urlsplit(servers.redis_url).password
    url = f"{url_of(silent_nodes[:1]).replace('//', f'//:{password}@')};{node.url}"
    gate = Gate(client(url, 1.0, slot_key=KEYS.owner), KEYS, publish=lambda *_: None)

    def is_answered() -> bool:
        with suppress(redis.TimeoutError), deadline(1.0):
            return isinstance(gate.notify("invoices", "acme", SPACING), Answer)
        return False

    assert not is_answered()
    wait_until(is_answered, "the other node is asked", 5)
    connections_to(silent_nodes[0])
    gate._client.connection_pool.disconnect()
    wait_until(is_answered, "the connection is made again", 5)
    assert connections_to(silent_nodes[0]) == 0
    node.close()


def test_a_call_to_a_silent_cluster_takes_no_longer_than_to_a_silent_server(
    silent_nodes: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "TIMEOUT", 0.05)
    with pytest.raises(redis.TimeoutError):
        gate_at(url_of(silent_nodes)).notify("invoices", "acme", SPACING)
    assert 0 < sum(map(connections_to, silent_nodes)) <= 4


def test_another_server_at_a_known_address_is_not_taken_for_a_node_of_the_cluster(tmp_path: Path) -> None:
    port = free_ports()
    with redis_cluster(tmp_path, masters=1) as cluster, redis_server(tmp_path, port, ""):
        gate = gate_at(f"{cluster.url};redis://127.0.0.1:{port}")
        gate.notify("invoices", "acme", SPACING)
        with redis.Redis(port=port) as other:
            wait_until(lambda: answers(other), "the other server answers")
            cluster.nodes[0].process.stop()
            with pytest.raises(redis.ConnectionError):
                gate.notify("invoices", "acme", SPACING)
            assert other.keys() == []
