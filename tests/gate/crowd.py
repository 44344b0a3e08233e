"""Tenants of one pipeline under an injected clock; the gate and its Redis are real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import (
    Answer,
    Begun,
    Blame,
    CircuitStatus,
    Keys,
    Outcome,
    Queue,
    RunnerStatus,
    Settlement,
    State,
    Timing,
)
from taskbridge.testing.clock import InjectedClock
from tests.runs import begin, settle

PIPELINE = "invoices"
SPACING = Spacing(delay=0)
TIMING = Timing(runner_ttl=5_000, republish=4_000)
DAY_US = 86_400_000_000


class Crowd:
    """What tests of cap, wait queue and circuit do all the time.

    Times are milliseconds since the crowd was made. `published` has the queue and the tenant of each run's message,
    in their order; a tenant's last message is the one that `begin` takes.
    """

    def __init__(self, client: redis.Redis, keys: Keys, most_runs: int = 0) -> None:
        self.client, self.keys, self.most_runs = client, keys, most_runs
        self.published: list[tuple[Queue, str]] = []
        self.tokens: dict[str, str] = {}
        self.gate = InjectedClock(client, keys, TIMING, publish=self._publish)
        # A day ahead of the server's clock, so that no key goes by itself; a whole second.
        self.gate.start_at(int(client.time()[0]) * 1_000_000 + DAY_US)
        self.start_ms = self.gate.us // 1000

    def _publish(self, queue: Queue, _: str, tenant: str, token: str) -> None:
        self.published.append((queue, tenant))
        self.tokens[tenant] = token

    # What happens

    def notify(self, *tenants: str, spacing: Spacing = SPACING) -> None:
        for tenant in tenants:
            self.gate.notify(PIPELINE, tenant, spacing)

    def begin(self, tenant: str) -> Begun | Answer:
        return begin(self.gate, RunKey(PIPELINE, tenant, self.tokens[tenant]), most_runs=self.most_runs)

    def begin_of(self, tenant: str) -> Begun | Answer:
        """Let the tenant have an event, and its run arrive."""
        self.notify(tenant)
        return self.begin(tenant)

    def start(self, *tenants: str) -> Begun:
        """Let each have an event and begin; return what the last one learned."""
        *others, last = tenants
        if others:
            self.start(*others)
        begun = self.begin_of(last)
        assert isinstance(begun, Begun), (last, begun)
        return begun

    def put_in_queue(self, *tenants: str) -> None:
        """Let each have an event and be postponed, a millisecond after the one before it."""
        for tenant in tenants:
            self.passes(1)
            self.notify(tenant)
            assert self.begin(tenant) is Answer.POSTPONED, tenant

    def settle(self, tenant: str, outcome: Outcome = Outcome.DONE, spacing: Spacing = SPACING, **how: Any) -> Answer:
        given = {name: how.pop(name) for name in ("most_runs", "most_in_flight") if name in how}
        key, most = RunKey(PIPELINE, tenant, self.tokens[tenant]), {"most_runs": self.most_runs} | given
        return settle(self.gate, key, Settlement(outcome, **how), spacing, **most)

    def fail(self, tenant: str, blame: Blame = Blame.DOWNSTREAM, retry_ms: int = 500, **how: Any) -> None:
        """End the tenant's run with a failure."""
        assert self.settle(tenant, Outcome.RETRY, blame=blame, retry_ms=retry_ms, **how) is Answer.HELD

    def fails(self, *tenants: str, blame: Blame = Blame.DOWNSTREAM) -> None:
        """Let each begin and fail, one after the other."""
        for tenant in tenants:
            self.come(tenant)
            assert isinstance(self.begin(tenant), Begun), tenant
            self.fail(tenant, blame)

    def another_says_so(self) -> None:
        """Let a tenant blame the downstream, find nothing to do at its next try, and be idle again."""
        self.fails("another")
        self.come("another")
        self.begin("another")
        assert self.settle("another", took=0) is Answer.FINISHED

    def come(self, tenant: str) -> None:
        """Publish the tenant's run: by an event, or by its deadline."""
        state = self.status(tenant).state
        if state is State.IDLE:
            self.notify(tenant)
        elif state is State.WAITING:
            self.deadline_passes(tenant)

    def expire(self, *tenants: str, early: bool = False) -> list[Answer]:
        return self.gate.expire(PIPELINE, tenants, early=early)

    def passes(self, ms: int) -> None:
        self.gate.us += ms * 1000

    def until(self, moment: int) -> None:
        """Let time pass until the next command sees the first microsecond of `moment`."""
        self.gate.us = max(self.gate.us, (self.start_ms + moment) * 1000 - 1)

    def turns(self) -> list[str]:
        """Return who waits for its turn, the next first."""
        return [member.removeprefix(f"{PIPELINE}:") for member in self.gate.fair_queue(100_000)]

    def deadline_passes(self, tenant: str) -> Answer:
        due = self.due(tenant)
        assert due is not None, tenant
        self.until(due)
        return self.expire(tenant)[0]

    # How things stand

    def now(self) -> int:
        return self.gate.us // 1000 - self.start_ms

    def status(self, tenant: str) -> RunnerStatus:
        return self.gate.look(PIPELINE, [tenant])[0]

    def due(self, tenant: str) -> int | None:
        deadline = self.status(tenant).deadline_ms
        return None if deadline is None else deadline - self.start_ms

    def wait_queue(self) -> Sequence[str]:
        found: Any = self.client.zrange(self.keys.wait_queue(PIPELINE), 0, -1)
        return list(found)

    def slots(self) -> set[str]:
        found: Any = self.client.zrange(self.keys.running(PIPELINE), 0, -1)
        return set(found)

    def circuit(self) -> CircuitStatus:
        return self.gate.circuit(PIPELINE)

    def lifetime(self, key: str) -> int:
        """Milliseconds until `key` goes by itself: -1 never, -2 it is not there."""
        left: Any = self.client.pttl(key)
        return int(left)
