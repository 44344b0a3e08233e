"""`taskbridge quarantine`: the records that cannot be handled, and their way back."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import (
    data_dir_option,
    examples,
    json_option,
    moment_or_duration,
    pipeline_option,
    stored_text,
)
from taskbridge.cli.pause import system_user
from taskbridge.cli.starting import start
from taskbridge.common.names import check_tenant, key_spellings
from taskbridge.common.texts import counted
from taskbridge.common.times import ago, iso

if TYPE_CHECKING:
    from taskbridge.store import Pauses, Quarantine, QuarantinedRecord

__all__ = ["quarantine"]

_TIMES = ("failing_since", "quarantined_at", "retry_at", "discarded_at")


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which records a command is about."""

    external_ids: tuple[str, ...]
    tenant: str | None
    reason: str | None

    def check(self) -> _Choice:
        """Raise InvalidName where the tenant is not allowed."""
        if self.tenant is not None:
            check_tenant(self.tenant)
        return self

    @property
    def filters(self) -> dict[str, Any]:
        return {"external_ids": self.external_ids, "tenant": self.tenant, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class _Done:
    """What a decision changed: tenant and external id of each record, and the ids that were not there."""

    pipeline: str
    records: list[tuple[str, str]]
    missing: list[str]

    @property
    def tenants(self) -> Counter[str]:
        return Counter(tenant for tenant, _ in self.records)

    @property
    def sentence(self) -> str:
        return f"{counted(len(self.records), 'record')} of {counted(len(self.tenants), 'tenant')}"

    def as_json(self, verb: str) -> dict[str, Any]:
        records = [{"tenant": tenant, "external_id": external_id} for tenant, external_id in self.records]
        return {
            "pipeline": self.pipeline,
            verb: len(records),
            "tenants": self.tenants,
            "records": records,
            "not_found": self.missing,
        }


def _which(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--reason", type=stored_text, metavar="TEXT", help="Those whose reason holds this text."),
        click.option("--tenant", help="Those of this tenant.  [default: all tenants]"),
        click.argument("external_ids", metavar="[ID]...", nargs=-1, type=stored_text),
    ):
        command = option(command)
    return command


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    return pipeline_option(_which(command))


@click.group(
    epilog=examples("taskbridge quarantine list", "taskbridge quarantine retry --tenant France"),
)
def quarantine() -> None:
    """The records that cannot be handled: kept apart so that the rest go on.

    A record that changes in its source leaves quarantine by itself: its new revision is pending like any other.
    """


@quarantine.command(
    "list",
    short_help="List them with the reasons.",
    epilog=examples(
        "taskbridge quarantine list", "taskbridge quarantine list --since 2h --reason 'no customer' --json"
    ),
)
@_which
@click.option("--pipeline", metavar="NAME", help="Only of this pipeline.  [default: all that are declared]")
@click.option(
    "--since",
    type=moment_or_duration,
    metavar="DURATION|TIME",
    help="Only what came to quarantine since then: a number with s, m, h, d or w, or a time such as 2026-01-31T08:00Z.",
)
@click.option("--all", "discarded", is_flag=True, help="Also those that were discarded.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many, oldest first.")
@data_dir_option
@json_option
def list_them(
    pipeline: str | None,
    since: datetime | timedelta | None,
    discarded: bool,
    limit: int,
    data_dir: Path,
    as_json: bool,
    **chosen: Any,
) -> None:
    """List the records in quarantine, or those with an ID (of the invoice, or of the message), oldest first.

    `retrying` are those that their tenant's next sweep takes.

    Those of pipelines that this process does not declare are not looked at, and a line on stderr names these.

    Exit status: 0, also where there are none.
    """
    from taskbridge.cli import undeclared

    choice = _Choice(**chosen).check()
    records: list[tuple[str, QuarantinedRecord]] = []
    count = 0
    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    names = runtime.pipelines.names() if pipeline is None else [pipeline]
    for name in names:
        there = runtime.quarantine_of(name)
        some, of_all = there.find(name, **choice.filters, since=since, discarded=discarded, limit=limit)
        records += [(name, one) for one in some]
        count += of_all
    records = sorted(records, key=lambda one: one[1].quarantined_at)[:limit]
    if as_json:
        shown = [{"pipeline": name, **_as_json(one)} for name, one in records]
        more = undeclared.as_json(runtime) if pipeline is None else {}
        console.emit_json({"pipeline": names[0] if len(names) == 1 else None, "count": count, "records": shown, **more})
    else:
        _show(names, records, count, "such record" if since or any(chosen.values()) else "record")
        if pipeline is None:
            undeclared.tell(runtime)


@quarantine.command(
    "retry",
    short_help="Try them again.",
    epilog=examples("taskbridge quarantine retry 536365", "taskbridge quarantine retry --reason 'no customer'"),
)
@_choosing
@click.option("--all", "every", is_flag=True, help="All of the pipeline, except those that were discarded.")
@data_dir_option
@json_option
def retry(pipeline: str, every: bool, data_dir: Path, as_json: bool, **chosen: Any) -> None:
    """Try records again: those with an ID, of every tenant or of --tenant, or all that the options choose.

    Their tenants are notified and take them first. A record that was discarded is tried again only by its ID.

    Exit status: 0; 1 an ID is not in quarantine (the others are tried again), or a server went away; 2 nothing was
    chosen.
    """
    choice = _chosen(every, chosen)
    there, pauses = _entered(data_dir, pipeline)
    records = _find(there, pipeline, choice)
    _note(data_dir, "retry", pipeline, choice, records)
    done = _done(pipeline, choice, records, there.retry(pipeline, records))
    start(list(done.tenants), pipeline)
    paused = pauses.of(pipeline)
    if as_json:
        console.emit_json(done.as_json("retried"))
    else:
        click.echo(f"{pipeline}: {done.sentence} tried again" if done.records else f"{pipeline}: nothing to try again")
    if any(paused.holding(tenant) for tenant in done.tenants):
        console.tell("What is paused is tried after `taskbridge resume`; `taskbridge status` shows it.")
    _end(done)


@quarantine.command(
    "discard",
    short_help="Give them up.",
    epilog=examples("taskbridge quarantine discard 536365 --tenant France --yes"),
)
@_choosing
@click.option("--all", "every", is_flag=True, help="All of the pipeline.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
@json_option
def discard(pipeline: str, every: bool, yes: bool, data_dir: Path, as_json: bool, **chosen: Any) -> None:
    """Give records up: those with an ID, of every tenant or of --tenant, or all that the options choose.

    They count as discarded and not as handled; `taskbridge quarantine list --all` shows them, and retry with the ID
    brings one back. On a terminal it asks first.

    Exit status: 0; 1 an ID is not in quarantine (the others are discarded), or the answer was no; 2 nothing was chosen,
    or nobody can be asked and --yes is missing.
    """
    choice = _chosen(every, chosen)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: add --yes if you want to give these records up")
    there, _ = _entered(data_dir, pipeline)
    records = _find(there, pipeline, choice)
    if records and not yes:
        tenants = len({one.tenant for one in records})
        question = f"Give up {counted(len(records), 'record')} of {counted(tenants, 'tenant')}?"
        click.confirm(question, abort=True, err=True)
    _note(data_dir, "discard", pipeline, choice, records)
    done = _done(pipeline, choice, records, there.discard(pipeline, records))
    if as_json:
        console.emit_json(done.as_json("discarded"))
    else:
        click.echo(f"{pipeline}: {done.sentence} discarded" if done.records else f"{pipeline}: nothing to discard")
    _end(done)


def _entered(data_dir: Path, pipeline: str) -> tuple[Quarantine, Pauses]:
    runtime = environment.session(data_dir, environment.light_runtime)
    return runtime.quarantine_of(pipeline), runtime.pauses


def _note(data_dir: Path, action: str, pipeline: str, choice: _Choice, records: Sequence[QuarantinedRecord]) -> None:
    """Write down what is about to be done with records."""
    from taskbridge.store import Audit

    if not records:
        return
    tenants = {one.tenant for one in records}
    keys = {one.external_id for one in records} if choice.external_ids else set()
    Audit(environment.session(data_dir, environment.light_runtime).database).note(
        system_user(),
        action,
        pipeline=pipeline,
        tenant=tenants.pop() if len(tenants) == 1 else None,
        key=keys.pop() if len(keys) == 1 else None,
        detail=counted(len(records), "record"),
    )


def _chosen(every: bool, chosen: dict[str, Any]) -> _Choice:
    if every == any(chosen.values()):
        raise click.UsageError(
            "--all is for the whole pipeline: leave it out, or IDs, --tenant and --reason"
            if every
            else "nothing is chosen: give IDs, --tenant or --reason, or --all for the whole pipeline"
        )
    return _Choice(**chosen).check()


def _find(there: Quarantine, pipeline: str, choice: _Choice) -> list[QuarantinedRecord]:
    """Return the chosen records; one that was discarded is chosen by its id only."""
    return there.find(pipeline, **choice.filters, discarded=bool(choice.external_ids))[0]


def _done(
    pipeline: str, choice: _Choice, records: Sequence[QuarantinedRecord], changed: list[tuple[str, str]]
) -> _Done:
    found = {one.external_id for one in records}
    missing = [one for one in dict.fromkeys(choice.external_ids) if found.isdisjoint(key_spellings(one))]
    return _Done(pipeline, sorted(changed), missing)


def _end(done: _Done) -> None:
    for external_id in done.missing:
        console.complain(
            f"{external_id!r} is not in quarantine, or not where you looked: "
            f"see `taskbridge quarantine list --all --pipeline {done.pipeline}`"
        )
    if done.missing:
        raise click.exceptions.Exit(1)


def _as_json(record: QuarantinedRecord) -> dict[str, Any]:
    return record._asdict() | {name: iso(getattr(record, name)) for name in _TIMES}


def _show(names: Sequence[str], records: Sequence[tuple[str, QuarantinedRecord]], count: int, what: str) -> None:
    """Print a table; where several pipelines are looked at, its first column is each record's pipeline."""
    terminal = console.stdout()
    if not records:
        terminal.print(f"{', '.join(names)}: no {what} is in quarantine")
        return
    first = ("pipeline",) if len(names) > 1 else ()
    columns = (*first, "id", "tenant", "state", "attempts", "since", "reason")
    table = console.Table(terminal, *columns, texts=("id", "tenant", "reason"))
    for name, one in records:
        numbers = (one.state, "-" if one.cause == "rejected" else f"{one.attempts:,}", ago(one.quarantined_at))
        texts = (*(name for _ in first), one.external_id, one.tenant)
        table.add_row(*map(console.plain, texts), *numbers, console.plain(one.reason))
    terminal.print(table)
    if count > len(records):
        terminal.print(f"and {count - len(records):,} more (--limit shows more)")
