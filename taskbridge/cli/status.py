"""`taskbridge status`: how every tenant stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from taskbridge.app import app
from taskbridge.cli import delays, screen, surroundings
from taskbridge.cli.delays import Delays
from taskbridge.cli.moments import ago, iso
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.cli.surroundings import Origin
from taskbridge.cli.tenants import TenantView, view
from taskbridge.names import check_tenant
from taskbridge.runtime import Runtime, runtime

__all__ = ["status"]


@dataclass(frozen=True, slots=True)
class _Standing:
    """One pipeline's tenants; `delays` where it has criteria."""

    tenants: list[TenantView]
    delays: Delays | None


@click.command(
    short_help="Show how every tenant stands.", epilog=examples("taskbridge status", "taskbridge status France --json")
)
@click.argument("tenant", required=False)
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@data_dir_option
@json_option
def status(tenant: str | None, pipeline: str | None, data_dir: Path, as_json: bool) -> None:
    """Show how every tenant stands, or TENANT alone.

    Events and runs are those of the tenant's last burst; a lease is the time in which one more event belongs to it.

    Where records wait for a delay since the tenant's last run, it shows when they are due, how many wait, and which
    criterion set that; and how many records of the pipeline no criterion matched.

    Exit status: 0; 1 where TENANT has no records and no runner.
    """
    if tenant is not None:
        check_tenant(tenant)
    surroundings.need_data(data_dir)
    with surroundings.enter(data_dir) as origin:
        here = runtime(app)
        surroundings.ready(here, migrate=origin is Origin.OURS)
        names = here.pipelines.names() if pipeline is None else [here.pipelines[pipeline].name]
        found = {name: _look(here, name, tenant) for name in names}
    if as_json:
        screen.emit_json({"pipelines": {name: _as_json(one) for name, one in found.items()}})
    else:
        _show(found)
    if tenant is not None and not any(one.tenants for one in found.values()):
        screen.complain(f"no tenant is called {tenant!r}: it has neither records nor a runner")
        raise click.exceptions.Exit(1)


def _look(here: Runtime, pipeline: str, tenant: str | None) -> _Standing:
    tenants = view(here, pipeline, tenant)
    return _Standing(tenants, delays.look(here, pipeline, tenants))


def _as_json(found: _Standing) -> dict[str, Any]:
    if found.delays is None:
        return {"tenants": {one.tenant: _tenant_as_json(one) for one in found.tenants}}
    tenants = {one.tenant: _tenant_as_json(one) | found.delays.as_json(one) for one in found.tenants}
    return {"tenants": tenants, "unmatched": found.delays.unmatched}


def _tenant_as_json(one: TenantView) -> dict[str, Any]:
    return {
        "state": str(one.runner.state),
        "held": one.runner.held,
        "lease_seconds": round(one.lease_seconds, 3),
        **{name: one.counts[name] for name in ("pending", "handled", "quarantined")},
        "last_run_at": iso(one.last_run_at),
        **{name: one.counts[name] for name in ("burst_events", "burst_runs", "first_event_ms")},
        **{name: one.counts[name] for name in ("events", "runs", "sweeps", "records", "failures", "last_error")},
    }


def _show(found: dict[str, _Standing]) -> None:
    console = screen.stdout()
    for name, one in found.items():
        title = name if len(found) > 1 else None
        if not one.tenants:
            console.print(f"{name}: no tenants")
        elif one.delays is None:
            console.print(_table(console, one.tenants, title))
        else:
            console.print(one.delays.table(console, one.tenants, title))
        for tenant in one.tenants:
            if tenant.counts["failures"]:
                console.print(_failure(tenant))
        if one.delays is not None and one.delays.unmatched:
            console.print(one.delays.sentence())


def _table(console: Console, tenants: list[TenantView], title: str | None) -> Table:
    columns = ("state", "lease", "pending", "handled", "quarantine", "last run", "events", "runs")
    made = screen.table(console, "tenant", *columns, title=title)
    for one in tenants:
        counts = [f"{one.counts[key]:,}" for key in ("pending", "handled", "quarantined")]
        burst = [f"{one.counts[key]:,}" for key in ("burst_events", "burst_runs")]
        lease = f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-"
        made.add_row(screen.cell(one.tenant), one.state, lease, *counts, ago(one.last_run_at), *burst)
    return made


def _failure(one: TenantView) -> str:
    times = one.counts["failures"]
    error = one.counts["last_error"] or "no error was written down"
    return screen.plain(f"{one.tenant}: failed {times:,} {'time' if times == 1 else 'times'} in a row, last: {error}")
