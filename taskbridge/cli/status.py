"""`taskbridge status`: how the pipelines and their tenants stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import Number, data_dir_option, examples, json_option
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, moment, span

if TYPE_CHECKING:
    from taskbridge.observing.context import Context
    from taskbridge.observing.types import By, Health, PipelineLine, Sort, TenantLine
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.store import Paused

__all__ = ["status", "totals_line"]

NOW: Final[dict[str, Sort]] = {
    "name": "name",
    "age": "oldest",
    "failures": "failures",
    "pending": "pending",
    "quarantine": "quarantined",
}
"""What tenants are sorted by as they stand now."""
LATELY: Final[dict[str, By]] = {"events": "events", "runs": "runs", "records": "records", "run-time": "run time"}
"""What tenants are sorted by over the last hours, from the run history."""
SAVED_DAYS: Final = 7
SHOWN_PAUSES: Final = 20
SHOWN_ERRORS: Final = 20
NAMED: Final = 3
"""How many tenants a line names."""
RECORDS_BY_NAME: Final = 10_000
RECORDS_SORTED: Final = 1_000
"""How many records of each state are counted of a tenant: fewer where hundreds are compared."""


@click.command(epilog=examples("taskbridge status", "taskbridge status --sort runs --hours 1 --json"))
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--sort",
    type=click.Choice([*NOW, *LATELY]),
    default="name",
    show_default=True,
    help="Order of the tenants: as they stand now, or by what they caused in the last --hours "
    f"({', '.join(LATELY)}; from the run history).",
)
@click.option("--failing", is_flag=True, help="Only tenants whose last run failed.")
@click.option("--recent-failures", is_flag=True, help="What failed in the last --hours, including what has recovered.")
@click.option("--hours", type=Number(0.01, 24 * 31), default=24.0, show_default=True, help="How far to look back.")
@click.option("--after", metavar="TENANT", default="", help="Continue after this tenant, by name.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Lines to show at most.")
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
    """Show whether the deployment is healthy, what each pipeline saved, and how its tenants stand.

    --sort runs shows who is noisy, --failing who fails now, and --recent-failures what failed lately.
    """
    if after and sort != "name":
        raise click.UsageError("--after continues by name: leave out --after or --sort")
    if (recent_failures or sort in LATELY) and (failing or after):
        raise click.UsageError("--failing and --after show tenants as they stand now: leave them out")
    uses_history = recent_failures or sort in LATELY
    runtime = environment.session(data_dir, environment.light_runtime, redis=not uses_history)
    names = runtime.pipelines.names() if pipeline is None else [runtime.pipelines[pipeline].name]
    context = environment.context_of(runtime)
    if recent_failures:
        _show_failures(context, pipeline, hours, limit, as_json=as_json)
    elif sort in LATELY:
        _show_noisy(context, pipeline, LATELY[sort], hours, limit, as_json=as_json)
    else:
        from taskbridge.observing.status import tenants

        pages = {
            name: tenants(
                context,
                name,
                failing=failing,
                sort=NOW[sort],
                after=after,
                limit=limit + 1,
                records=RECORDS_BY_NAME if sort == "name" else RECORDS_SORTED,
            )
            for name in names
        }
        found = _Found(runtime, context, names, pages, limit, is_by_name=sort == "name")
        if as_json:
            console.emit_json(found.as_json())
        else:
            found.show(failing=failing)


class _Found:
    """A page of tenants of each pipeline, beside what is true of all of it."""

    def __init__(
        self,
        runtime: LightRuntime,
        context: Context,
        names: list[str],
        pages: dict[str, list[TenantLine]],
        limit: int,
        *,
        is_by_name: bool,
    ) -> None:
        from taskbridge.observing.health import health
        from taskbridge.observing.history import saved
        from taskbridge.observing.status import failing
        from taskbridge.store import backfills_due

        self.names, self.limit, self.is_by_name = names, limit, is_by_name
        self.pages = pages
        self.health: Health = health(context)
        self.findings = [one for one in self.health.findings if one.pipeline is None or one.pipeline in names]
        self.lines = {one.pipeline: one for one in self.health.pipelines if one.pipeline in names}
        self.paused: dict[str, Paused] = {name: runtime.pauses.of(name) for name in names}
        self.saved = {one.pipeline: one for one in saved(context, days=SAVED_DAYS)}
        self.errors = [one for one in failing(context, limit=SHOWN_ERRORS) if one.pipeline in names]
        self.backfills = [*backfills_due(runtime.database)]

    def as_json(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        health = {"colour": self.health.colour, "sentence": self.health.sentence}
        findings: list[dict[str, str | None]] = [
            {
                "colour": one.colour,
                "sentence": one.sentence,
                "remedy": console.spoken(one.remedy),
                "pipeline": one.pipeline,
                "tenant": one.tenant,
            }
            for one in self.findings
        ]
        more = {"backfills_due": {one.source: one.what for one in self.backfills}} if self.backfills else {}
        pipelines = {name: self._pipeline_as_json(name) for name in self.names}
        return {"health": health | {"findings": findings}, "pipelines": pipelines, **more}

    def _pipeline_as_json(self, name: str) -> dict[str, Any]:
        page, line = self.pages[name], self.lines[name]
        totals = asdict(line)
        for key in ("pipeline", "survey", "paused", "active"):
            del totals[key]
        if line.unseen and not line.pending:
            totals |= {"pending": None, "oldest_seconds": None}
        circuit = line.survey.circuit
        return {
            "tenants": {one.tenant: _tenant_as_json(one) for one in page[: self.limit]},
            "totals": totals,
            "next": page[self.limit - 1].tenant if len(page) > self.limit and self.is_by_name else None,
            "paused": self.paused[name].whole is not None,
            "circuit": {
                "open": circuit.open,
                "opened": circuit.opened,
                "opened_at": moment(circuit.opened_at_ms),
                "closed_at": moment(circuit.closed_at_ms),
                "failed_probes": circuit.probes,
                "tenants_in_line": circuit.waiting,
            },
            "saved": self._saved(name),
        }

    def _saved(self, name: str) -> dict[str, int]:
        found = self.saved[name]
        return {"days": SAVED_DAYS, "events": found.events, "runs": found.runs, "runs_saved": found.runs_saved}

    def show(self, *, failing: bool) -> None:
        """Print the answer."""
        terminal = console.stdout()
        colour = {"red": "bold red"}.get(self.health.colour, self.health.colour)
        terminal.print(console.cell(self.health.sentence, colour), soft_wrap=True)
        for one in self.findings:
            if one.sentence != self.health.sentence:
                console.show(f"  {one.sentence}")
            if one.remedy:
                console.show(f"  -> {console.spoken(one.remedy)}")
        console.show(*(f"{one.source}: {one.what}; {console.spoken(one.remedy)}" for one in self.backfills))
        for name in self.names:
            page = self.pages[name]
            console.show(f"{totals_line(self.lines[name])}{self._savings(name)}")
            if page:
                terminal.print(_table(page[: self.limit]))
            else:
                console.show(f"{name}: no tenants{' fail' if failing else ''}")
            if len(page) > self.limit:
                console.show("more tenants: " + ("--after continues here" if self.is_by_name else "see --limit"))
            console.show(*self._pauses(name))
        console.show(*self._failing())

    def _savings(self, name: str) -> str:
        saved = self._saved(name)
        if not saved["events"]:
            return ""
        share = f"{saved['runs_saved'] / saved['events']:.0%}"
        events, runs = counted(saved["events"], "event"), counted(saved["runs"], "run")
        return f"; in {SAVED_DAYS} days {events} became {runs}: {share} of the runs saved"

    def _pauses(self, name: str) -> Iterator[str]:
        paused = self.paused[name]
        whole = [] if paused.whole is None else [(name, paused.whole)]
        for what, pause in [*whole, *sorted(paused.tenants.items())][:SHOWN_PAUSES]:
            by = f" by {pause.paused_by}" if pause.paused_by else ""
            reason = f" ({pause.reason})" if pause.reason else ""
            yield f"{what}: paused {ago(pause.paused_at)}{by}{reason}; `taskbridge resume` ends the pause"
        if len(paused.tenants) > SHOWN_PAUSES:
            yield f"{name}: {len(paused.tenants) - SHOWN_PAUSES:,} more tenants are paused"

    def _failing(self) -> Iterator[str]:
        for one in self.errors:
            whose = ", ".join(map(repr, one.sample[:NAMED])) + (", ..." if one.tenants > NAMED else "")
            kept = f"{counted(one.quarantined, 'record')} in quarantine" if one.quarantined else ""
            who = f"{counted(one.tenants, 'tenant fails', 'tenants fail')} ({whose})" if one.tenants else ""
            since = f", for {span(one.since)}" if one.since else ""
            yield f"{one.pipeline}: {', '.join(filter(None, (who, kept)))}{since}: {one_line(one.error)}"


def totals_line(one: PipelineLine) -> str:
    """Return how a pipeline stands, on one line."""
    pending = f"{one.pending:,}{' or more' if one.unseen else ''} pending"
    if one.unseen and not one.pending:
        pending = "pending unknown"
    counts = f"{counted(one.runners, 'runner')}, {pending}, {one.quarantined:,} in quarantine, {one.failing:,} failing"
    return f"{one.pipeline}: {counts}"


def _tenant_as_json(one: TenantLine) -> dict[str, Any]:
    values = asdict(one)
    del values["pipeline"], values["tenant"]
    return values | {"lease_seconds": round(one.lease_seconds, 3)}


def _table(tenants: list[TenantLine]) -> Any:
    counts = ("pending", "handled", "quarantine", "failures", "events", "runs")
    numbers = ("lease", "pending", "oldest", *counts, "last run")
    made = console.table("tenant", "state", "lease", "oldest", *counts, "last run", numbers=numbers)
    for one in tenants:
        values = (one.pending, one.handled, one.quarantined, one.failures, one.burst_events, one.burst_runs)
        made.add_row(
            console.plain(one.tenant),
            console.state(one.state),
            f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-",
            ago(one.pending_since),
            *("-" if value is None else f"{value:,}" for value in values),
            ago(one.last_run_at),
        )
    return made


def _show_noisy(context: Context, pipeline: str | None, by: By, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observing.history import noisy

    found = noisy(context, pipeline, by=by, hours=hours, limit=min(limit, 1_000))
    if as_json:
        console.emit_json({"by": by, "hours": hours, **asdict(found)})
        return
    columns = ("events", "runs", "records", "failures", "run time")
    made = console.table("tenant", "pipeline", *columns, numbers=columns)
    for one in found.tenants:
        counts = [f"{value:,}" for value in (one.events, one.runs, one.records, one.failures)]
        made.add_row(console.plain(one.tenant), one.pipeline, *counts, f"{one.run_ms / 1000:,.1f} s")
    console.stdout().print(made)
    _show_basis(context, pipeline, found.basis)


def _show_failures(context: Context, pipeline: str | None, hours: float, limit: int, *, as_json: bool) -> None:
    from taskbridge.observing.history import failed

    found = failed(context, pipeline, hours=hours, limit=min(limit, 1_000))
    if as_json:
        values = asdict(found)
        console.emit_json({"hours": hours, "errors": values.pop("groups"), **values})
        return
    for one in found.groups:
        whose = ", ".join(map(repr, one.sample[:NAMED])) + (", ..." if one.tenants > NAMED else "")
        runs, tenants = counted(one.runs, "run"), counted(one.tenants, "tenant")
        others = f"; {counted(one.texts - 1, 'other text')} of this kind" if one.texts > 1 else ""
        console.show(
            f"{one.pipeline}: {runs} of {tenants} ({whose}): {one_line(one.error)}",
            f"  first {console.clock(one.first)}, last {console.clock(one.last)}{others}",
        )
    if found.more:
        console.show(f"{counted(found.more, 'more kind')} of error: see --limit")
    if found.rejected:
        records = counted(found.rejected, "record was", "records were")
        console.show(f"{records} rejected in that time: `taskbridge quarantine list` shows why")
    _show_basis(context, pipeline, found.basis)


def _show_basis(context: Context, pipeline: str | None, basis: str) -> None:
    console.show(basis)
    from taskbridge.observing.health import left_out

    others = left_out(context) if pipeline is None else None
    if others is not None:
        console.tell(f"{others.sentence}; {console.spoken(others.remedy)}")
