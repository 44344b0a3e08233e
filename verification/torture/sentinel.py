"""Redis behind three Sentinels: a primary and a replica that take turns."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from tests.faults.test_failover import PASSWORD, Watched
from tests.redis_cluster import answers
from tests.scraping import free_ports
from tests.waiting import wait_until

__all__ = ["RedisBehindSentinel"]

DOWN_AFTER_MS: Final = 2000
"""Without an answer for so long, the primary counts as down: longer than a busy machine stalls."""


class RedisBehindSentinel(Watched):
    """`url` and `client` lead to the primary, whichever of the two servers that is."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._servers = dict(zip(self.ports, (self.primary, self.replica), strict=True))
        others = [free_ports(), free_ports()]
        for port in others:
            self._run(port, f"sentinel monitor shop 127.0.0.1 {self.ports[0]} 2\n", "--sentinel")
        kind: Any = redis.Sentinel
        addresses = [("127.0.0.1", port) for port in (self.port, *others)]
        known = kind(addresses, sentinel_kwargs={"decode_responses": True})
        self._sentinels: list[Any] = known.sentinels
        options: dict[str, Any] = {"quorum": 2, "down-after-milliseconds": DOWN_AFTER_MS, "failover-timeout": 2000}
        options |= {"auth-user": "watcher", "auth-pass": PASSWORD}
        for one in self._sentinels:
            wait_until(partial(answers, one), "a Sentinel")
            for name, value in options.items():
                one.sentinel_set("shop", name, value)
        self._others = "".join(f";sentinel://127.0.0.1:{port}" for port in others)
        self.client: redis.Redis = known.master_for(
            "shop", db=3, password=PASSWORD, decode_responses=True, socket_timeout=10
        )
        self.mend()

    @property
    def url(self) -> str:
        return super().url.replace(";", f"{self._others};", 1)

    def wait_until_left(self, old: int) -> None:
        """Wait until all Sentinels name another primary than the one at this port."""
        asked = [one.sentinel_get_master_addr_by_name for one in self._sentinels]
        wait_until(lambda: all(int(ask("shop")[1]) != old for ask in asked), "the replica is the primary")

    def mend(self) -> None:
        """End a cut-off, and wait until every Sentinel sees a primary, the other Sentinels, and a replica in sync."""
        for port in self.ports:
            with redis.Redis(port=port, password=PASSWORD) as server:
                server.execute_command("ACL SETUSER", "watcher", "on", f">{PASSWORD}", "~*", "&*", "+@all")
        wait_until(lambda: all(map(self._sees_all, self._sentinels)), "the replica is in sync", 60)

    def fail_over(self) -> None:
        """Let the replica become the primary, as an operator would."""
        self._sentinels[0].sentinel_failover("shop")

    def signal(self, port: int, number: signal.Signals) -> None:
        """Send a signal to the server at this port."""
        os.kill(self._servers[port].pid, number)

    def restart(self, port: int) -> None:
        """Start a server that was killed again, as a replica without data."""
        self._servers[port].wait(30)
        self._servers[port] = self._serve(port, f"replicaof 127.0.0.1 {self.address()}\n")

    def _sees_all(self, sentinel: Any) -> bool:
        with suppress(redis.RedisError):
            primary, replicas = sentinel.sentinel_master("shop"), sentinel.sentinel_slaves("shop")
            seen = [(one["flags"], one["role-reported"], one["master-link-status"]) for one in replicas]
            others = primary["num-other-sentinels"]
            return (primary["flags"], others, seen) == ("master", len(self._sentinels) - 1, [("slave", "slave", "ok")])
        return False
