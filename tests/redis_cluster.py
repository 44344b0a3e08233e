"""A Redis Cluster of the machine's Redis server, for tests and drills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import redis
from redis.crc import key_slot

from taskbridge.embedded import Guarded
from taskbridge.embedded.binaries import find_redis
from tests.scraping import free_ports
from tests.waiting import wait_until

__all__ = ["Node", "RedisCluster", "answers", "redis_cluster", "redis_server"]

SLOTS: Final = 16384
BUS: Final = 10_000
"""By how much the port on which the nodes talk to each other is higher."""
SETTINGS: Final = (
    'save ""\ncluster-enabled yes\ncluster-config-file nodes-{port}.conf\ncluster-node-timeout 500\n'
    "cluster-replica-validity-factor 0\nrepl-diskless-sync-delay 0\n{password}"
)


@contextmanager
def redis_server(directory: Path, port: int, settings: str, *options: str) -> Iterator[Guarded]:
    """Run the machine's Redis server with `settings`, as in its file of settings."""
    file = directory / f"{port}.conf"
    file.write_text(f"bind 127.0.0.1\nport {port}\ndir {directory}\n{settings}")
    command: list[str | Path] = [find_redis(), file, *options]
    with (
        (directory / f"{port}.log").open("wb") as output,
        Guarded(command, output=output, directory=directory) as running,
    ):
        yield running


def answers(client: redis.Redis) -> bool:
    """Whether the server of a client answers."""
    with suppress(redis.RedisError):
        return bool(client.ping())
    return False


class Node:
    """A server of the cluster: its `process` and a plain client of it."""

    def __init__(self, port: int, process: Guarded, password: str) -> None:
        self.port, self.process = port, process
        self.client: Any = redis.Redis(port=port, password=password or None, decode_responses=True)
        wait_until(lambda: answers(self.client), "the node answers")
        self.id: str = self.call("MYID")

    def call(self, *command: Any) -> Any:
        """Send a CLUSTER command."""
        return self.client.execute_command(f"CLUSTER {command[0]}", *command[1:])

    def knows(self, count: int) -> bool:
        """Whether this node knows so many nodes, itself included, and has shaken hands with them."""
        nodes: Any = self.client.cluster("NODES")
        return len(nodes) == count and not any("handshake" in node["flags"] for node in nodes.values())


class RedisCluster:
    """Masters with the same number of slots each, and some replicas of every master; see `redis_cluster`."""

    def __init__(self, nodes: list[Node], masters: int, password: str) -> None:
        self.nodes, self._password = nodes, password
        self.masters = nodes[:masters]
        first, *others = nodes
        for node in others:
            first.call("MEET", "127.0.0.1", node.port)
        for at, node in enumerate(self.masters):
            node.call("ADDSLOTS", *range(at * SLOTS // masters, (at + 1) * SLOTS // masters))
        wait_until(lambda: all(node.knows(len(nodes)) for node in nodes), "all know each other")
        for at, node in enumerate(nodes[masters:]):
            node.call("REPLICATE", self.masters[at % masters].id)
        wait_until(lambda: all(self._is_up(node) for node in nodes), "the cluster is up")

    def _is_up(self, node: Node) -> bool:
        link: Any = node.client.info("replication").get("master_link_status", "up")
        info: Any = node.client.cluster("INFO")
        return bool(link == "up" and info["cluster_state"] == "ok")

    @property
    def url(self) -> str:
        """The URL with all nodes, as TASKBRIDGE_REDIS_URL takes it."""
        return self.url_of(*self.nodes)

    def url_of(self, *nodes: Node) -> str:
        """The URL with some of the nodes."""
        return ";".join(f"redis://:{self._password}@127.0.0.1:{node.port}" for node in nodes)

    def owner(self, key: str, asked: Node | None = None) -> Node | None:
        """The node with the slot of a key, as `asked` sees it (by default, any that answers); None: nobody has it."""
        asked = asked or next(node for node in self.nodes if answers(node.client))
        slot = key_slot(key.encode())
        for first, last, (_, port, *_), *_ in asked.client.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        return None

    def owner_of(self, key: str) -> Node:
        """The node with the slot of a key; fails if nobody has it."""
        owner = self.owner(key)
        assert owner is not None, "nobody has the slot"
        return owner

    def begin_moving(self, key: str, to: Node) -> Node:
        """Begin to move the slot of a key to another master; return the node that has it until `end_moving`."""
        slot, source = key_slot(key.encode()), self.owner_of(key)
        to.call("SETSLOT", slot, "IMPORTING", source.id)
        source.call("SETSLOT", slot, "MIGRATING", to.id)
        return source

    def end_moving(self, key: str, source: Node, to: Node) -> None:
        """Move the keys of the slot, then the slot."""
        slot = key_slot(key.encode())
        password = ("AUTH", self._password) if self._password else ()
        while keys := source.call("GETKEYSINSLOT", slot, 100):
            source.client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, *password, "KEYS", *keys)
        for node in (to, source, *self.masters):
            if answers(node.client) and node.client.role()[0] == "master":
                node.call("SETSLOT", slot, "NODE", to.id)


@contextmanager
def redis_cluster(
    directory: Path, *, masters: int = 3, replicas: int = 0, password: str = ""
) -> Iterator[RedisCluster]:
    """Run a cluster in `directory`, with so many replicas of each master.

    Raises:
        Unavailable: the machine has no Redis server.
    """
    secret = f"requirepass {password}\nmasterauth {password}\n" if password else ""
    with ExitStack() as stack:
        nodes = []
        for _ in range(masters * (1 + replicas)):
            port = free_ports(2, apart=BUS)
            settings = SETTINGS.format(port=port, password=secret)
            nodes.append(Node(port, stack.enter_context(redis_server(directory, port, settings)), password))
            stack.callback(nodes[-1].client.close)
        yield RedisCluster(nodes, masters, password)
