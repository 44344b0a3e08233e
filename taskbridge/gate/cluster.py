"""Connections to a Redis Cluster, which a deployment uses as one server: the node that has its slot.

All keys of a deployment are in one slot, because their prefix is a hash tag, such as `{shop}`. Before a connection is
used, it asks for a key of the deployment, and follows the redirection if the node does not have the slot. After a
failover or a move of the slot, nodes answer MOVED, and `taskbridge.gate.wire` reconnects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.exceptions import NoPermissionError, ResponseError

from taskbridge.common.server_errors import REDIS_AWAY, is_switched

__all__ = ["Nodes", "to_slot"]

MOST_REDIRECTIONS: Final = 5
_MOVED: Final = re.compile(r"(?:MovedError|ResponseError MOVED) \d+ (.*):(\d+)")
"""The error of a node that does not have the slot; redis-py 5 has its class for a client of clusters only."""

Address = tuple[str, int]


class Nodes:
    """The addresses of a cluster's nodes, in the order in which the connections of a pool try them.

    Args:
        urls: the nodes to ask first.
        key: any key of the deployment.
    """

    def __init__(self, urls: list[str], key: str) -> None:
        self.key = key
        parts = map(urlsplit, urls)
        self._configured: list[Address] = [(part.hostname or "localhost", part.port or 6379) for part in parts]
        self.addresses = self._configured
        self.are_known = False
        """Whether a node has listed the nodes of its cluster."""

    def found(self, owner: Address, others: list[Address]) -> None:
        """Remember which node has the slot, and the other nodes, which are asked when it is gone."""
        self.addresses = [*dict.fromkeys([owner, *others, *self._configured])]

    def failed(self, address: Address) -> None:
        """Try this address last from now on."""
        self.addresses = [*(other for other in self.addresses if other != address), address]


class _ToSlot:
    """Mixin for a redis-py connection that connects to the node with the slot."""

    host: str
    port: int
    _sock: Any

    def __init__(self, *, nodes: Nodes, **options: Any) -> None:
        self._nodes = nodes
        super().__init__(**options)

    def _connect_to_slot(self, connect: Callable[[], object]) -> None:
        """Connect to the node with the slot; nodes are asked one after the other, until one does not answer in time.

        That one may have used up the time of the call. The next attempt begins with another node.
        """
        if self._sock is not None:
            return
        failure: Exception | None = None
        for address in self._nodes.addresses:
            try:
                self._follow(address, connect)
            except redis.RedisError as error:
                if not isinstance(error, REDIS_AWAY) and not is_switched(error):
                    raise
                self._nodes.failed(address)
                if isinstance(error, redis.TimeoutError):
                    raise
                failure = error
            else:
                return
        raise failure or redis.ConnectionError("no node of the cluster is known")

    def _follow(self, address: Address, connect: Callable[[], object]) -> None:
        connection: Any = self
        for _ in range(MOST_REDIRECTIONS):
            self.host, self.port = address
            connect()
            try:
                self._ask("GET", self._nodes.key)
                self._nodes.found(address, self._others())
            except BaseException as error:
                connection.disconnect()
                moved = _MOVED.fullmatch(f"{type(error).__name__} {error}")
                if moved is None:
                    raise
                # A node that does not know the name under which it is reached leaves it out.
                address = moved[1] or self.host, int(moved[2])
            else:
                return
        raise redis.ConnectionError("the nodes of the cluster do not agree on who has the slot")

    def _others(self) -> list[Address]:
        """Return the nodes that this one knows; none if it is a single server, or does not allow the command."""
        try:
            ranges = self._ask("CLUSTER", "SLOTS")
        except NoPermissionError:
            return []
        except ResponseError as error:
            if self._nodes.are_known:
                raise redis.ConnectionError("the server at this address is no node of the cluster") from error
            return []
        self._nodes.are_known = True
        return [(node[0] or self.host, node[1]) for _, _, *nodes in ranges for node in nodes]

    def _ask(self, *command: str) -> Any:
        connection: Any = self
        connection.send_command(*command, check_health=False)
        return connection.read_response()


def to_slot(kind: type) -> type:
    """Return a subclass of a redis-py connection class that takes `nodes`, and connects to the one with the slot."""
    # A connection that is used again after it broke does not go through `connect`, since redis-py 6.
    name = "connect_check_health" if hasattr(kind, "connect_check_health") else "connect"
    connect = getattr(kind, name)

    def connect_to_slot(self: Any, *args: Any, **options: Any) -> None:
        self._connect_to_slot(lambda: connect(self, *args, **options))

    return type(f"Slot{kind.__name__}", (_ToSlot, kind), {name: connect_to_slot})
