"""What `taskbridge up --exit-when-idle` did, in figures."""

from __future__ import annotations

from typing import Any

from taskbridge.cli import console
from taskbridge.cli.sending import Sending
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.process.runtime import Runtime

__all__ = ["collect", "show"]

_STATES = ("handled", "pending", "quarantined")
_COUNTERS = ("events", "runs", "sweeps", "records", "first_event_ms")


def collect(runtime: Runtime, sent: Sending, seconds: float) -> dict[str, Any]:
    """Return the figures.

    The first three are the file's, `seconds` is from the first invoice sent until idle, and all others are those of
    the database, earlier imports included. `first_event_ms` is from a burst's first event to the call with its first
    batch.
    """
    tenants = runtime.tenants_of(INVOICES)
    counts = list(tenants.every_count(INVOICES))
    deliveries, duplicates = tenants.delivery_counts(INVOICES)
    return {
        "imported": sent.written,
        "unchanged": sent.unchanged,
        "problems": len(sent.file.problems),
        **{state: sum(row[state] for row in counts) for state in _STATES},
        "deliveries": deliveries,
        "duplicate_deliveries": duplicates,
        "seconds": round(seconds, 3),
        "tenants": {row["tenant"]: {name: row[name] for name in _COUNTERS} for row in counts},
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures for people."""
    terminal = console.stdout()
    table = console.Table(terminal, "tenant", "events", "runs", "sweeps", "records", "first event (ms)")
    for tenant, row in figures["tenants"].items():
        first = row["first_event_ms"]
        numbers = [f"{row[name]:,}" for name in _COUNTERS[:-1]]
        table.add_row(console.plain(tenant), *numbers, "-" if first is None else f"{first:,}")
    if table.rows:
        terminal.print(table)
    terminal.print(_sentence(figures))


def _sentence(figures: dict[str, Any]) -> str:
    counts = {name: f"{figures[name]:,}" for name in ("imported", "unchanged", *_STATES, "deliveries")}
    return (
        f"{counts['imported']} invoices imported, {counts['unchanged']} unchanged, in {figures['seconds']:.1f} s; "
        f"{counts['handled']} records handled, {counts['pending']} pending, {counts['quarantined']} in quarantine; "
        f"{counts['deliveries']} deliveries, {figures['duplicate_deliveries'] or 'none'} of them twice."
    )
