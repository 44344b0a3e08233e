"""`taskbridge inspect`: why a tenant is not running, and what happened to a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.cli.status import TENANT_COLUMNS
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted
from taskbridge.common.times import ago
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.observe.context import Context
    from taskbridge.observe.history import Burst, RunRow
    from taskbridge.observe.inspect import TenantAnswer
    from taskbridge.observe.record import RecordLine, Story

__all__ = ["inspect"]

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
    metavar="KEY",
    help="Show the records of TENANT, or of all tenants, with this key.",
)
@click.option("--source", metavar="NAME", help="With --record, only this source.  [default: all]")
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@data_dir_option
@json_option
def inspect(tenant: str | None, key: str | None, source: str | None, pipeline: str | None, as_json: bool) -> None:
    """Show why TENANT does not run. Show its counters, its last runs and its last bursts.

    With --record, show what happened to a record in each pipeline, step by step.
    """
    if source is not None and key is None:
        raise click.UsageError("--source requires --record KEY")
    if tenant is not None:
        check_tenant(tenant)
    elif key is None:
        raise click.UsageError("give a TENANT, or a record with --record KEY")
    context = environment.context(redis=key is None)
    names = context.names(pipeline)
    if key is not None:
        _inspect_record(context, names, key, source, tenant, as_json=as_json)
    elif tenant is not None:
        _inspect_tenant(context, names, tenant, as_json=as_json)


def _inspect_tenant(context: Context, names: Sequence[str], tenant: str, *, as_json: bool) -> None:
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
        environment.tell_left_out(context)
        raise TaskBridgeError(f"no tenant of {', '.join(names)} is named {tenant!r}", "check the spelling")


def _tenant_as_json(one: TenantAnswer, bursts: Sequence[Burst]) -> dict[str, Any]:
    values = asdict(one)
    if one.delay is None:
        del values["delay"]
    return values | {"bursts": [asdict(burst) | {"runs_saved": burst.runs_saved} for burst in bursts]}


def _show_tenant(answer: TenantAnswer, bursts: Sequence[Burst]) -> None:
    console.show(f"{answer.pipeline}, {answer.tenant}: {answer.sentence}")
    console.show_rows([answer], *TENANT_COLUMNS)
    if answer.delay is not None:
        due = "" if answer.due_at is None else f" until {console.clock(answer.due_at)}"
        console.show(f"{counted(answer.delay.waiting, 'record')} delayed by {answer.delay.criterion}{due}")
    console.show_rows(answer.quarantine, "key", "state", "at", "reason")
    names = ("reason", "outcome", "worker", "events", "records", "rejected")
    console.show_rows(answer.runs_shown, *names, took=lambda run: run.run_ms / 1000, began=_began)
    if not answer.runs_shown:
        console.show("the run history has no runs of this tenant")
    console.show_rows(bursts, "events", "runs", "first_event_ms", began=_began)


def _began(shown: RunRow | Burst) -> str:
    return console.clock(shown.began_at)


def _inspect_record(
    context: Context, names: Sequence[str], key: str, source: str | None, tenant: str | None, *, as_json: bool
) -> None:
    from taskbridge.observe.record import records, story

    found = records(context, key, source, tenant)
    if len(names) < len(context.pipelines):
        found = [one for one in found if one.pipeline in names]
    stories = [
        story(context, one.source, one.tenant, one.key, one.pipeline)
        if one.pipeline is not None and one.pipeline in names
        else None
        for one in found
    ]
    if as_json:
        told = [{"steps": [], "note": None} if each is None else asdict(each) for each in stories]
        rows = [
            asdict(one) | {"steps": each["steps"], "note": each["note"]} for one, each in zip(found, told, strict=True)
        ]
        console.emit_json({"key": key, "records": rows})
    else:
        for one, each in zip(found, stories, strict=True):
            _show_record(one, each, is_declared=one.pipeline in context.pipelines)
    if not found:
        raise TaskBridgeError(f"no record has the key {key!r}", "check the key, --source and TENANT; it may be pruned")


def _show_record(one: RecordLine, story: Story | None, *, is_declared: bool) -> None:
    written = f"written {ago(one.changed_at)}{', deleted' if one.deleted else ''}"
    which = "" if one.unmatched else f", tenant {one.tenant!r}, revision {one.revision}"
    console.show(f"{one.source}{which}, {written}: {one.sentence}")
    if story is not None:
        console.show(*(f"  {console.clock(step.at)}  {step.sentence}" for step in story.steps))
        console.show(*([f"  {story.note}"] if story.note else ()))
    if one.pipeline is not None and not is_declared:
        console.show(f"  {one.pipeline} is not declared here: add its module to TASKBRIDGE_PIPELINES to see the steps")
