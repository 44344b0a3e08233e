"""Counts what one call costs on the wire, with the real client, the real scripts and the real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from sqlalchemy import make_url

from taskbridge.gate import Keys, Queue
from taskbridge.store import connect
from tests.costs.table import Cost
from tests.costs.wire import Wire, tell_commits
from tests.deployment import Deployment
from tests.inline import Inline

END = "the end of what is counted"


class Counting:
    """Of a connection that counts its round trips: what is sent before an answer is read is one."""

    round_trips = 0
    _asked = False

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        self._asked = True
        above: Any = super()
        above.send_packed_command(*args, **kwargs)

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if self._asked:
            self._asked = False
            Counting.round_trips += 1
        above: Any = super()
        return above.read_response(*args, **kwargs)


def counting(pool: redis.ConnectionPool) -> None:
    """Let the connections that a pool makes from now on count their round trips."""
    pool.disconnect()
    pool.reset()
    pool.connection_class = type("CountingConnection", (Counting, pool.connection_class), {})


class Meter:
    """A deployment whose traffic is counted. `trace` is what the last call made the servers do, in words."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.redis = deployment.redis
        self.keys = Keys(deployment.settings.key_prefix)
        self.inline = Inline(deployment)
        self.runtime = self.inline.runtime
        self.runtime.serves = frozenset(self.runtime.keys.queues)
        for client in (self.runtime.redis, self.runtime.event_redis):
            counting(client.connection_pool)
        self.trace = ""
        url = make_url(deployment.settings.postgres_url).update_query_dict({"options": "-c synchronous_commit=on"})
        self.runtime.engine = connect(url.render_as_string(hide_password=False))
        self._wire = Wire(self.runtime.engine, deployment.logs)
        self._database = self.redis.connection_pool.connection_kwargs["db"]
        self._monitoring = redis.Redis.from_url(deployment.settings.redis_url, decode_responses=True)

    def count(self, call: Callable[[], object]) -> Cost:
        """Return what `call` costs."""
        queued = self._queued()
        Counting.round_trips = 0
        self._wire.read()
        with self._monitoring.monitor() as monitor:  # type: ignore[no-untyped-call]
            call()
            trips = Counting.round_trips
            self.redis.echo(END)
            sent, inside = self._commands(monitor)
        self._wire.read()
        commits = list(self._wire.commits.values())
        statements = ", ".join(self._wire.statements)
        self.trace = f"sent: {_counted(sent)}; in scripts: {_counted(inside)}; SQL: {statements or 'none'}"
        return Cost(
            trips,
            len(sent),
            len(inside),
            self._queued() - queued,
            self._wire.round_trips,
            len(self._wire.statements),
            sum(commit != "off" for commit in commits),
            sum(commit == "off" for commit in commits),
        )

    def close(self) -> None:
        """Close what the counters opened."""
        self.runtime.engine.dispose()
        self._monitoring.close()

    def _queued(self) -> int:
        return sum(int(str(self.redis.llen(queue.value))) for queue in Queue)

    def _commands(self, monitor: Any) -> tuple[list[str], list[str]]:
        """Return the commands that clients sent to this deployment's database, and those that ran inside scripts."""
        sent: list[str] = []
        inside: list[str] = []
        while END not in (seen := monitor.next_command())["command"]:
            if seen["db"] == self._database:
                (inside if seen["client_type"] == "lua" else sent).append(seen["command"].split(" ")[0].upper())
        return sent, inside


def _counted(commands: list[str]) -> str:
    times = Counter(commands).items()
    return ", ".join(name if number == 1 else f"{number} x {name}" for name, number in times) or "none"


@contextmanager
def metered(deployment: Deployment) -> Iterator[Meter]:
    """Count what a deployment does."""
    tell_commits(deployment.engine)
    meter = Meter(deployment)
    try:
        yield meter
    finally:
        meter.close()
