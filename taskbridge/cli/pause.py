"""`taskbridge pause`, `resume` and `drain`: hold a tenant or a pipeline without losing its events."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.options import Number, data_dir_option, examples, json_option, pipeline_option, stored_text
from taskbridge.cli.starting import resume as start_again
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, storable
from taskbridge.common.times import iso

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime
    from taskbridge.store import Paused

__all__ = ["drain", "pause", "resume"]

POLL_SECONDS: Final = 0.1
# A look counts what is left, so it is taken this much of the time at the most.
LOOKS_SHARE: Final = 0.1
SHOWN_TENANTS: Final = 20
UNKNOWN: Final = "{} has neither records nor a runner yet: is it spelled right?"

_reason_option = click.option("--reason", type=stored_text, metavar="TEXT", help="Why; `taskbridge status` shows it.")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A tenant of a pipeline, or with None the whole pipeline."""

    runtime: Runtime
    pipeline: str
    tenant: str | None

    @property
    def name(self) -> str:
        return self.pipeline if self.tenant is None else f"tenant {self.tenant!r} of {self.pipeline}"

    @property
    def key(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "tenant": self.tenant}

    def pending(self) -> list[str]:
        """Return the tenants with pending records."""
        if self.tenant is None:
            return sorted(self.runtime.pending(self.pipeline))
        counts = self.runtime.tenants_of(self.pipeline).counts(self.pipeline, [self.tenant], 1)
        return [row["tenant"] for row in counts if row["pending"]]

    def paused(self, paused: Paused) -> bool:
        """Whether anything holds it."""
        return (paused.whole if self.tenant is None else paused.holding(self.tenant)) is not None

    def has_own_pause(self) -> bool:
        """Whether it is paused itself."""
        paused = self.runtime.pauses.of(self.pipeline)
        return paused.whole is not None if self.tenant is None else self.tenant in paused.tenants

    def pause(self, reason: str | None, action: str = "pause") -> dict[str, Any]:
        """Pause it and return what `--json` prints; `action` is what the audit says."""
        who = system_user()
        self.note(who, action, reason)
        pause, new = self.runtime.pauses.pause(self.pipeline, self.tenant, reason, by=who)
        said = {"reason": pause.reason, "paused_by": pause.paused_by, "paused_at": iso(pause.paused_at)}
        return self.key | {"paused": True, "new": new, **said}

    def note(self, who: str, action: str, detail: str | None = None) -> None:
        """Write an action down in the audit."""
        from taskbridge.store import Audit

        Audit(self.runtime.database).note(who, action, pipeline=self.pipeline, tenant=self.tenant, detail=detail)


def system_user() -> str:
    """Return the operating system's user who runs the command."""
    import pwd

    try:
        # Not `getpass.getuser`: that believes the environment, which anybody may set.
        return storable(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        # A container may have a user without a name.
        return f"uid {os.getuid()}"


@click.command(
    epilog=examples(
        "taskbridge pause France --reason 'the price list is wrong'", "taskbridge pause --pipeline invoices"
    ),
)
@click.argument("tenant", required=False)
@pipeline_option
@_reason_option
@data_dir_option
@json_option
def pause(tenant: str | None, pipeline: str, reason: str | None, data_dir: Path, as_json: bool) -> None:
    """Hold TENANT, or without TENANT the whole pipeline. A run that has begun finishes the batch in hand.

    Events are taken in and records stay pending until `taskbridge resume`; nothing is lost. What is paused already
    stays so.
    """
    from taskbridge.cli.tenants import view

    scope = _entered(data_dir, pipeline, tenant)
    known = tenant is None or bool(view(scope.runtime, pipeline, tenant))
    done = scope.pause(reason)
    if as_json:
        console.emit_json(done)
    else:
        click.echo(console.plain(f"{scope.name}: {'paused' if done['new'] else 'was paused already'}"))
    if not known:
        console.tell(UNKNOWN.format(scope.name))


@click.command(
    epilog=examples("taskbridge resume France", "taskbridge resume --pipeline invoices"),
)
@click.argument("tenant", required=False)
@pipeline_option
@data_dir_option
@json_option
def resume(tenant: str | None, pipeline: str, data_dir: Path, as_json: bool) -> None:
    """End the pause of TENANT, or without TENANT that of the whole pipeline, and start what is pending.

    Tenants that were paused one by one are resumed one by one.
    """
    scope = _entered(data_dir, pipeline, tenant)
    if scope.has_own_pause():
        scope.note(system_user(), "resume")
    released = scope.runtime.pauses.release(pipeline, tenant)
    left = scope.runtime.pauses.of(pipeline)
    started = [one for one in scope.pending() if left.holding(one) is None]
    start_again(started, pipeline, tenant, left)
    if as_json:
        console.emit_json(scope.key | {"paused": scope.paused(left), "resumed": released, "started": len(started)})
    else:
        was = "resumed" if released else "was not paused"
        click.echo(console.plain(f"{scope.name}: {was}, tenants with pending records: {len(started):,}"))
    if tenant is not None and left.whole is not None:
        console.tell(f"{pipeline} itself is still paused: `taskbridge resume --pipeline {pipeline}` lets it go on.")
    elif tenant is None and left.tenants:
        console.tell(
            f"Tenants that are still paused, one by one: {len(left.tenants):,}; `taskbridge status` names them."
        )


@click.command(
    epilog=examples("taskbridge drain France", "taskbridge drain --pipeline invoices --timeout 60"),
)
@click.argument("tenant", required=False)
@pipeline_option
@click.option(
    "--timeout",
    type=Number(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after waiting this long.",
)
@_reason_option
@data_dir_option
@json_option
def drain(tenant: str | None, pipeline: str, timeout: float, reason: str | None, data_dir: Path, as_json: bool) -> None:
    """Wait until every record that was committed when this began is handled or in quarantine, then pause.

    It is about TENANT, or without TENANT about the whole pipeline. What is committed while it waits may stay pending.

    Exit status: 0 drained and paused; 1 records are left, and nothing was paused.
    """
    if math.isnan(timeout):
        raise click.BadParameter("give a number of seconds", param_hint="--timeout")
    from taskbridge.cli.tenants import view

    started = time.monotonic()
    scope = _entered(data_dir, pipeline, tenant)
    known = tenant is None or bool(view(scope.runtime, pipeline, tenant))
    left, paused = _wait(scope, timeout)
    found = scope.key | {"drained": not left, "paused": False, "left": left}
    if not left:
        found |= scope.pause(reason, "drain")
    found["seconds"] = round(time.monotonic() - started, 3)
    if as_json:
        console.emit_json(found)
    elif not left:
        click.echo(console.plain(f"{scope.name}: drained and paused"))
    if left:
        _complain(scope, left, paused)
        raise click.exceptions.Exit(1)
    if not known:
        console.tell(UNKNOWN.format(scope.name))


def _entered(data_dir: Path, pipeline: str, tenant: str | None) -> _Scope:
    if tenant is not None:
        check_tenant(tenant)
    runtime = environment.session(data_dir, environment.runtime)
    return _Scope(runtime, runtime.pipelines[pipeline].name, tenant)


def _wait(scope: _Scope, timeout: float) -> tuple[dict[str, int], bool]:
    """Wait until nothing is left. Return what is left, by tenant, and whether all of that is paused."""
    pauses, there = scope.runtime.pauses, scope.runtime.tenants_of(scope.pipeline)
    deadline = time.monotonic() + timeout
    snapshot = pauses.snapshot()
    tenants, told = scope.pending(), False
    while True:
        interrupts.check()
        before = time.monotonic()
        left = there.pending_before(scope.pipeline, tenants, snapshot)
        now = pauses.of(scope.pipeline)
        paused = all(now.holding(tenant) for tenant in left)
        after = time.monotonic()
        if not left or paused or after >= deadline:
            return left, paused
        if not told:
            console.tell(f"{scope.name}: waiting for pending records: {sum(left.values()):,}")
        tenants, told = list(left), True
        time.sleep(min(max(POLL_SECONDS, (after - before) / LOOKS_SHARE), deadline - after))


def _complain(scope: _Scope, left: dict[str, int], paused: bool) -> None:
    for tenant, records in list(left.items())[:SHOWN_TENANTS]:
        console.tell(f"{tenant}: {counted(records, 'record is', 'records are')} left")
    if len(left) > SHOWN_TENANTS:
        console.tell(f"... and {len(left) - SHOWN_TENANTS:,} more tenants (--json lists them)")
    why = (
        "paused tenants have pending records, which nobody handles: `taskbridge resume` them first"
        if paused
        else "`taskbridge status` shows why, and a longer --timeout waits longer"
    )
    console.complain(
        f"{scope.name}: not drained, and nothing was paused; pending records: {sum(left.values()):,}; {why}"
    )
