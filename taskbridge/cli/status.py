"""`taskbridge status`: how every tenant stands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment
from taskbridge.cli.options import data_dir_option, examples, json_option
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, ahead, iso, moment, span

if TYPE_CHECKING:
    from rich.console import Console

    from taskbridge.cli.delays import Delays
    from taskbridge.cli.tenants import TenantView, Totals
    from taskbridge.gate import CircuitStatus
    from taskbridge.observing.shapes import Cause
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.store import Pause

__all__ = ["status"]


SHOWN_HELD: Final = 20
SHOWN_ERRORS: Final = 20
SHOWN_ALONE: Final = 100
ALIKE: Final = 3
"""So many tenants with the same kind of error have one line."""
NAMED: Final = 3
"""How many tenants such a line names."""
BY_NAME: Final = "name"
SORTS: Final = (BY_NAME, "age", "failures", "pending", "quarantine", "runs")


@dataclass(frozen=True, slots=True)
class _Standing:
    """A page of one pipeline's tenants, what is true of the `whole` of it, and `delays` where it has criteria.

    `held` has why a tenant of the page is held, with the sentence that `taskbridge why` has.
    """

    pipeline: str
    tenants: list[TenantView]
    more: bool
    order: str
    failing: bool
    whole: Totals
    delays: Delays | None
    pause: Pause | None
    circuit: CircuitStatus
    unserved: list[str]
    held: dict[str, tuple[Cause, str]]

    def as_json(self) -> dict[str, Any]:
        """Return what is true of the pipeline itself."""
        unmatched = {} if self.delays is None else {"unmatched": self.delays.unmatched}
        return {
            "totals": self.whole.as_json(),
            "next": self.tenants[-1].tenant if self.more and self.order == BY_NAME else None,
            "paused": self.pause is not None,
            "circuit": self._circuit_as_json(),
            "unserved": self.unserved,
            **unmatched,
        }

    def _circuit_as_json(self) -> dict[str, Any]:
        """Return how the circuit stands; `opened` counts the times that it opened."""
        circuit = self.circuit
        return {
            "open": circuit.open,
            "opened": circuit.opened,
            "opened_at": iso(moment(circuit.opened_at_ms)),
            "closed_at": iso(moment(circuit.closed_at_ms)),
            "failed_probes": circuit.probes,
            "tenants_in_line": circuit.waiting,
        }

    def sentences(self) -> Iterator[str]:
        """Say what an operator may have to do something about, the pipeline first."""
        for sentence in self.unserved:
            yield f"{self.pipeline}: {sentence}"
        if self.pause is not None:
            yield _paused(self.pipeline, self.pause, _command("resume", self.pipeline))
        if self.circuit.open:
            since = f"{self.pipeline}: the circuit has been open for {span(moment(self.circuit.opened_at_ms))}"
            if self.whole.survey.runners:
                yield (
                    f"{since}: everything fails, so nothing goes to quarantine; "
                    f"{counted(self.circuit.probes, 'probe')} failed, "
                    f"{counted(self.circuit.waiting, 'tenant is', 'tenants are')} in the wait queue"
                )
            else:
                yield f"{since}, and nobody has anything to do: the next record of any tenant is its probe"
        for one in self.tenants:
            if one.pause is not None and one.pause.tenant is not None:
                yield _paused(one.tenant, one.pause, _command("resume", self.pipeline, one.tenant))
        yield from self._failures()
        yield from self._held()
        quarantined = self.whole.backlog.quarantined
        if quarantined:
            records = counted(quarantined, "record is", "records are")
            yield f"{self.pipeline}: {records} in quarantine; `{_command('quarantine list', self.pipeline)}` shows why"
        if self.delays is not None and self.delays.unmatched:
            yield self.delays.sentence()

    def _failures(self) -> Iterator[str]:
        """Say which tenants fail: those of one error together, the first errors by how many tenants have them."""
        by_error: dict[tuple[str, bool], list[TenantView]] = {}
        for one in self.tenants:
            if one.counts["failures"]:
                by_error.setdefault((one.counts["error_kind"] or "", _was_asked(one)), []).append(one)
        alike = sorted((group for group in by_error.values() if len(group) >= ALIKE), key=len, reverse=True)
        alone = [one for group in by_error.values() if len(group) < ALIKE for one in group]
        for group in alike[:SHOWN_ERRORS]:
            yield _failures_alike(self.pipeline, group)
        for one in alone[:SHOWN_ALONE]:
            yield self._failure(one)
        if len(alone) > SHOWN_ALONE:
            more = counted(len(alone) - SHOWN_ALONE, "more tenant fails", "more tenants fail")
            yield f"{self.pipeline}: {more}; `{_command('failed', self.pipeline)}` has the kinds of error"
        if len(alike) > SHOWN_ERRORS:
            left = sum(len(group) for group in alike[SHOWN_ERRORS:])
            yield f"{self.pipeline}: {left:,} more tenants fail, with {len(alike) - SHOWN_ERRORS:,} other errors"

    def _failure(self, one: TenantView) -> str:
        from taskbridge.observing.shapes import Cause

        times, error = one.counts["failures"], _last_error(one)
        since = f", for {span(one.counts['failing_since'])}" if one.counts["failing_since"] else ""
        cause, sentence = self.held.get(one.tenant, (None, ""))
        if cause is Cause.BACK_OFF:
            return f"{one.tenant}: {sentence}"
        now = "" if cause in (None, Cause.PAUSED) else f"; now {sentence}"
        return f"{one.tenant}: failed {counted(times, 'time')} in a row{since}, last: {error}{now}"

    def _held(self) -> Iterator[str]:
        """Say why tenants are held that have no failure to tell of, the first few by name."""
        held = [
            one.tenant
            for one in self.tenants
            if one.tenant in self.held
            and not one.runner.waits_for_turn
            and one.pause is None
            and not one.counts["failures"]
        ]
        for tenant in held[:SHOWN_HELD]:
            yield f"{tenant}: {self.held[tenant][1]}"
        if len(held) > SHOWN_HELD:
            yield f"{self.pipeline}: {len(held) - SHOWN_HELD:,} more tenants are held"


@click.command(epilog=examples("taskbridge status --sort age --limit 10", "taskbridge status France --json"))
@click.argument("tenants", metavar="[TENANT]...", nargs=-1)
@click.option("--pipeline", metavar="NAME", help="Only this pipeline.  [default: all]")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many tenants."
)
@click.option("--after", metavar="TENANT", default="", help="Tenants after this one, by name.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default=BY_NAME,
    show_default=True,
    help="Tenants with the oldest pending record first (age), or with the most failures in a row, records pending or "
    "in quarantine, or runs since their first one; equal ones by name. `taskbridge top --sort` goes by the last hours.",
)
@click.option("--failing", is_flag=True, help="Only tenants whose last run failed.")
@data_dir_option
@json_option
def status(
    tenants: tuple[str, ...],
    pipeline: str | None,
    limit: int,
    after: str,
    sort: str,
    failing: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show how each pipeline and its tenants stand, or each TENANT alone.

    Where there are more tenants than are shown, the totals come first: runners, pending records, records in quarantine,
    and tenants whose last run failed. Pending are those of the 1,000 tenants whose runners are due first, and those
    that are to be tried again. Where there may be others, because no worker looks for records or something is paused,
    the number is `or more`, and `not known` in the place of 0. Each is counted up to 100,000. The tenants come by name,
    a page at a time. On a page up to 10,000 records of each are counted, and all of each TENANT that is named. `oldest`
    is the age of the oldest pending record.

    With --failing only tenants whose last run failed are shown. They come by name; with another --sort they are chosen
    from the 1,000 with the most failures.

    With another --sort than by name, the first ones are chosen from five groups of up to 1,000 tenants: those whose
    runners are due first, those with the most failures, those with the most in quarantine, those that are paused, and
    the first by name. Up to 1,000,000 records of all are counted to sort them, so where many are shown fewer than
    10,000 of each.

    Events and runs are those of the tenant's burst that is on, as `taskbridge why` counts them, or of its last one; a
    lease is the time in which one more event belongs to it.

    Where records wait for a delay since the tenant's last run, it shows when they are due, how many wait, and which
    criterion set that; and how many records of the pipeline no criterion matched.

    A tenant that is paused takes its events in and starts no run; the look that finds the pause counts as a run. One
    that is held waits for its next try.

    Three tenants and more with the same kind of error have one line for it: errors whose texts differ in addresses, ids
    and numbers alone.

    Exit status: 0; 1 where a TENANT has no records, no runner and no pause.
    """
    _check(tenants, after, sort, failing=failing)
    runtime = environment.session(data_dir, environment.light_runtime)
    names = runtime.pipelines.names() if pipeline is None else [runtime.pipelines[pipeline].name]
    from taskbridge.cli import undeclared as not_here
    from taskbridge.store import backfills_due, unmatched_sources

    found = {name: _look(runtime, name, tenants, after, limit, sort, failing=failing) for name in names}
    sources = {runtime.pipelines[name].source for name in runtime.pipelines.names()} | set(runtime.pipelines.names())
    unmatched = unmatched_sources(runtime.database).items()
    strangers = {name: count for name, count in unmatched if name not in sources}
    undeclared = not_here.look(runtime)
    read = {runtime.pipelines[name].source for name in names}
    due = [one for one in backfills_due(runtime.database) if one.source in read or pipeline is None]
    if as_json:
        pipelines = {name: _as_json(one) for name, one in found.items()}
        more: dict[str, Any] = {"unmatched_elsewhere": strangers} if strangers else {}
        more |= {"undeclared": undeclared} if undeclared else {}
        more |= {"backfills_due": {one.source: one.what for one in due}} if due else {}
        console.emit_json({"pipelines": pipelines, **more})
    else:
        of_tenant = {name: one for name, one in found.items() if one.tenants}
        _show(of_tenant if tenants else found)
        if tenants:
            # What was asked for is these tenants.
            strangers, undeclared, due = {}, {}, []
        for name, count in strangers.items():
            text = f"{name}: {count:,} unmatched, and no pipeline that takes messages is called so"
            click.echo(console.plain(f"{text}; `{shlex.join(('taskbridge', 'unmatched', 'list', name))}` shows why"))
        if undeclared:
            click.echo(console.plain(not_here.sentence(undeclared)))
        for one in due:
            click.echo(console.plain(f"{one.source}: {one.what}; {console.spoken(one.remedy)}"))
    known = {one.tenant for of in found.values() for one in of.tenants}
    strange = [tenant for tenant in dict.fromkeys(tenants) if tenant not in known]
    for tenant in strange:
        from taskbridge.cli.tenants import unknown

        console.complain(unknown(runtime, tenant))
    if strange:
        raise click.exceptions.Exit(1)


def _check(tenants: tuple[str, ...], after: str, sort: str, *, failing: bool) -> None:
    """Refuse options that do not go together."""
    for tenant in tenants:
        check_tenant(tenant)
    if after and sort != BY_NAME:
        raise click.UsageError("--after goes on by name: leave it out, or --sort")
    if failing and tenants:
        raise click.UsageError("--failing chooses the tenants itself: leave it out, or the tenants")


def _look(
    runtime: LightRuntime, pipeline: str, named: tuple[str, ...], after: str, limit: int, order: str, *, failing: bool
) -> _Standing:
    from taskbridge.cli.tenants import page, page_of_failing, sorted_by, totals, view
    from taskbridge.observing.troubles import slow_work, unserved

    whole = totals(runtime, pipeline)
    tail, interval = whole.tail_seconds, runtime.settings.tail_interval
    surveys, tails = {pipeline: whole.survey}, {pipeline: tail}
    slow = slow_work(runtime.gate, runtime.database, runtime.settings, runtime.pipelines, surveys, tails)
    served = [*unserved(tail, interval, whole.survey.overdue_seconds), *slow.get(pipeline, ())]
    if named:
        tenants, more = [one for tenant in dict.fromkeys(named) for one in view(runtime, pipeline, tenant)], False
    elif order == BY_NAME and failing:
        tenants, more = page_of_failing(runtime, whole, after, limit)
    elif order == BY_NAME:
        tenants, more = page(runtime, whole, after, limit)
    else:
        tenants, more = sorted_by(runtime, whole, order, limit, failing=failing)
    held = _held(runtime, whole, tenants)
    return _Standing(
        pipeline,
        tenants,
        more,
        order,
        failing,
        whole,
        _delays(runtime, pipeline, tenants),
        whole.paused.whole,
        whole.survey.circuit,
        [f"{one.sentence}: {one.remedy}" for one in served],
        held,
    )


def _held(runtime: LightRuntime, whole: Totals, tenants: list[TenantView]) -> dict[str, tuple[Cause, str]]:
    """Return why tenants are held, of those that are."""
    from taskbridge.observing.causes import Seen, used_up, why

    pipeline, settings = whole.pipeline, runtime.settings
    held = [one for one in tenants if one.runner.held]
    places = runtime.gate.places(pipeline, [one.tenant for one in held])
    limits = used_up(runtime.gate, runtime.pipelines[pipeline], {one.tenant: one.runner for one in held})
    return {
        one.tenant: why(
            Seen(
                pipeline,
                one.tenant,
                one.runner,
                place,
                whole.survey.circuit,
                one.counts,
                one.pause,
                one.now_ms,
                whole.tail_seconds,
                round(settings.runner_ttl * 1000),
                settings.tail_interval,
                runtime.pipelines[pipeline].max_runs,
                limits.get(one.tenant, ()),
            )
        )
        for one, place in zip(held, places, strict=True)
    }


def _delays(runtime: LightRuntime, pipeline: str, tenants: list[TenantView]) -> Delays | None:
    policy = runtime.pipelines[pipeline].criteria
    if policy is None:
        return None
    from taskbridge.cli import delays

    return delays.look(runtime, pipeline, policy, tenants)


def _as_json(found: _Standing) -> dict[str, Any]:
    tenants = {
        one.tenant: _tenant_as_json(one)
        | _held_as_json(found.held.get(one.tenant))
        | ({} if found.delays is None else found.delays.as_json(one))
        for one in found.tenants
    }
    return {"tenants": tenants, **found.as_json()}


def _held_as_json(held: tuple[Cause, str] | None) -> dict[str, str | None]:
    cause, sentence = held or (None, None)
    return {"held_cause": cause, "held_because": sentence}


def _tenant_as_json(one: TenantView) -> dict[str, Any]:
    return {
        "state": str(one.runner.state),
        "held": one.runner.held,
        "paused": one.pause is not None,
        "lease_seconds": round(one.lease_seconds, 3),
        **{name: one.counts[name] for name in ("pending", "handled", "quarantined", "discarded")},
        "pending_since": iso(one.counts["pending_since"]),
        "last_run_at": iso(one.last_run_at),
        **{name: one.counts[name] for name in ("burst_events", "burst_runs", "first_event_ms")},
        **{name: one.counts[name] for name in ("events", "runs", "sweeps", "records", "failures", "last_error")},
        "failing_since": iso(one.counts["failing_since"]),
        "next_try_at": iso(one.next_try_at),
    }


def _show(found: dict[str, _Standing]) -> None:
    terminal = console.stdout()
    for name, one in found.items():
        title = name if len(found) > 1 else None
        if one.more:
            terminal.print(str(one.whole))
        if not one.tenants:
            terminal.print(f"{name}: no tenants{' fail' if one.failing else ''}")
        elif one.delays is None:
            terminal.print(_table(terminal, one.tenants, title, one.order))
        else:
            terminal.print(one.delays.table(terminal, one.tenants, title))
        if one.more and one.order != BY_NAME:
            terminal.print("more tenants: --limit shows more, and all come by name, without --sort")
        elif one.more:
            terminal.print(
                console.plain(
                    f"more tenants: {console.spoken(_command('status', name))}{' --failing' if one.failing else ''} "
                    f"--after {one.tenants[-1].tenant!r}"
                )
            )
        for sentence in one.sentences():
            terminal.print(console.plain(sentence))


def _table(terminal: Console | console.Pipe, tenants: list[TenantView], title: str | None, order: str) -> console.Table:
    # What tenants are sorted by is shown.
    sorted_by = {"failures": ["failures in a row"], "runs": ["runs in all"]}.get(order, [])
    columns = ("state", "lease", "pending", "oldest", "handled", "quarantine", "last run", "events", "runs", *sorted_by)
    made = console.Table(terminal, "tenant", *columns, title=title, left=("state",), optional=("oldest",))
    for one in tenants:
        pending, handled, quarantined = map(one.count, ("pending", "handled", "quarantined"))
        burst = [f"{one.counts[key]:,}" for key in ("burst_events", "burst_runs")]
        lease = f"{one.lease_seconds:.1f} s" if one.lease_seconds else "-"
        counts = (pending, ago(one.counts["pending_since"]), handled, quarantined)
        made.add_row(
            console.plain(one.tenant),
            console.state(terminal, one.state),
            lease,
            *counts,
            ago(one.last_run_at),
            *burst,
            *([f"{one.counts[order]:,}"] if sorted_by else []),
        )
    return made


def _was_asked(one: TenantView) -> bool:
    """Whether its last run did not fail: its handler asked to wait."""
    from taskbridge.gate import Hold

    return one.runner.hold is Hold.ASKED


def _last_error(one: TenantView) -> str:
    """Return the last run's error on one line."""
    return one_line(one.counts["last_error"] or "no error was written down")


def _failures_alike(pipeline: str, group: list[TenantView]) -> str:
    """Say that several tenants fail with the same error."""
    first = min((one.counts["failing_since"] for one in group if one.counts["failing_since"]), default=None)
    due = min((one.due_seconds or 0.0 for one in group if one.next_try_at is not None), default=None)
    most = max(one.counts["failures"] for one in group)
    named = ", ".join(repr(one.tenant) for one in group[:NAMED])
    text = f"{pipeline}: {len(group):,} tenants fail alike ({named}{', ...' if len(group) > NAMED else ''})"
    since = f", for {span(first)}" if first else ""
    next_try = f", next try {ahead(due)}" if due is not None else ""
    if due is not None and _was_asked(group[0]):
        next_try += ", which their handler asked for (RetryAfter)"
    return f"{text}, up to {counted(most, 'time')} in a row{since}{next_try}, last: {_last_error(group[0])}"


def _paused(what: str, pause: Pause, resume: str) -> str:
    reason = f" ({pause.reason})" if pause.reason else ""
    by = f" by {pause.paused_by}" if pause.paused_by else ""
    return f"{what}: paused {ago(pause.paused_at)}{by}{reason}; `{resume}` lets it go on"


def _command(name: str, pipeline: str, *arguments: str) -> str:
    """Return a command as it can be typed in a shell."""
    from taskbridge.declaring.pipeline import DECLARED, INVOICES

    option = () if pipeline == INVOICES and len(DECLARED.names()) < 2 else ("--pipeline", pipeline)
    return shlex.join(("taskbridge", *name.split(), *arguments, *option))
