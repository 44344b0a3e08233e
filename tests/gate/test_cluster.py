"""The gate on a Redis Cluster: its keys are in one slot, which fails over and moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from taskbridge.common.server_errors import is_refused
from taskbridge.declaring.policy import Spacing
from taskbridge.errors import Unavailable
from taskbridge.gate import Answer, Gate, Keys, client
from tests.redis_cluster import Node, RedisCluster, redis_cluster
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
