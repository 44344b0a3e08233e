"""`taskbridge inspect`: why a tenant is not running, and what happened to a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, stored_text
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, ahead, span

if TYPE_CHECKING:
    from taskbridge.observe.context import Context
    from taskbridge.observe.history import Burst
    from taskbridge.observe.inspect import TenantAnswer
    from taskbridge.observe.record import RecordLine, Story

__all__ = ["inspect"]

SHOWN_STORIES: Final = 10
"""The steps are shown for this many records."""
SHOWN_BURSTS: Final = 5


@click.command(
    epilog=examples(
        "taskbridge inspect France", "taskbridge inspect --record 536365", "taskbridge inspect France --json"
    )
)
@click.argument("tenant", required=False)
@click.option(
    "--record",
    "key",
    type=stored_text,
    metavar="KEY",
    help="Show the records of TENANT, or of all tenants, with this key.",
)
@click.option("--source", metavar="NAME", help="With --record, only this source.  [default: all]")
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@data_dir_option
@json_option
def inspect(
    tenant: str | None, key: str | None, source: str | None, pipeline: str | None, data_dir: Path, as_json: bool
) -> None:
    """Show why TENANT does not run, with its counters, its last runs and its last bursts.

    With --record, show what happened to a record in each pipeline, step by step.
    """
    if source is not None and key is None:
        raise click.UsageError("--source requires --record KEY")
    if tenant is not None:
        check_tenant(tenant)
    elif key is None:
        raise click.UsageError("give a TENANT, or a record with --record KEY")
    context = environment.context(data_dir, redis=key is None)
    names = context.names(pipeline)
    if key is not None:
        _inspect_record(context, names, key, source, tenant, as_json=as_json)
    elif tenant is not None:
        _inspect_tenant(context, names, tenant, as_json=as_json)


def _inspect_tenant(context: Context, names: Sequence[str], tenant: str, *, as_json: bool) -> None:
    from taskbridge.observe.health import left_out
    from taskbridge.observe.history import bursts as last_bursts
    from taskbridge.observe.inspect import tenant as inspected

    found = [one for one in (inspected(context, name, tenant) for name in names) if one.known]
    bursts = {one.pipeline: last_bursts(context, one.pipeline, tenant, SHOWN_BURSTS) for one in found}
    if as_json:
        pipelines = {one.pipeline: _tenant_as_json(one, bursts[one.pipeline]) for one in found}
        console.emit_json({"tenant": tenant, "pipelines": pipelines})
    else:
        for one in found:
            _show_tenant(one, bursts[one.pipeline])
    if not found:
        others = left_out(context)
        hint = f"; {others.sentence}: {others.remedy}" if others is not None else ""
        console.complain(
            f"no tenant of {', '.join(names)} is named {tenant!r}: it has no records, no runner and no pause{hint}"
        )
        raise click.exceptions.Exit(1)


def _tenant_as_json(one: TenantAnswer, bursts: Sequence[Burst]) -> dict[str, Any]:
    values = asdict(one)
    if one.delay is None:
        del values["delay"]
    return values | {"bursts": [asdict(burst) | {"runs_saved": burst.runs_saved} for burst in bursts]}


def _show_tenant(answer: TenantAnswer, bursts: Sequence[Burst]) -> None:
    console.show(f"{answer.pipeline}, {answer.tenant}: {answer.sentence}")
    console.show(*(f"  {line}" for line in _counts(answer)))
    columns: dict[str, Any] = {
        "run began": lambda run: console.clock(run.began_at),
        "took": lambda run: run.run_ms / 1000,
        "reason": "reason",
        "outcome": "outcome",
        "worker": "worker",
        "events": "events",
        "records": "records",
        "rejected": "rejected",
    }
    console.show_rows(answer.runs_shown, columns)
    for burst in bursts:
        first = "" if burst.first_event_ms is None else f"; the first event waited {burst.first_event_ms:,} ms"
        events, runs = counted(burst.events, "event"), counted(burst.runs, "run")
        console.show(f"burst at {console.clock(burst.began_at)}: {events} became {runs}{first}")


def _counts(answer: TenantAnswer) -> Iterator[str]:
    oldest = f" (oldest for {span(answer.pending_since)})" if answer.pending_since else ""
    discarded = f", {answer.discarded:,} discarded" if answer.discarded else ""
    handled = "unknown" if answer.handled is None else f"{answer.handled:,}"
    kept = f"{answer.quarantined:,} in quarantine{discarded}"
    yield f"records: {answer.pending:,} pending{oldest}, {handled} handled, {kept}"
    if answer.delay is not None:
        seconds = None if answer.due_at is None else (answer.due_at - datetime.now(UTC)).total_seconds()
        due = "" if seconds is None else f", due {ahead(seconds)}"
        yield f"{counted(answer.delay.waiting, 'record is', 'records are')} delayed by {answer.delay.criterion}{due}"
    lease = f", its lease ends in {answer.lease_seconds:.1f} s" if answer.lease_seconds else ""
    yield f"current burst: {counted(answer.burst_events, 'event')}, {counted(answer.burst_runs, 'run')}{lease}"
    totals = {"event": answer.events, "run": answer.runs, "record": answer.records}
    yield "in total: " + ", ".join(counted(count, what) for what, count in totals.items())
    if answer.failures:
        since = f", for {span(answer.failing_since)}" if answer.failing_since else ""
        yield f"failed {counted(answer.failures, 'time')} in a row{since}: {one_line(answer.last_error or '')}"
    for one in answer.quarantine:
        yield f"{one.state}: {one.key}, {ago(one.at)}: {one_line(one.reason)}"
    if not answer.runs_shown:
        yield "the run history has no runs of this tenant"


def _inspect_record(
    context: Context, names: Sequence[str], key: str, source: str | None, tenant: str | None, *, as_json: bool
) -> None:
    from taskbridge.observe.record import records, story

    found = records(context, key, source, tenant)
    if len(names) < len(context.pipelines):
        found = [one for one in found if one.pipeline in names]
    stories = [
        story(context, one.source, one.tenant, one.key, one.pipeline)
        if one.pipeline is not None and one.pipeline in names and number < SHOWN_STORIES
        else None
        for number, one in enumerate(found)
    ]
    if as_json:
        parts = [{"steps": [], "note": None} if told is None else asdict(told) for told in stories]
        rows = [
            asdict(one) | {"steps": told["steps"], "note": told["note"]} for one, told in zip(found, parts, strict=True)
        ]
        console.emit_json({"key": key, "records": rows})
    else:
        for one, told in zip(found, stories, strict=True):
            _show_record(one, told, is_declared=one.pipeline in context.pipelines)
    if not found:
        console.complain(
            f"no record has the key {key!r}: check the key, --source and TENANT; it may have been pruned. To "
            "inspect a tenant, use `taskbridge inspect TENANT`"
        )
        raise click.exceptions.Exit(1)


def _show_record(one: RecordLine, story: Story | None, *, is_declared: bool) -> None:
    written = f"written {ago(one.changed_at)}{', deleted' if one.deleted else ''}"
    which = "" if one.unmatched else f", tenant {one.tenant!r}, revision {one.revision}"
    console.show(f"{one.source}{which}, {written}: {one.sentence}")
    for step in story.steps if story else ():
        console.show(f"  {console.clock(step.at)}  {step.sentence}")
    if story is not None and story.note:
        console.show(f"  {story.note}")
    if one.pipeline is not None and not is_declared:
        console.show(f"  {one.pipeline} is not declared here: add its module to TASKBRIDGE_PIPELINES to see the steps")
