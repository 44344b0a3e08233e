"""`taskbridge why`: why a tenant is not running."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, iso, span

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.observing.shapes import TenantAnswer

__all__ = ["why"]


@click.command(
    short_help="Say why a tenant is not running.",
    epilog=examples("taskbridge why France", "taskbridge why acme --pipeline orders --json"),
)
@click.argument("tenant")
@click.option("--pipeline", metavar="NAME", help="Only in this pipeline.  [default: all that have the tenant]")
@data_dir_option
@json_option
def why(tenant: str, pipeline: str | None, data_dir: Path, as_json: bool) -> None:
    """Say in one sentence why TENANT is not running, or which run has it and whether that is alive.

    It is paused, by whom and since when; or its last run failed, and when the next try is; or it has reached its rate
    limit; or the circuit is open; or it waits in the wait queue, and at which place; or for its turn or its tick; or no
    worker is there. Then the figures: its records, its burst, and its last runs.

    Records count up to 10,000 of each state. Times are in UTC.

    Exit status: 0; 1 where TENANT has no records, no runner and no pause.
    """
    check_tenant(tenant)
    runtime = environment.session(data_dir, environment.light_runtime)
    names = runtime.pipelines.names() if pipeline is None else [runtime.pipelines[pipeline].name]
    from taskbridge.cli.asking import answers_of

    answers = answers_of(runtime)
    found = [one for one in (answers.tenant(name, tenant) for name in names) if one.known]
    if as_json:
        console.emit_json({"tenant": tenant, "pipelines": {one.pipeline: _as_json(one) for one in found}})
    else:
        terminal = console.stdout()
        for one in found:
            _show(terminal, one)
    if not found:
        from taskbridge.cli.tenants import unknown

        console.complain(unknown(runtime, tenant))
        raise click.exceptions.Exit(1)


def _as_json(answer: TenantAnswer) -> dict[str, Any]:
    found = dataclasses.asdict(answer)
    del found["pipeline"], found["tenant"]
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _show(terminal: Console | console.Pipe, answer: TenantAnswer) -> None:
    from taskbridge.cli.asking import clock, seconds
    from taskbridge.observing.history import NO_HISTORY

    terminal.print(console.plain(f"{answer.pipeline}, {answer.tenant}: {answer.sentence}"))
    for line in _figures(answer):
        terminal.print(console.plain(f"  {line}"))
    if not answer.history:
        terminal.print(f"  {NO_HISTORY}, so its last runs are not known")
    if not answer.runs_shown:
        return
    columns = ("run began", "took", "reason", "outcome", "worker", "events", "records", "rejected")
    made = console.Table(terminal, *columns, left=("reason", "outcome", "worker"), optional=("worker", "rejected"))
    for run in answer.runs_shown:
        counts = (f"{run.events:,}", f"{run.records:,}", f"{run.rejected:,}")
        outcome, worker = console.state(terminal, run.outcome), console.plain(run.worker or "-")
        made.add_row(clock(run.began_at), seconds(run.run_ms), run.reason, outcome, worker, *counts)
    terminal.print(made)


def _figures(answer: TenantAnswer) -> Iterator[str]:
    oldest = f" (the oldest for {span(answer.pending_since)})" if answer.pending_since else ""
    discarded = f", {answer.discarded:,} discarded" if answer.discarded else ""
    kept = f"{answer.quarantined:,} in quarantine{discarded}"
    handled = "-" if answer.handled is None else f"{answer.handled:,}"
    yield f"records: {answer.pending:,} pending{oldest}, {handled} handled, {kept}"
    lease = f", its lease ends in {answer.lease_seconds:.1f} s" if answer.lease_seconds else ""
    yield f"this burst: {counted(answer.events, 'event')}, {counted(answer.runs, 'run')}{lease}"
    counts = answer.counts
    yield "in all: " + ", ".join(counted(counts[f"{one}s"], one) for one in ("event", "run", "record"))
    if counts["failures"]:
        since = f", for {span(answer.failing_since)}" if answer.failing_since else ""
        yield f"failed {counted(counts['failures'], 'time')} in a row{since}: {one_line(answer.last_error or '')}"
    for one in answer.quarantine:
        yield f"{one.state}: {one.key}, {ago(one.at)}: {one_line(one.reason)}"
