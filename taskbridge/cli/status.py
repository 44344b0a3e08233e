"""`taskbridge status`: how every tenant stands."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from taskbridge.app import app
from taskbridge.cli import screen, surroundings
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.cli.surroundings import Origin
from taskbridge.cli.tenants import TenantView, view
from taskbridge.names import check_tenant
from taskbridge.runtime import runtime

__all__ = ["status"]


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

    Exit status: 0; 1 where TENANT has no records and no runner.
    """
    if tenant is not None:
        check_tenant(tenant)
    surroundings.need_data(data_dir)
    with surroundings.enter(data_dir) as origin:
        here = runtime(app)
        surroundings.ready(here, migrate=origin is Origin.OURS)
        names = here.pipelines.names() if pipeline is None else [here.pipelines[pipeline].name]
        views = {name: view(here, name, tenant) for name in names}
    if as_json:
        screen.emit_json({"pipelines": {name: {"tenants": _as_json(found)} for name, found in views.items()}})
    else:
        _show(views)
    if tenant is not None and not any(views.values()):
        screen.complain(f"no tenant is called {tenant!r}: it has neither records nor a runner")
        raise click.exceptions.Exit(1)


def _as_json(tenants: list[TenantView]) -> dict[str, Any]:
    return {
        one.tenant: {
            "state": str(one.runner.state),
            "held": one.runner.held,
            "lease_seconds": round(one.lease_seconds, 3),
            **{name: one.counts[name] for name in ("pending", "handled", "quarantined")},
            "last_run_at": one.last_run_at.astimezone(UTC).isoformat() if one.last_run_at else None,
            **{name: one.counts[name] for name in ("burst_events", "burst_runs", "first_event_ms")},
            **{name: one.counts[name] for name in ("events", "runs", "sweeps", "records", "failures", "last_error")},
        }
        for one in tenants
    }


def _show(views: dict[str, list[TenantView]]) -> None:
    console = screen.stdout()
    for name, tenants in views.items():
        if not tenants:
            console.print(f"{name}: no tenants")
            continue
        columns = ("state", "lease", "pending", "handled", "quarantine", "last run", "events", "runs")
        table = screen.table(console, "tenant", *columns, title=name if len(views) > 1 else None)
        for one in tenants:
            counts = [f"{one.counts[key]:,}" for key in ("pending", "handled", "quarantined")]
            burst = [f"{one.counts[key]:,}" for key in ("burst_events", "burst_runs")]
            lease = f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-"
            table.add_row(screen.cell(one.tenant), one.state, lease, *counts, _ago(one.last_run_at), *burst)
        console.print(table)
        for one in tenants:
            if one.counts["failures"]:
                console.print(_failure(one))


def _failure(one: TenantView) -> str:
    times = one.counts["failures"]
    error = one.counts["last_error"] or "no error was written down"
    return screen.plain(f"{one.tenant}: failed {times:,} {'time' if times == 1 else 'times'} in a row, last: {error}")


def _ago(at: datetime | None) -> str:
    """Say how long ago by this machine's clock; one that goes behind the server's shows 0 s."""
    if at is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit} ago"
    return f"{seconds:.0f}s ago"
