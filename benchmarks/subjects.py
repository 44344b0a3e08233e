"""What is compared, seen from the producer: records are added, events are sent, and jobs are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.workplace import Strategy, Workplace
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.gate import State
from taskbridge.integration.tasks import NOTIFY_TASK
from taskbridge.process.runtime import Runtime
from taskbridge.store import record_invoice

__all__ = ["Ours", "Subject", "Theirs", "Work"]


class Work(NamedTuple):
    """How many Celery jobs ran, and of their sweeps how many found records and how many found none."""

    jobs: int
    with_records: int
    without: int


class Subject(Protocol):
    """One way from an event to its handler."""

    def add(self, tenant: str, document: dict[str, Any]) -> int:
        """Commit a record, and return what `event` needs of it."""

    def event(self, tenant: str, record: int) -> None:
        """Tell that the record is there."""

    def begin(self) -> None:
        """Count from here."""

    def is_quiet(self, tenants: Sequence[str]) -> bool:
        """Whether nothing more happens by itself for these tenants, all since `begin`."""

    def work(self, tenants: Sequence[str], calls: int) -> Work:
        """Return what was done for these tenants, whose handler was called so often."""

    def pending(self) -> int:
        """Return how many records nobody handled."""


class Ours:
    """TaskBridge."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._notify_event = runtime.app.tasks[NOTIFY_TASK]

    def add(self, tenant: str, document: dict[str, Any]) -> int:
        """Commit an invoice."""
        record_invoice(self._runtime.engine, tenant, document["number"], document)
        return 0

    def event(self, tenant: str, record: int) -> None:  # noqa: ARG002 - an event names a tenant only
        """Notify."""
        self._notify_event.delay(tenant)

    def begin(self) -> None:
        """Nothing to do: cursors count by tenant."""

    def is_quiet(self, tenants: Sequence[str]) -> bool:
        """Whether the runners have ended."""
        return all(one.state is State.IDLE for one in self._runtime.gate.look(INVOICES, tenants))

    def work(self, tenants: Sequence[str], calls: int) -> Work:
        """Take the runs from the cursors. One handed everything pending over in one call, or found nothing."""
        runs = sum(row["runs"] for row in self._runtime.tenants_of(INVOICES).counts(INVOICES, tenants))
        return Work(runs, calls, runs - calls)

    def pending(self) -> int:
        """Ask the view of records' states."""
        return sum(row["pending"] for row in self._runtime.tenants_of(INVOICES).every_count(INVOICES))


class Theirs:
    """A strategy, on a worker of its workplace."""

    def __init__(self, place: Workplace, strategy: Strategy) -> None:
        self._place = place
        self._strategy = strategy
        self._published = 0

    def add(self, tenant: str, document: dict[str, Any]) -> int:
        """Commit a row."""
        return self._place.add(tenant, document)

    def event(self, tenant: str, record: int) -> None:
        """Do what the strategy does."""
        self._published += self._strategy.event(tenant, record)

    def begin(self) -> None:
        """Forget the jobs that ended."""
        self._place.forget_ended()
        self._published = 0

    def is_quiet(self, tenants: Sequence[str]) -> bool:  # noqa: ARG002 - all jobs are theirs
        """Whether every job that was published has ended."""
        return len(self._place.ended()) >= self._published

    def work(self, tenants: Sequence[str], calls: int) -> Work:  # noqa: ARG002 - the jobs told it themselves
        """Count what the jobs found."""
        jobs = self._place.ended()
        found = [records for job in jobs for records in job]
        return Work(len(jobs), sum(records > 0 for records in found), found.count(0))

    def pending(self) -> int:
        """Count the rows without a flag."""
        return self._place.pending()
