"""`taskbridge up`: run servers and workers on this machine until they are stopped or idle."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import DEFAULT_DATA_DIR, Number, data_dir_option, examples, file_type, json_option
from taskbridge.common.texts import spoken
from taskbridge.errors import TaskBridgeError, Unavailable

if TYPE_CHECKING:
    from taskbridge.cli.import_csv import Invoice
    from taskbridge.cli.monitor import Monitor
    from taskbridge.cli.workers import Workers
    from taskbridge.process.runtime import Runtime

__all__ = ["up"]

_STATES: Final = ("handled", "pending", "quarantined")
_COUNTERS: Final = ("events", "runs", "sweeps", "records", "first_event_ms")


@dataclass(frozen=True, slots=True)
class _Request:
    """The options of the command; `invoices` are those of the file."""

    invoices: list[Invoice]
    exit_when_idle: bool
    timeout: float | None
    workers: int
    concurrency: int
    data_dir: Path


@click.command(
    short_help="Run everything on this machine.",
    epilog=examples("taskbridge up", "taskbridge up --import invoices.csv --exit-when-idle --json"),
)
@click.option("--import", "file", type=file_type, metavar="FILE", help="First import the invoices of this CSV file.")
@click.option(
    "--tenant-column", default="Country", show_default=True, metavar="COLUMN", help="The column with the tenant."
)
@click.option("--key-column", default="InvoiceNo", show_default=True, metavar="COLUMN", help="The column with the key.")
@click.option("--exit-when-idle", is_flag=True, help="Exit with a report once all records are handled.")
@click.option(
    "--timeout", type=Number(min=0, min_open=True), metavar="SECONDS", help="With --exit-when-idle: how long to wait."
)
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Number of worker processes; 0 to run your own workers.",
)
@click.option("--concurrency", type=click.IntRange(1, 1024), default=2, show_default=True, help="Runs per worker.")
@data_dir_option
@json_option
def up(file: Path | None, tenant_column: str, key_column: str, data_dir: Path, as_json: bool, **options: Any) -> None:
    """Run everything on this machine: workers, and Postgres and Redis unless they are configured.

    Ctrl-C stops everything. A worker that dies is restarted. Workers log to worker-1.log, worker-2.log and so on in the
    data directory.
    """
    if not options["exit_when_idle"] and (as_json or options["timeout"]):
        raise click.UsageError("--json and --timeout require --exit-when-idle")
    if options["exit_when_idle"] and not options["workers"]:
        raise click.UsageError("--exit-when-idle needs a worker: omit --workers 0")
    from taskbridge.cli.import_csv import read_invoices

    invoices = [] if file is None else read_invoices(file, tenant_column, key_column)
    done = _run(_Request(invoices, data_dir=data_dir, **options))
    if done is None:
        return
    report, is_pending = done
    if as_json:
        console.emit_json(report)
    else:
        _show(report)
    if report["pending"] or is_pending:
        raise click.exceptions.Exit(1)


def _run(request: _Request) -> tuple[dict[str, Any], bool] | None:
    """Start everything, wait, and stop everything. Return the report, if requested, and whether records are pending."""
    from taskbridge import store
    from taskbridge.cli.monitor import Monitor, has_pending, is_idle
    from taskbridge.cli.workers import Workers
    from taskbridge.declaring.pipeline import INVOICES

    console.tell("taskbridge: starting")
    with environment.served(request.data_dir) as ours:
        runtime = environment.runtime()
        store.check_version(runtime.engine)
        store.migrate(runtime.engine)
        runtime.check()
        if request.invoices:
            # Raises an error if no pipeline would handle them.
            _ = runtime.pipelines[INVOICES]
        with Workers(request.workers, request.concurrency, request.data_dir, console.complain) as workers:
            workers.wait_until_ready()
            started = time.monotonic()
            changed = _import(request.invoices, workers)
            monitor = Monitor(runtime, workers, ours=ours)
            if not request.exit_when_idle:
                if request.invoices:
                    console.complain(
                        f"imported {changed:,} of {len(request.invoices):,} invoices; the rest are unchanged"
                    )
                _stay_up(monitor, _other_shell(request.data_dir) if ours else None)
                return None
            if not monitor.until(is_idle, request.timeout):
                console.complain(f"not idle after {request.timeout:g} s: `taskbridge status` shows why")
            report = _report(runtime, changed, len(request.invoices) - changed, time.monotonic() - started)
            return report, has_pending(runtime)


def _import(invoices: list[Invoice], workers: Workers) -> int:
    from taskbridge.cli.import_csv import send_invoices

    with console.progress() as progress:
        task = progress.add_task("importing", total=len(invoices))
        done = 0

        def on_progress(count: int) -> None:
            nonlocal done
            done = count
            progress.update(task, completed=count)
            workers.watch()

        try:
            return send_invoices(invoices, on_progress)
        except (TaskBridgeError, Interrupted) as error:
            rest = f"{done} of {len(invoices)} invoices were imported: import the file again to continue"
            if isinstance(error, Interrupted):
                console.tell(rest)
                raise
            raise Unavailable(f"{error}. {rest}") from error


def _stay_up(monitor: Monitor, other_shell: str | None) -> None:
    if other_shell is not None:
        console.complain(f"ready; in another shell: {other_shell}")
    console.complain("ready; Ctrl-C stops everything" if other_shell is None else "Ctrl-C stops everything")
    try:
        monitor.until(lambda _: False, None)
    except Interrupted:
        console.complain("stopping; press Ctrl-C again to stop without waiting for current runs")


def _other_shell(data_dir: Path) -> str:
    """Return the command that sets the URLs in another shell."""
    option = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
    return spoken(f'eval "$(taskbridge env{option})"')


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
        "seconds": round(seconds, 3),
        "tenants": {row["tenant"]: {name: row[name] for name in _COUNTERS} for row in counts},
    }


def _show(report: dict[str, Any]) -> None:
    rows = ({"tenant": tenant, **row} for tenant, row in report["tenants"].items())
    columns: dict[str, Any] = {name: itemgetter(name) for name in ("tenant", *_COUNTERS[:-1])}
    columns["first event"] = lambda row: None if row["first_event_ms"] is None else f"{row['first_event_ms']:,} ms"
    console.show_rows(rows, columns)
    console.show(
        f"{report['imported']:,} invoices imported, {report['unchanged']:,} unchanged, in {report['seconds']:.1f} s; "
        f"{report['handled']:,} records handled, {report['pending']:,} pending, "
        f"{report['quarantined']:,} in quarantine; "
        f"{report['deliveries']:,} deliveries, {report['duplicate_deliveries'] or 'no'} duplicates."
    )
