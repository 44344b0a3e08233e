"""`taskbridge quarantine`: the records that cannot be handled, and those that no criterion matched."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from taskbridge.common.names import check_tenant, key_spellings
from taskbridge.common.texts import counted
from taskbridge.common.times import ago

if TYPE_CHECKING:
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.store import QuarantinedRecord

__all__ = ["quarantine"]

SHOWN_CHARACTERS: Final = 80


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which records a command is about."""

    ids: tuple[str, ...]
    tenant: str | None
    reason: str | None
    every: bool = False

    def check(self, *, unmatched: bool) -> None:
        """Raise an error unless something is chosen, in one way."""
        if self.tenant is not None:
            if unmatched:
                raise click.UsageError("unmatched records have no tenant: leave out --tenant")
            check_tenant(self.tenant)
        if self.every == bool(self.ids or self.tenant or self.reason):
            raise click.UsageError("choose records: give IDs, --tenant or --reason, or else --all for all of them")

    def find(self, runtime: LightRuntime, pipeline: str) -> list[QuarantinedRecord]:
        """Return the chosen records in quarantine; a discarded one is chosen by its ID only."""
        there = runtime.quarantine_of(pipeline)
        filters: dict[str, Any] = {"external_ids": self.ids, "tenant": self.tenant, "reason": self.reason}
        return there.find(pipeline, **filters, discarded=bool(self.ids))[0]


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--unmatched", is_flag=True, help="The records that no criterion matched instead."),
        click.option("--all", "every", is_flag=True, help="All records of the pipeline."),
        click.option("--reason", type=stored_text, metavar="TEXT", help="Those whose reason contains this text."),
        click.option("--tenant", help="Those of this tenant.  [default: all tenants]"),
        click.argument("ids", metavar="[ID]...", nargs=-1, type=stored_text),
        pipeline_option,
    ):
        command = option(command)
    return command


@click.group(epilog=examples("taskbridge quarantine list", "taskbridge quarantine retry --tenant France"))
def quarantine() -> None:
    """The records that cannot be handled, kept apart so that the others go on.

    With --unmatched: the records that no criterion matched.
    """


@quarantine.command(
    "list", epilog=examples("taskbridge quarantine list --since 2h", "taskbridge quarantine list --json")
)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=stored_text)
@click.option("--tenant", help="Those of this tenant.  [default: all tenants]")
@click.option("--reason", type=stored_text, metavar="TEXT", help="Those whose reason contains this text.")
@click.option("--pipeline", metavar="NAME", help="Only of this pipeline.  [default: all that are declared]")
@click.option(
    "--since",
    type=moment_or_duration,
    metavar="DURATION|TIME",
    help="Only since then: a number with s, m, h, d or w, or a time such as 2026-01-31T08:00Z.",
)
@click.option("--all", "discarded", is_flag=True, help="Include those that were discarded.")
@click.option("--unmatched", is_flag=True, help="The records that no criterion matched instead.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Records to show at most.")
@data_dir_option
@json_option
def list_them(
    ids: tuple[str, ...],
    tenant: str | None,
    reason: str | None,
    pipeline: str | None,
    since: datetime | timedelta | None,
    discarded: bool,
    unmatched: bool,
    limit: int,
    data_dir: Path,
    as_json: bool,
) -> None:
    """List the records in quarantine with their reasons, oldest first.

    An ID is a record's key or a message's id.
    """
    runtime = environment.session(data_dir, environment.light_runtime, redis=False)
    if unmatched:
        if ids or tenant or reason or since or discarded:
            raise click.UsageError("--unmatched goes with --pipeline and --limit only: leave out the other options")
        _list_unmatched(runtime, pipeline, limit, as_json=as_json)
        return
    if tenant is not None:
        check_tenant(tenant)
    names = runtime.pipelines.names() if pipeline is None else [runtime.pipelines[pipeline].name]
    filters: dict[str, Any] = {"external_ids": ids, "tenant": tenant, "reason": reason}
    records: list[tuple[str, QuarantinedRecord]] = []
    count = 0
    for name in names:
        page, total = runtime.quarantine_of(name).find(name, **filters, since=since, discarded=discarded, limit=limit)
        records += [(name, one) for one in page]
        count += total
    records = sorted(records, key=lambda one: one[1].quarantined_at)[:limit]
    if as_json:
        rows = [{"pipeline": name, **one._asdict()} for name, one in records]
        console.emit_json({"pipeline": names[0] if len(names) == 1 else None, "count": count, "records": rows})
    else:
        _show(names, records, count)
    from taskbridge.observing.health import left_out

    others = left_out(environment.context_of(runtime)) if pipeline is None else None
    if others is not None:
        console.tell(f"{others.sentence}; {console.spoken(others.remedy)}")


def _show(names: list[str], records: list[tuple[str, QuarantinedRecord]], count: int) -> None:
    if not records:
        console.show(f"{', '.join(names)}: nothing to show is in quarantine")
        return
    made = console.table(
        "pipeline", "id", "tenant", "state", "attempts", "since", "reason", numbers=("attempts", "since")
    )
    for name, one in records:
        attempts = "-" if one.cause == "rejected" else f"{one.attempts:,}"
        texts = map(console.plain, (name, one.external_id, one.tenant))
        made.add_row(*texts, console.state(one.state), attempts, ago(one.quarantined_at), console.plain(one.reason))
    console.stdout().print(made)
    if count > len(records):
        console.show(f"and {count - len(records):,} more: see --limit")


def _list_unmatched(runtime: LightRuntime, pipeline: str | None, limit: int, *, as_json: bool) -> None:
    from taskbridge.store import count_unmatched, read_unmatched, unmatched_sources

    # A message that can never be recorded is stored under the name that it gave, whether or not there is a pipeline.
    if pipeline is None:
        counts = unmatched_sources(runtime.database)
    else:
        source = runtime.source_of(pipeline)
        counts = {source: count_unmatched(runtime.database, source)}
    records = {name: list(islice(read_unmatched(runtime.database, name), limit)) for name in counts}
    if as_json:
        rows = [{"source": name, **one._asdict()} for name, of_source in records.items() for one in of_source]
        console.emit_json({"unmatched": counts, "records": rows})
        return
    if not any(counts.values()):
        console.show("a criterion matched every record")
        return
    made = console.table("source", "message id", "id", "recorded at", "reason", "payload", numbers=("id",))
    for name, of_source in records.items():
        for one in of_source:
            payload = json.dumps(one.payload, ensure_ascii=False)
            texts = (one.reason, payload if len(payload) <= SHOWN_CHARACTERS else f"{payload[:SHOWN_CHARACTERS]}...")
            message = console.plain(one.message_id)
            made.add_row(name, message, str(one.id), console.clock(one.recorded_at), *map(console.plain, texts))
    console.stdout().print(made)
    for name, count in counts.items():
        if count > len(records[name]):
            console.show(f"{name}: and {count - len(records[name]):,} more: see --limit")


@quarantine.command(
    "retry", epilog=examples("taskbridge quarantine retry 536365", "taskbridge quarantine retry --unmatched --all")
)
@_choosing
@data_dir_option
@json_option
def retry(pipeline: str, unmatched: bool, data_dir: Path, as_json: bool, **chosen: Any) -> None:
    """Try records again: their tenants are notified and take them first.

    With --unmatched --all, match all unmatched records again, by the criteria as they are now.
    """
    choice = _Choice(**chosen)
    choice.check(unmatched=unmatched)
    if unmatched:
        if not choice.every:
            raise click.UsageError("unmatched records are matched again all together: add --all, without a choice")
        _match_again(data_dir, pipeline, as_json=as_json)
        return
    runtime = environment.session(data_dir, environment.runtime)
    records = choice.find(runtime, pipeline)
    _note(runtime, "retry", pipeline, choice, records)
    changed = runtime.quarantine_of(pipeline).retry(pipeline, records)
    environment.start({tenant for tenant, _ in changed}, pipeline)
    _end(pipeline, "retried", choice, records, changed, as_json=as_json)
    paused = runtime.pauses.of(pipeline)
    if any(paused.holding(tenant) for tenant, _ in changed):
        console.tell("Paused tenants are tried after `taskbridge resume`; `taskbridge status` names them.")


def _match_again(data_dir: Path, pipeline: str, *, as_json: bool) -> None:
    from taskbridge.producing.recording import criteria_of, match_again

    runtime = environment.session(data_dir, environment.runtime)
    criteria_of(runtime, pipeline)
    tenants, reasons = Counter[str](), Counter[str]()
    for one in match_again(runtime.app, pipeline):
        if one.tenant is not None:
            tenants[one.tenant] += 1
        else:
            reasons[str(one.reason)] += 1
    if as_json:
        counts = {"matched": tenants.total(), "unmatched": reasons.total()}
        console.emit_json({"pipeline": pipeline, **counts, "tenants": tenants, "reasons": dict(reasons.most_common())})
        return
    console.show(f"{tenants.total():,} matched now, of {len(tenants):,} tenants; {reasons.total():,} stay unmatched")
    console.show(*(f"  {count:,}: {reason}" for reason, count in reasons.most_common(console.SHOWN_PROBLEMS)))


@quarantine.command("discard", epilog=examples("taskbridge quarantine discard 536365 --tenant France --yes"))
@_choosing
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
@json_option
def discard(pipeline: str, unmatched: bool, yes: bool, data_dir: Path, as_json: bool, **chosen: Any) -> None:
    """Give records up: they count as discarded, and `taskbridge prune` deletes them one day.

    `taskbridge quarantine list --all` shows them, and retry with the ID brings one back.
    """
    choice = _Choice(**chosen)
    choice.check(unmatched=unmatched)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: add --yes if you want to give these records up")
    runtime = environment.session(data_dir, environment.runtime if unmatched else environment.light_runtime)
    if unmatched:
        if not yes:
            click.confirm(f"Give up the chosen unmatched records of {pipeline}?", abort=True, err=True)
        done = sorted(environment.runtime().records_of(pipeline).discard(list(choice.ids) or None, choice.reason))
        if as_json:
            console.emit_json({"pipeline": pipeline, "discarded": done})
        else:
            console.show(f"{pipeline}: {counted(len(done), 'unmatched record')} discarded")
        return
    records = choice.find(runtime, pipeline)
    if records and not yes:
        tenants = counted(len({one.tenant for one in records}), "tenant")
        click.confirm(f"Give up {counted(len(records), 'record')} of {tenants}?", abort=True, err=True)
    _note(runtime, "discard", pipeline, choice, records)
    changed = runtime.quarantine_of(pipeline).discard(pipeline, records)
    _end(pipeline, "discarded", choice, records, changed, as_json=as_json)


def _note(runtime: LightRuntime, action: str, pipeline: str, choice: _Choice, records: list[QuarantinedRecord]) -> None:
    """Write into the audit what is about to be done with records."""
    if not records:
        return
    tenants = {one.tenant for one in records}
    keys = {one.external_id for one in records} if choice.ids else set()
    environment.note(
        runtime,
        action,
        pipeline=pipeline,
        tenant=tenants.pop() if len(tenants) == 1 else None,
        key=keys.pop() if len(keys) == 1 else None,
        detail=counted(len(records), "record"),
    )


def _end(
    pipeline: str,
    verb: str,
    choice: _Choice,
    records: list[QuarantinedRecord],
    changed: list[tuple[str, str]],
    *,
    as_json: bool,
) -> None:
    """Print what was done, and end with status 1 if an ID is not in quarantine."""
    found = {one.external_id for one in records}
    missing = [one for one in dict.fromkeys(choice.ids) if found.isdisjoint(key_spellings(one))]
    tenants = Counter(tenant for tenant, _ in changed)
    if as_json:
        rows = [{"tenant": tenant, "external_id": external_id} for tenant, external_id in sorted(changed)]
        counts = {verb: len(changed), "tenants": tenants}
        console.emit_json({"pipeline": pipeline, **counts, "records": rows, "not_found": missing})
    else:
        console.show(f"{pipeline}: {counted(len(changed), 'record')} of {counted(len(tenants), 'tenant')} {verb}")
    for one in missing:
        console.complain(f"{one!r} is not in quarantine: see `taskbridge quarantine list --all --pipeline {pipeline}`")
    if missing:
        raise click.exceptions.Exit(1)
