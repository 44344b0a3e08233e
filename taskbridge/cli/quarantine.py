"""`taskbridge quarantine`: records that cannot be handled, and what could not become a record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option, moment_or_duration, pipeline_option
from taskbridge.common.names import check_tenant, key_spellings
from taskbridge.common.texts import counted
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.observe.context import Context
    from taskbridge.process.runtime import Runtime
    from taskbridge.store import QuarantinedRecord

__all__ = ["quarantine"]

SHOWN_CHARACTERS: Final = 80
SHOWN_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which records of a pipeline a command applies to."""

    pipeline: str
    ids: tuple[str, ...]
    tenant: str | None
    reason: str | None
    every: bool
    unmatched: bool

    def __post_init__(self) -> None:
        """Check that records are chosen, either individually or all of them."""
        if self.tenant is not None:
            if self.unmatched:
                raise click.UsageError("unmatched records have no tenant: omit --tenant")
            check_tenant(self.tenant)
        if self.every == bool(self.ids or self.tenant or self.reason):
            raise click.UsageError("choose records by ID, --tenant or --reason, or all of them with --all")

    def change(
        self, runtime: Runtime, action: str, change: Callable[[str, list[QuarantinedRecord]], list[tuple[str, str]]]
    ) -> list[tuple[str, str]]:
        """Record the action in the audit table, change the chosen records, and return their tenants and keys.

        Discarded records must be chosen by ID.
        """
        filters: dict[str, Any] = {"external_ids": self.ids, "tenant": self.tenant, "reason": self.reason}
        records = runtime.quarantine_of(self.pipeline).find(self.pipeline, **filters, discarded=bool(self.ids))[0]
        tenants = {one.tenant for one in records}
        keys = {one.external_id for one in records} if self.ids else set()
        if records:
            environment.note(
                runtime,
                action,
                pipeline=self.pipeline,
                tenant=tenants.pop() if len(tenants) == 1 else None,
                key=keys.pop() if len(keys) == 1 else None,
                detail=counted(len(records), "record"),
            )
        return sorted(change(self.pipeline, records))

    def show(self, verb: str, changed: list[tuple[str, str]], *, as_json: bool) -> None:
        """Print the result, and exit with status 1 if an ID is not in quarantine."""
        keys = {key for _, key in changed}
        missing = [one for one in dict.fromkeys(self.ids) if keys.isdisjoint(key_spellings(one))]
        tenants = Counter(tenant for tenant, _ in changed)
        rows = [{"tenant": tenant, "external_id": external_id} for tenant, external_id in changed]
        console.answer(
            {"pipeline": self.pipeline, verb: len(changed), "tenants": tenants, "records": rows, "not_found": missing},
            f"{self.pipeline}: {counted(len(changed), 'record')} of {counted(len(tenants), 'tenant')} {verb}",
            as_json=as_json,
        )
        if missing:
            where = f"taskbridge quarantine list --all --pipeline {self.pipeline}"
            raise TaskBridgeError(f"not in quarantine: {', '.join(map(repr, missing))}", f"check with `{where}`")


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--unmatched", is_flag=True, help="Choose entries that could not become a record, instead of quarantine."
        ),
        click.option("--all", "every", is_flag=True, help="Choose all records of the pipeline."),
        click.option("--reason", metavar="TEXT", help="Choose records with this text in their reason."),
        click.option("--tenant", help="Choose records of this tenant.  [default: all tenants]"),
        click.argument("ids", metavar="[ID]...", nargs=-1),
        pipeline_option,
    ):
        command = option(command)
    return command


@click.group(epilog=examples("taskbridge quarantine list", "taskbridge quarantine retry --tenant France"))
def quarantine() -> None:
    """List, retry or discard records in quarantine.

    With --unmatched, the commands are about what could not become a record: messages that no criterion matches,
    webhooks without a valid record, and rows of adopted tables whose tenant or key is not allowed.
    """


@quarantine.command(
    "list", epilog=examples("taskbridge quarantine list --since 2h", "taskbridge quarantine list --json")
)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--tenant", help="Only records of this tenant.  [default: all tenants]")
@click.option("--reason", metavar="TEXT", help="Only records whose reason contains this text.")
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all declared ones]")
@click.option(
    "--since",
    type=moment_or_duration,
    metavar="DURATION|TIME",
    help="Only records quarantined since then: a time such as 2026-01-31T08:00Z, or a duration such as 2h.",
)
@click.option("--all", "discarded", is_flag=True, help="Include discarded records.")
@click.option("--unmatched", is_flag=True, help="List entries that could not become a record, instead of quarantine.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of records.")
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
    as_json: bool,
) -> None:
    """List the records in quarantine with their reasons, oldest first. An ID is a record's key or a message id."""
    context = environment.context(redis=False)
    if unmatched:
        if ids or tenant or reason or since or discarded:
            raise click.UsageError("--unmatched can only be combined with --pipeline and --limit")
        _list_unmatched(context, pipeline, limit, as_json=as_json)
        return
    if tenant is not None:
        check_tenant(tenant)
    from taskbridge.store import Quarantine

    names, records, count = context.names(pipeline), list[dict[str, Any]](), 0
    for name in names:
        page, total = Quarantine(context.database, context.pipelines[name].source).find(
            name, external_ids=ids, tenant=tenant, reason=reason, since=since, discarded=discarded, limit=limit
        )
        records += [{"pipeline": name, **one._asdict()} for one in page]
        count += total
    records = sorted(records, key=lambda one: one["quarantined_at"])[:limit]
    if as_json:
        console.emit_json({"pipeline": names[0] if len(names) == 1 else None, "count": count, "records": records})
    else:
        names_shown = ("pipeline", "external_id", "tenant", "state", "cause", "attempts", "quarantined_at", "reason")
        console.show_rows(records, *names_shown)
        if count > len(records):
            console.show(f"and {count - len(records):,} more: use --limit")
        if not records:
            console.show(f"{', '.join(names)}: no such records in quarantine")
    if pipeline is None:
        environment.tell_left_out(context)


def _list_unmatched(context: Context, pipeline: str | None, limit: int, *, as_json: bool) -> None:
    from taskbridge.store import count_unmatched, read_unmatched, unmatched_sources

    # A message that can never be recorded is stored under the name that it gave, even if there is no such pipeline.
    if pipeline is None:
        counts = unmatched_sources(context.database)
    else:
        source = context.pipelines[pipeline].source if pipeline in context.pipelines else pipeline
        counts = {source: count_unmatched(context.database, source)}
    rows = [
        {"source": name, **one._asdict()}
        for name in counts
        for one in islice(read_unmatched(context.database, name), limit)
    ]
    if as_json:
        console.emit_json({"unmatched": counts, "records": rows})
        return
    for row in rows:
        # The number would be shown with commas.
        row["id"] = str(row["id"])
        row["payload"] = json.dumps(row["payload"], ensure_ascii=False)[:SHOWN_CHARACTERS]
    console.show_rows(rows, "source", "message_id", "id", "recorded_at", "reason", "payload")
    counted_rows = ", ".join(f"{count:,} of {name}" for name, count in counts.items()) or "none"
    console.show(f"unmatched: {counted_rows}")


@quarantine.command(
    "retry", epilog=examples("taskbridge quarantine retry 536365", "taskbridge quarantine retry --unmatched --all")
)
@_choosing
@data_dir_option
@json_option
def retry(as_json: bool, **chosen: Any) -> None:
    """Retry records. The next run of their tenant delivers them first.

    With --unmatched --all, match all unmatched messages against the current criteria.
    """
    choice = _Choice(**chosen)
    if choice.unmatched and not choice.every:
        raise click.UsageError("unmatched records can only be retried together: use --all")
    runtime = environment.checked_runtime(choice.pipeline)
    if choice.unmatched:
        _match_again(runtime, choice.pipeline, as_json=as_json)
        return
    changed = choice.change(runtime, "retry", runtime.quarantine_of(choice.pipeline).retry)
    environment.start({tenant for tenant, _ in changed}, choice.pipeline)
    choice.show("retried", changed, as_json=as_json)


def _match_again(runtime: Runtime, pipeline: str, *, as_json: bool) -> None:
    from taskbridge.declaring.criteria import Match
    from taskbridge.producer.recording import criteria_of, match_again

    criteria_of(runtime, pipeline)
    tenants, reasons = Counter[str](), Counter[str]()
    for _, found in match_again(runtime.app, pipeline):
        if isinstance(found, Match):
            tenants[found.tenant] += 1
        else:
            reasons[found.reason] += 1
    counts = {"matched": tenants.total(), "unmatched": reasons.total()}
    console.answer(
        {"pipeline": pipeline, **counts, "tenants": tenants, "reasons": dict(reasons.most_common())},
        f"{tenants.total():,} now matched, of {len(tenants):,} tenants; {reasons.total():,} still unmatched",
        *(f"  {count:,}: {reason}" for reason, count in reasons.most_common(SHOWN_REASONS)),
        as_json=as_json,
    )


@quarantine.command("discard", epilog=examples("taskbridge quarantine discard 536365 --tenant France --yes"))
@_choosing
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@data_dir_option
@json_option
def discard(yes: bool, as_json: bool, **chosen: Any) -> None:
    """Discard records. They are not delivered again, and `taskbridge prune` can delete them.

    `taskbridge quarantine list --all` still shows them. `taskbridge quarantine retry ID` brings one back.
    """
    choice = _Choice(**chosen)
    if not yes:
        click.confirm("Discard the chosen records?", abort=True, err=True)
    runtime, pipeline = environment.checked_runtime(), choice.pipeline
    if choice.unmatched:
        done = sorted(runtime.records_of(pipeline).discard(list(choice.ids) or None, choice.reason))
        text = f"{pipeline}: {counted(len(done), 'unmatched record')} discarded"
        console.answer({"pipeline": pipeline, "discarded": done}, text, as_json=as_json)
        return
    changed = choice.change(runtime, "discard", runtime.quarantine_of(pipeline).discard)
    choice.show("discarded", changed, as_json=as_json)
