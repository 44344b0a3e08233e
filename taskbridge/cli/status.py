"""`taskbridge status`: the state of the pipelines and their tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.texts import counted, one_line, spoken
from taskbridge.common.times import moment

if TYPE_CHECKING:
    from taskbridge.observe.context import Context
    from taskbridge.observe.health import PipelineHealth
    from taskbridge.observe.history import By, Saved
    from taskbridge.observe.status import Sort, TenantLine
    from taskbridge.store import Paused

__all__ = ["TENANT_COLUMNS", "status", "totals_line"]

NOW: Final[dict[str, Sort]] = {
    "name": "name",
    "age": "oldest",
    "failures": "failures",
    "pending": "pending",
    "quarantine": "quarantined",
}
"""Sort orders by the current state."""
LATELY: Final[dict[str, By]] = {"events": "events", "runs": "runs", "records": "records", "run-time": "run time"}
"""Sort orders by the load in the last hours, from the run history."""
SAVED_DAYS: Final = 7
SHOWN_PAUSES: Final = 20
SHOWN_ERRORS: Final = 20
RECORDS_BY_NAME: Final = 10_000
RECORDS_SORTED: Final = 1_000
"""Records of each state are counted up to this number for a tenant, fewer if hundreds are compared."""
TENANT_COLUMNS: Final = ("tenant", "state", "pending", "pending_since", "handled", "quarantined", "failures")


@click.command(epilog=examples("taskbridge status", "taskbridge status --sort runs --hours 1 --json"))
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--sort",
    type=click.Choice([*NOW, *LATELY]),
    default="name",
    help=f"Order of the tenants: by their current state, or by their load in the last --hours ({', '.join(LATELY)}).",
)
@click.option("--failing", is_flag=True, help="Only tenants whose last run failed.")
@click.option("--recent-failures", is_flag=True, help="Show failures of the last --hours, including recovered tenants.")
@click.option("--hours", type=click.FloatRange(0.01, 24 * 31), default=24.0, help="How far to look back.")
@click.option("--after", metavar="TENANT", help="Start after this tenant. Requires --sort name.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, help="Maximum number of rows.")
@data_dir_option
@json_option
def status(
    pipeline: str | None,
    sort: str,
    failing: bool,
    recent_failures: bool,
    hours: float,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show health, pipelines and tenants. For each pipeline, show how many runs batching avoided.

    To find noisy tenants, use --sort runs. For current failures use --failing, for past ones --recent-failures.

    If one of several Redis servers is unavailable, its pipelines are left out, and the exit status is 1.
    """
    if after and sort != "name":
        raise click.UsageError("--after requires the order by name: omit --after or --sort")
    uses_history = recent_failures or sort in LATELY
    if uses_history and (failing or after):
        raise click.UsageError("--failing and --after show the current state, not the history: omit them")
    context = environment.context(redis=not uses_history)
    if recent_failures:
        _show_failures(context, pipeline, hours, limit, as_json=as_json)
    elif sort in LATELY:
        _show_noisy(context, pipeline, LATELY[sort], hours, limit, as_json=as_json)
    elif _show_tenants(context, pipeline, sort, limit, failing=failing, after=after, as_json=as_json):
        raise click.exceptions.Exit(1)


def _show_tenants(
    context: Context, pipeline: str | None, sort: str, limit: int, *, failing: bool, after: str | None, as_json: bool
) -> Sequence[str]:
    """Show health and tenants; return the names of the Redis servers that are unavailable."""
    from taskbridge.observe import status as answers
    from taskbridge.observe.health import health
    from taskbridge.observe.history import saved
    from taskbridge.store import Pauses, backfills_due

    is_by_name, chosen = sort == "name", context.names(pipeline)
    records = RECORDS_BY_NAME if is_by_name else RECORDS_SORTED
    found = health(context)
    lines = {one.pipeline: one for one in found.pipelines if one.pipeline in chosen}
    findings = [one for one in found.findings if one.pipeline is None or one.pipeline in lines]
    choice: dict[str, Any] = {"failing": failing, "sort": NOW[sort], "after": after or "", "records": records}
    pages = {name: answers.tenants(context, name, **choice, limit=limit + 1) for name in lines}
    pauses = {name: Pauses(context.database).of(name) for name in lines}
    savings = {one.pipeline: one for one in saved(context, days=SAVED_DAYS)}
    backfills = backfills_due(context.database)
    if as_json:
        keys = ("colour", "sentence", "remedy", "pipeline", "tenant")
        rows = [{key: getattr(one, key) for key in keys} | {"remedy": spoken(one.remedy)} for one in findings]
        head = {"colour": found.colour, "sentence": found.sentence, "findings": rows}
        pipelines = {
            name: _pipeline_as_json(lines[name], pages[name], limit, pauses[name], savings[name], is_by_name=is_by_name)
            for name in lines
        }
        more = {"backfills_due": {one.source: one.what for one in backfills}} if backfills else {}
        console.emit_json({"health": head, "pipelines": pipelines, **more})
        return found.unavailable
    console.terminal().print(console.cell(found.sentence, found.colour), soft_wrap=True)
    for one in findings:
        console.show(f"  {one.sentence}")
        console.show(*([f"  -> {spoken(one.remedy)}"] if one.remedy else ()))
    console.show(*(f"{one.source}: {one.what}; {spoken(one.remedy)}" for one in backfills))
    for name, page in pages.items():
        console.show(f"{totals_line(lines[name])}{_savings(savings[name])}")
        console.show_rows(page[:limit], *TENANT_COLUMNS)
        if not page:
            console.show(f"{name}: no tenants{' are failing' if failing else ''}")
        if len(page) > limit:
            console.show(f"more tenants: use {'--after' if is_by_name else '--limit'}")
        _show_pauses(name, pauses[name])
    errors = [one for one in answers.failing(context, limit=SHOWN_ERRORS) if one.pipeline in lines]
    _show_errors(errors, "tenants", "quarantined", "since")
    return found.unavailable


def _pipeline_as_json(
    line: PipelineHealth, page: Sequence[TenantLine], limit: int, paused: Paused, saved: Saved, *, is_by_name: bool
) -> dict[str, Any]:
    totals = {"runners": line.survey.runners, **line.backlog._asdict(), "unseen": line.unseen}
    if line.unseen and not line.backlog.pending:
        totals |= {"pending": None, "oldest_seconds": None}
    circuit = line.survey.circuit
    return {
        "tenants": {one.tenant: _tenant_as_json(one) for one in page[:limit]},
        "totals": totals,
        "next": page[limit - 1].tenant if len(page) > limit and is_by_name else None,
        "paused": paused.whole is not None,
        "circuit": {
            "open": circuit.open,
            "opened": circuit.opened,
            "opened_at": moment(circuit.opened_at_ms),
            "closed_at": moment(circuit.closed_at_ms),
            "failed_probes": circuit.probes,
            "tenants_in_line": circuit.waiting,
        },
        "saved": {"days": SAVED_DAYS, "events": saved.events, "runs": saved.runs, "runs_saved": saved.runs_saved},
    }


def _tenant_as_json(one: TenantLine) -> dict[str, Any]:
    values = asdict(one)
    del values["pipeline"], values["tenant"]
    return values | {"lease_seconds": round(one.lease_seconds, 3)}


def totals_line(one: PipelineHealth) -> str:
    """Return the state of a pipeline on one line."""
    backlog, runners = one.backlog, counted(one.survey.runners, "runner")
    pending = f"{backlog.pending:,}{' or more' if one.unseen else ''} pending"
    if one.unseen and not backlog.pending:
        pending = "pending unknown"
    counts = f"{runners}, {pending}, {backlog.quarantined:,} in quarantine, {backlog.failing:,} failing"
    return f"{one.pipeline}: {counts}"


def _savings(saved: Saved) -> str:
    if not saved.jobs:
        return ""
    changes = counted(saved.jobs, "event" if saved.events >= saved.records else "record")
    share = f"{saved.runs_saved * 100 // saved.jobs}%"
    return f"; in {SAVED_DAYS} days, {changes} became {counted(saved.runs, 'run')}: {share} of the runs saved"


def _show_pauses(name: str, paused: Paused) -> None:
    pauses = [] if paused.whole is None else [(name, paused.whole)]
    pauses += sorted(paused.tenants.items())
    rows = [{"paused": what, **asdict(pause)} for what, pause in pauses[:SHOWN_PAUSES]]
    console.show_rows(rows, "paused", "paused_at", "paused_by", "reason")


def _show_errors(groups: Sequence[Any], *names: str) -> None:
    """Show groups of errors with the first tenants of each."""
    computed = {"such as": lambda one: ", ".join(one.sample[:3]), "error": lambda one: one_line(one.error)}
    console.show_rows(groups, "pipeline", *names, **computed)


def _show_noisy(context: Context, pipeline: str | None, by: By, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observe.history import noisy

    found = noisy(context, pipeline, by=by, hours=hours, limit=min(limit, 1_000))
    if as_json:
        console.emit_json({"by": by, "hours": hours, **asdict(found)})
        return
    names = ("tenant", "pipeline", "events", "runs", "records", "failures")
    console.show_rows(found.tenants, *names, run_time=lambda one: one.run_ms / 1000)
    _show_basis(context, pipeline, found.basis)


def _show_failures(context: Context, pipeline: str | None, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observe.history import failed

    found = failed(context, pipeline, hours=hours, limit=min(limit, 1_000))
    if as_json:
        values = asdict(found)
        console.emit_json({"hours": hours, "errors": values.pop("groups"), **values})
        return
    _show_errors(found.groups, "runs", "tenants", "first", "last")
    if found.more:
        console.show(f"{counted(found.more, 'more kind')} of error: use --limit")
    _show_basis(context, pipeline, found.basis)


def _show_basis(context: Context, pipeline: str | None, basis: str) -> None:
    console.show(basis)
    if pipeline is None:
        environment.tell_left_out(context)
