"""Pipelines with criteria: what waits for its delay, and what no criterion matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taskbridge.cli import console
from taskbridge.common.texts import counted
from taskbridge.common.times import ago, ahead, iso
from taskbridge.store import count_unmatched

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.cli.tenants import TenantView
    from taskbridge.declaring.policy import DelaySinceLastRun
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.store import WaitingRecords

__all__ = ["Delays", "look"]


@dataclass(frozen=True, slots=True)
class Delays:
    """What a pipeline with criteria has beside its tenants' counts. `waiting` has tenants with waiting records only."""

    pipeline: str
    unmatched: int
    waiting: Mapping[str, WaitingRecords]

    def as_json(self, one: TenantView) -> dict[str, Any]:
        """Return what `status --json` says of one tenant beside the fields that every tenant has."""
        waiting = self.waiting.get(one.tenant)
        return {
            "due_at": iso(one.due_at),
            "last_taken_at": iso(one.counts["last_taken_at"]),
            "criterion": waiting.criterion if waiting else None,
            "records_waiting": waiting.waiting if waiting else 0,
        }

    def table(
        self, terminal: Console | console.Pipe, tenants: Sequence[TenantView], title: str | None
    ) -> console.Table:
        """Return the table of `status`. The last run is the one that delays count from: the last that took records."""
        counts = {"handled": "handled"} | ({"quarantine": "quarantined"} if terminal.width > console.NARROW else {})
        columns = ("state", "due", "waiting", *counts, "last run", "criterion")
        texts, optional = ("criterion",), ("quarantine",)
        made = console.Table(terminal, "tenant", *columns, title=title, texts=texts, optional=optional)
        for one in tenants:
            waiting = self.waiting.get(one.tenant)
            made.add_row(
                console.plain(one.tenant),
                one.state,
                ahead(one.due_seconds),
                f"{waiting.waiting if waiting else 0:,}",
                *(f"{one.counts[key]:,}" for key in counts.values()),
                ago(one.counts["last_taken_at"]),
                console.plain(waiting.criterion if waiting else "-"),
            )
        return made

    def sentence(self) -> str:
        """Say how many records no criterion matched, and what shows them."""
        records = counted(self.unmatched, "record matches", "records match")
        return f"{self.pipeline}: {records} no criterion; `taskbridge unmatched list {self.pipeline}` shows why"


def look(runtime: LightRuntime, pipeline: str, policy: DelaySinceLastRun, tenants: Sequence[TenantView]) -> Delays:
    """Return what waits for `tenants`, and how much is unmatched."""
    of_source, pending = runtime.tenants_of(pipeline), [one.tenant for one in tenants if one.counts["pending"]]
    found = {tenant: of_source.waiting(pipeline, tenant, policy.smallest_ms) for tenant in pending}
    waiting = {tenant: records for tenant, records in found.items() if records is not None}
    return Delays(pipeline, count_unmatched(runtime.database, runtime.source_of(pipeline)), waiting)
