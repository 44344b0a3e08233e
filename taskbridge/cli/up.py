"""`taskbridge up`: run servers and workers on this machine until they are stopped or idle."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import DEFAULT_DATA_DIR, data_dir_option, examples, json_option
from taskbridge.common.texts import spoken

if TYPE_CHECKING:
    from taskbridge.cli.workers import Worker
    from taskbridge.process.runtime import Runtime

__all__ = ["up"]

_STATES: Final = ("handled", "pending", "quarantined")
_COUNTERS: Final = ("events", "runs", "sweeps", "records", "first_event_ms")


@click.command(epilog=examples("taskbridge up", "taskbridge up --import invoices.csv --exit-when-idle --json"))
@click.option(
    "--import", "file", type=click.Path(path_type=Path), metavar="FILE", help="First import this CSV file of invoices."
)
@click.option("--tenant-column", default="Country", metavar="COLUMN", help="The column with the tenant.")
@click.option("--key-column", default="InvoiceNo", metavar="COLUMN", help="The column with the key.")
@click.option("--exit-when-idle", is_flag=True, help="Exit with a report once all records are handled.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="With --exit-when-idle: how long to wait.",
)
@click.option(
    "--workers", type=click.IntRange(0, 64), default=1, help="Number of worker processes; 0 to run your own workers."
)
@click.option("--concurrency", type=click.IntRange(1, 1024), default=2, help="Runs per worker.")
@data_dir_option
@json_option
def up(
    file: Path | None,
    tenant_column: str,
    key_column: str,
    exit_when_idle: bool,
    timeout: float | None,
    workers: int,
    concurrency: int,
    as_json: bool,
) -> None:
    """Run everything on this machine. Postgres and Redis are embedded unless they are configured.

    Ctrl-C stops everything. A worker that dies is restarted. Workers log to worker-1.log, worker-2.log and so on in the
    data directory.
    """
    if not exit_when_idle and (as_json or timeout):
        raise click.UsageError("--json and --timeout require --exit-when-idle")
    if exit_when_idle and not workers:
        raise click.UsageError("--exit-when-idle needs a worker: omit --workers 0")
    from taskbridge import store
    from taskbridge.cli import workers as processes
    from taskbridge.cli.import_csv import read_invoices, send_invoices
    from taskbridge.declaring.pipeline import INVOICES

    invoices = {} if file is None else read_invoices(file, tenant_column, key_column)
    console.tell("taskbridge: starting")
    with environment.served() as ours:
        runtime = environment.runtime()
        store.check_version(runtime.engine)
        store.migrate(runtime.engine)
        runtime.check()
        if invoices:
            # Raises an error if no pipeline would handle them.
            _ = runtime.pipelines[INVOICES]
        with processes.workers(workers, concurrency, environment.data_dir()) as running:
            processes.wait_until_ready(running)
            started = time.monotonic()
            changed = send_invoices(invoices)
            if invoices:
                console.complain(f"imported {changed:,} of {len(invoices):,} invoices; the rest are unchanged")
            if not exit_when_idle:
                _stay_up(runtime, running, ours=ours)
                return
            if not processes.watch(runtime, running, processes.is_idle, timeout, ours=ours):
                console.complain(f"not idle after {timeout} s: `taskbridge status` shows why")
            seconds = round(time.monotonic() - started, 3)
            report = _report(runtime, changed, len(invoices) - changed, seconds)
            is_pending = processes.has_pending(runtime)
    if as_json:
        console.emit_json(report)
    else:
        _show(report)
    if is_pending:
        raise click.exceptions.Exit(1)


def _stay_up(runtime: Runtime, running: Sequence[Worker], *, ours: bool) -> None:
    from taskbridge.cli.workers import watch

    if ours:
        data_dir = environment.data_dir()
        option = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
        console.complain("ready; in another shell: " + spoken(f'eval "$(taskbridge env{option})"'))
    console.complain("Ctrl-C stops everything")
    try:
        watch(runtime, running, lambda _: False, ours=ours)
    except Interrupted:
        console.complain("stopping; press Ctrl-C again to stop without waiting for current runs")


def _report(runtime: Runtime, imported: int, unchanged: int, seconds: float) -> dict[str, Any]:
    """Return the report of `--exit-when-idle`.

    `seconds` counts from the first invoice until idle. The other numbers are totals, including earlier imports.
    """
    from taskbridge.declaring.pipeline import INVOICES

    tenants = runtime.tenants_of(INVOICES)
    counts = list(tenants.every_count(INVOICES))
    deliveries, duplicates = tenants.delivery_counts(INVOICES)
    return {
        "imported": imported,
        "unchanged": unchanged,
        **{state: sum(row[state] for row in counts) for state in _STATES},
        "deliveries": deliveries,
        "duplicate_deliveries": duplicates,
        "seconds": seconds,
        "tenants": {row["tenant"]: {name: row[name] for name in _COUNTERS} for row in counts},
    }


def _show(report: dict[str, Any]) -> None:
    rows = [{"tenant": tenant, **row} for tenant, row in report["tenants"].items()]
    console.show_rows(rows, "tenant", *_COUNTERS)
    counts = {name: count for name, count in report.items() if name != "tenants"}
    console.show(", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items()))
