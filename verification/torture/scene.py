"""What faults have to do with: the arena, and witnesses.

Each fault brings witnesses: tenants of its own that have work when it strikes and get no event afterwards, so nothing
but the project itself helps them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskbridge.gate import Keys
from tests.waiting import wait_until
from verification.torture.arena import Arena
from verification.torture.kinds import kind_of, tenant_named
from verification.torture.producer import Invoice, Writer
from verification.torture.users import Users
from verification.torture.workers import Worker

__all__ = ["Scene", "Struck", "nothing"]


def nothing() -> None:
    """Do nothing."""


@dataclass
class Scene:
    """One schedule's place."""

    arena: Arena
    writer: Writer
    prefix: str
    """First part of the names of this schedule's tenants."""
    seed: int
    users: Users
    _names: Iterator[int] = field(default_factory=itertools.count)

    def new_tenant(self, pipeline: str | None = None) -> str:
        """Return a tenant of this pipeline; None: every other one is of the other pipeline."""
        number = next(self._names)
        return tenant_named(f"{self.prefix}witness", number, pipeline or kind_of(self.seed + number))

    def some(self, tenant: str, count: int = 6, **behaviour: Any) -> list[Invoice]:
        return [self.writer.invoice(tenant, str(number), behaviour=behaviour) for number in range(count)]

    def busy(self, count: int = 6, *, pipeline: str | None = None, **behaviour: Any) -> str:
        """Return a new tenant that was notified of `count` records."""
        tenant = self.new_tenant(pipeline)
        self.writer.commit(*self.some(tenant, count, **behaviour))
        self.writer.notify(tenant, tries=50)
        return tenant

    def working(self, moment: float, seconds: float = 0.6, *, pipeline: str | None = None, **behaviour: Any) -> str:
        """Return a new tenant in mid-run, with work for `seconds`: its first delivery began `moment` ago."""
        tenant = self.busy(round(seconds * 10), pipeline=pipeline, seconds=0.1, **behaviour)
        self.arena.ledger.wait_for(tenant, bool, 2.0)
        time.sleep(moment)
        return tenant

    def orphaned(self) -> str:
        """Return a new tenant whose producer died between commit and notify."""
        tenant = self.new_tenant()
        self.writer.commit(*self.some(tenant))
        return tenant

    def worker_of(self, tenant: str) -> Worker:
        """Return the worker that has the tenant's batch, else any; at least one other is ready."""
        return self._worker(lambda: self.arena.ledger.under_way(tenant))

    def poller_worker(self, pipeline: str) -> Worker:
        """Return the worker that looks after the pipeline's poller, else any; at least one other is ready."""

        def name() -> str | None:
            held: Any = self.arena.redis.client.get(Keys().tailing(pipeline)) or ""
            noted = self.arena.books / f"ticker-{held.partition(' ')[0]}"
            return noted.read_text() if noted.exists() else None

        return self._worker(lambda: self.arena.in_spite_of_outages(name))

    def _worker(self, name: Callable[[], str | None]) -> Worker:
        workers = self.arena.workers
        wait_until(lambda: len(workers.ready()) >= 2, "two workers ready", 40)
        found, ready = name(), workers.ready()
        return next((one for one in ready if one.name == found), ready[0])


@dataclass(frozen=True)
class Struck:
    """A fault that struck.

    `since`: the moment from which its bound counts, `own` a later one for some tenants; `tenants`: whom it met;
    `lasted`: how long it did. `to_the_end`: the bound is for all their records, and not for their next delivery.
    `crowd`: how many others have more to do than a run gets through; who has as much waits for its turn behind them.
    `holds_others`: for how many seconds more than by its own bound it may hold up a tenant that another fault met.
    `longer`: by how many seconds the bound is longer for some tenants. `undo` is called when they were waited for.
    `took`: seconds from `since` of a recovery that the strike measured itself. `violations`: what it saw that must not
    be.
    """

    since: float
    tenants: tuple[str, ...]
    lasted: float = 0.0
    to_the_end: bool = False
    crowd: int = 0
    holds_others: float = 0.0
    undo: Callable[[], None] = nothing
    own: Mapping[str, float] = field(default_factory=dict)
    longer: Mapping[str, float] = field(default_factory=dict)
    took: float | None = None
    violations: tuple[str, ...] = ()
