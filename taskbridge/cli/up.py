"""`taskbridge up`: servers, schema and workers of one machine, until somebody stops them or the work is done."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment
from taskbridge.cli.environment import Origin
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import (
    DEFAULT_DATA_DIR,
    Number,
    data_dir_option,
    examples,
    file_type,
    json_option,
    tenant_column_option,
)
from taskbridge.errors import TaskBridgeError, Unavailable

if TYPE_CHECKING:
    from taskbridge.cli.csv_invoices import InvoiceFile
    from taskbridge.cli.monitor import Monitor
    from taskbridge.cli.sending import Sending
    from taskbridge.cli.workers import Workers

__all__ = ["up"]


@dataclass(frozen=True, slots=True)
class _Request:
    """What the user asked for; `content` is what their file holds."""

    content: InvoiceFile
    exit_when_idle: bool
    timeout: float | None
    workers: int
    concurrency: int
    data_dir: Path


@click.command(
    epilog=examples("taskbridge up", "taskbridge up --import invoices.csv --exit-when-idle --json"),
)
@click.option("--import", "file", type=file_type, metavar="FILE", help="Import this CSV file first (gzip too).")
@tenant_column_option
@click.option("--exit-when-idle", is_flag=True, help="End with a report when all records are handled.")
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="With --exit-when-idle: end after waiting this long in any case.",
)
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Worker processes; 0: servers and schema alone, for workers of your own.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=2, show_default=True, help="Runs at a time of each worker."
)
@data_dir_option
@json_option
def up(file: Path | None, tenant_column: str, data_dir: Path, as_json: bool, **options: Any) -> None:
    """Run everything on this machine: servers where none are configured, the schema, workers.

    Ctrl-C, SIGTERM and SIGHUP stop all of it in order; a second Ctrl-C does not wait for the runs under way. A worker
    that dies is started again; its output is in DIR/worker-1.log and so on.

    With --exit-when-idle it ends by itself when no record is pending, none waits for its delay and no tenant is active,
    and prints what was done with invoices.

    Exit status: 0 a signal stopped it when it was up, or all records are handled or in quarantine; 1 lines of the
    file were not taken, records are pending after --timeout, or something cannot run; 2 the file cannot be read;
    128 + n a signal cut the start, the import or the waiting of --exit-when-idle short.
    """
    if not options["exit_when_idle"] and (as_json or options["timeout"]):
        raise click.UsageError("--json and --timeout go with --exit-when-idle")
    if options["exit_when_idle"] and not options["workers"]:
        raise click.UsageError("--exit-when-idle needs a worker: leave --workers 0 out")
    from taskbridge.cli import report, sending
    from taskbridge.cli.csv_invoices import InvoiceFile

    content = InvoiceFile([], [], [], 0)
    if file is not None:
        content = sending.read(file, tenant_column)
        sending.list_problems(file, content)
    done = _run(_Request(content, data_dir=data_dir, **options))
    if done is None:
        return
    figures, pending = done
    if as_json:
        console.emit_json(figures)
    else:
        report.show(figures)
    if figures["problems"] or figures["pending"] or pending:
        raise click.exceptions.Exit(1)


def _run(request: _Request) -> tuple[dict[str, Any], bool] | None:
    """Start all, do what was asked, stop all. Return --exit-when-idle's figures, and whether any record is pending."""
    from taskbridge.cli import report, sending
    from taskbridge.cli.monitor import Monitor
    from taskbridge.cli.tenants import has_pending, is_idle
    from taskbridge.cli.workers import Workers

    console.tell("taskbridge: starting")
    with environment.served(request.data_dir) as origin:
        runtime = environment.runtime()
        environment.ready(runtime, migrate=True)
        if request.content.invoices:
            sending.check_pipeline()
        with Workers(request.workers, request.concurrency, request.data_dir, console.complain) as workers:
            workers.wait_until_ready()
            started = time.monotonic()
            sent = _import(request.content, workers)
            monitor = Monitor(runtime, workers, ours=origin is Origin.OURS)
            workers.announce = monitor.announce
            if not request.exit_when_idle:
                _stay_up(monitor, sent, _other_shell(request.data_dir) if origin is Origin.OURS else None)
                return None
            if not monitor.until(is_idle, request.timeout):
                console.complain(f"not idle after {request.timeout:g} s; `taskbridge status` shows the tenants' errors")
            return report.collect(runtime, sent, time.monotonic() - started), has_pending(runtime)


def _import(content: InvoiceFile, workers: Workers) -> Sending:
    from taskbridge.cli import sending

    sent = sending.Sending(content)
    try:
        sending.send(sent, workers.watch)
    except Interrupted:
        console.tell(sent.how_far())
        raise
    except TaskBridgeError as error:
        raise Unavailable(f"{error}. {sent.how_far()}") from error
    return sent


def _stay_up(monitor: Monitor, sent: Sending, other_shell: str | None) -> None:
    if sent.done:
        monitor.announce(f"{sent.done:,} invoices: {sent.written:,} written, {sent.unchanged:,} unchanged")
    if other_shell is not None:
        monitor.announce(f"ready; in another shell: {other_shell}")
    monitor.announce("ready; Ctrl-C stops everything" if other_shell is None else "Ctrl-C stops everything")
    try:
        monitor.until(lambda _: False, None)
    except Interrupted:
        monitor.announce("stopping; a second Ctrl-C does not wait for the runs under way")


def _other_shell(data_dir: Path) -> str:
    """Return what gives another shell the URLs."""
    option = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {shlex.quote(str(data_dir))}"
    return console.spoken(f'eval "$(taskbridge env{option})"')
