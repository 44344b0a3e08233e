"""`taskbridge status`: the state of the pipelines and their tenants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import Number, data_dir_option, examples, json_option
from taskbridge.common.texts import counted, one_line, spoken
from taskbridge.common.times import ago, moment, span

if TYPE_CHECKING:
    from taskbridge.observe.context import Context
    from taskbridge.observe.health import Finding, PipelineHealth
    from taskbridge.observe.history import By, Saved
    from taskbridge.observe.status import Sort, TenantLine
    from taskbridge.store import Paused

__all__ = ["status", "totals_line"]

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
NAMED: Final = 3
"""How many tenants are named in a line."""
RECORDS_BY_NAME: Final = 10_000
RECORDS_SORTED: Final = 1_000
"""Records of each state are counted up to this number for a tenant, fewer if hundreds are compared."""


@click.command(epilog=examples("taskbridge status", "taskbridge status --sort runs --hours 1 --json"))
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--sort",
    type=click.Choice([*NOW, *LATELY]),
    default="name",
    show_default=True,
    help=f"Order of the tenants: by their current state, or by their load in the last --hours ({', '.join(LATELY)}).",
)
@click.option("--failing", is_flag=True, help="Only tenants whose last run failed.")
@click.option("--recent-failures", is_flag=True, help="Show failures of the last --hours, including recovered tenants.")
@click.option("--hours", type=Number(0.01, 24 * 31), default=24.0, show_default=True, help="How far to look back.")
@click.option("--after", metavar="TENANT", default="", help="Start after this tenant. Requires --sort name.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of rows.")
@data_dir_option
@json_option
def status(
    pipeline: str | None,
    sort: str,
    failing: bool,
    recent_failures: bool,
    hours: float,
    after: str,
    limit: int,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show the health of the deployment, how many runs batching avoided in each pipeline, and the state of its tenants.

    To find noisy tenants, use --sort runs. For current failures use --failing, for past ones --recent-failures.

    If one of several Redis servers is unavailable, its pipelines are left out, and the exit status is 1.
    """
    if after and sort != "name":
        raise click.UsageError("--after requires the order by name: omit --after or --sort")
    uses_history = recent_failures or sort in LATELY
    if uses_history and (failing or after):
        raise click.UsageError("--failing and --after show the current state, not the history: omit them")
    context = environment.context(data_dir, redis=not uses_history)
    if recent_failures:
        _show_failures(context, pipeline, hours, limit, as_json=as_json)
    elif sort in LATELY:
        _show_noisy(context, pipeline, LATELY[sort], hours, limit, as_json=as_json)
    elif _show_tenants(context, pipeline, sort, limit, failing=failing, after=after, as_json=as_json):
        raise click.exceptions.Exit(1)


def _show_tenants(
    context: Context, pipeline: str | None, sort: str, limit: int, *, failing: bool, after: str, as_json: bool
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
    names = [*lines]
    findings = [one for one in found.findings if one.pipeline is None or one.pipeline in names]
    choice: dict[str, Any] = {"failing": failing, "sort": NOW[sort], "after": after, "records": records}
    pages = {name: answers.tenants(context, name, **choice, limit=limit + 1) for name in names}
    pauses = {name: Pauses(context.database).of(name) for name in names}
    savings = {one.pipeline: one for one in saved(context, days=SAVED_DAYS)}
    backfills = [*backfills_due(context.database)]
    if as_json:
        more = {"backfills_due": {one.source: one.what for one in backfills}} if backfills else {}
        head = {"colour": found.colour, "sentence": found.sentence, "findings": [*map(_finding_as_json, findings)]}
        pipelines = {
            name: _pipeline_as_json(lines[name], pages[name], limit, pauses[name], savings[name], is_by_name=is_by_name)
            for name in names
        }
        console.emit_json({"health": head, "pipelines": pipelines, **more})
        return found.unavailable
    colour = {"red": "bold red"}.get(found.colour, found.colour)
    console.stdout().print(console.cell(found.sentence, colour), soft_wrap=True)
    for one in findings:
        console.show(*([f"  {one.sentence}"] if one.sentence != found.sentence else ()))
        console.show(*([f"  -> {spoken(one.remedy)}"] if one.remedy else ()))
    console.show(*(f"{one.source}: {one.what}; {spoken(one.remedy)}" for one in backfills))
    for name in names:
        console.show(f"{totals_line(lines[name])}{_savings(savings[name])}")
        _show_page(pages[name][:limit])
        if not pages[name]:
            console.show(f"{name}: no tenants{' are failing' if failing else ''}")
        if len(pages[name]) > limit:
            console.show(f"more tenants: use {'--after' if is_by_name else '--limit'}")
        console.show(*_pauses(name, pauses[name]))
    console.show(*_errors(context, names))
    return found.unavailable


def _finding_as_json(one: Finding) -> dict[str, Any]:
    found = {name: getattr(one, name) for name in ("colour", "sentence", "remedy", "pipeline", "tenant")}
    return found | {"remedy": spoken(one.remedy)}


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
    share = f"{saved.runs_saved / saved.jobs:.0%}"
    return f"; in {SAVED_DAYS} days, {changes} became {counted(saved.runs, 'run')}: {share} of the runs saved"


def _show_page(tenants: Sequence[TenantLine]) -> None:
    columns = {"tenant": "tenant", "state": "state", "lease": "lease_seconds", "oldest": "pending_since"}
    columns |= {"pending": "pending", "handled": "handled", "quarantine": "quarantined", "failures": "failures"}
    columns |= {"events": "burst_events", "runs": "burst_runs", "last run": "last_run_at"}
    console.show_rows(tenants, columns)


def _pauses(name: str, paused: Paused) -> Iterator[str]:
    whole = [] if paused.whole is None else [(name, paused.whole)]
    for what, pause in [*whole, *sorted(paused.tenants.items())][:SHOWN_PAUSES]:
        by = f" by {pause.paused_by}" if pause.paused_by else ""
        reason = f" ({pause.reason})" if pause.reason else ""
        yield f"{what}: paused {ago(pause.paused_at)}{by}{reason}; resume it with `taskbridge resume`"
    if len(paused.tenants) > SHOWN_PAUSES:
        yield f"{name}: {len(paused.tenants) - SHOWN_PAUSES:,} more tenants are paused"


def _errors(context: Context, names: Sequence[str]) -> Iterator[str]:
    from taskbridge.observe.status import failing

    for one in failing(context, limit=SHOWN_ERRORS):
        if one.pipeline in names:
            kept = f"{counted(one.quarantined, 'record')} in quarantine" if one.quarantined else ""
            who = f"{counted(one.tenants, 'tenant')} failing ({_whose(one)})" if one.tenants else ""
            since = f", for {span(one.since)}" if one.since else ""
            yield f"{one.pipeline}: {', '.join(filter(None, (who, kept)))}{since}: {one_line(one.error)}"


def _whose(group: Any) -> str:
    """Return the first tenants of a group of errors."""
    return ", ".join(map(repr, group.sample[:NAMED])) + (", ..." if group.tenants > NAMED else "")


def _show_noisy(context: Context, pipeline: str | None, by: By, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observe.history import noisy

    found = noisy(context, pipeline, by=by, hours=hours, limit=min(limit, 1_000))
    if as_json:
        console.emit_json({"by": by, "hours": hours, **asdict(found)})
        return
    names = ("tenant", "pipeline", "events", "runs", "records", "failures")
    console.show_rows(found.tenants, {name: name for name in names} | {"run time": lambda one: one.run_ms / 1000})
    _show_basis(context, pipeline, found.basis)


def _show_failures(context: Context, pipeline: str | None, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observe.history import failed

    found = failed(context, pipeline, hours=hours, limit=min(limit, 1_000))
    if as_json:
        values = asdict(found)
        console.emit_json({"hours": hours, "errors": values.pop("groups"), **values})
        return
    for one in found.groups:
        runs, tenants = counted(one.runs, "run"), counted(one.tenants, "tenant")
        others = f"; {counted(one.texts - 1, 'other text')} of this kind" if one.texts > 1 else ""
        console.show(
            f"{one.pipeline}: {runs} of {tenants} ({_whose(one)}): {one_line(one.error)}",
            f"  first {console.clock(one.first)}, last {console.clock(one.last)}{others}",
        )
    if found.more:
        console.show(f"{counted(found.more, 'more kind')} of error: use --limit")
    _show_basis(context, pipeline, found.basis)


def _show_basis(context: Context, pipeline: str | None, basis: str) -> None:
    console.show(basis)
    if pipeline is None:
        environment.tell_left_out(context)
