"""`taskbridge pause`, `resume` and `drain`: stop a tenant or a pipeline without losing events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from taskbridge.cli import console, environment, interrupts
from taskbridge.cli.options import data_dir_option, examples, json_option, pipeline_option
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted
from taskbridge.errors import TaskBridgeError

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["drain", "pause", "resume"]

POLL_SECONDS: Final = 0.5

_reason_option = click.option("--reason", metavar="TEXT", help="The reason. `taskbridge status` shows it.")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A tenant, or a whole pipeline if `tenant` is None."""

    runtime: Runtime
    pipeline: str
    tenant: str | None

    @classmethod
    def of(cls, pipeline: str, tenant: str | None) -> _Scope:
        if tenant is not None:
            check_tenant(tenant)
        return cls(environment.checked_runtime(pipeline), pipeline, tenant)

    @property
    def name(self) -> str:
        return self.pipeline if self.tenant is None else f"tenant {self.tenant!r} of {self.pipeline}"

    @property
    def key(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "tenant": self.tenant}

    def pending(self) -> list[str]:
        """Return the tenants with pending records."""
        return sorted(one for one in self.runtime.pending(self.pipeline) if self.tenant in (None, one))

    def pause(self, reason: str | None, action: str) -> dict[str, Any]:
        """Pause it and return what `--json` prints; `action` is the action in the audit table."""
        environment.note(self.runtime, action, **self.key, detail=reason)
        pause, new = self.runtime.pauses.pause(self.pipeline, self.tenant, reason, by=environment.system_user())
        values = {"reason": pause.reason, "paused_by": pause.paused_by, "paused_at": pause.paused_at}
        return self.key | {"paused": True, "new": new, **values}

    def warn_if_unknown(self) -> None:
        """Warn on stderr if the tenant is unknown."""
        from taskbridge.observe.context import Context
        from taskbridge.observe.inspect import tenant

        if self.tenant is not None and not tenant(Context.of(self.runtime), self.pipeline, self.tenant).known:
            console.tell(f"{self.name} has neither records nor a runner: check the spelling.")


@click.command(epilog=examples("taskbridge pause France --reason 'the price list is wrong'"))
@click.argument("tenant", required=False)
@pipeline_option
@_reason_option
@data_dir_option
@json_option
def pause(tenant: str | None, pipeline: str, reason: str | None, as_json: bool) -> None:
    """Pause TENANT, or the whole pipeline if TENANT is omitted.

    Current runs finish their batch. Events are still accepted, and records stay pending until `taskbridge resume`.
    """
    scope = _Scope.of(pipeline, tenant)
    scope.warn_if_unknown()
    done = scope.pause(reason, "pause")
    console.answer(done, f"{scope.name}: {'paused' if done['new'] else 'already paused'}", as_json=as_json)


@click.command(epilog=examples("taskbridge resume France", "taskbridge resume --pipeline invoices"))
@click.argument("tenant", required=False)
@pipeline_option
@data_dir_option
@json_option
def resume(tenant: str | None, pipeline: str, as_json: bool) -> None:
    """Resume TENANT, or the whole pipeline if TENANT is omitted.

    What you resume starts at once if it has pending records. A tenant that was paused by name must be resumed by name.
    """
    scope = _Scope.of(pipeline, tenant)
    pauses, gate = scope.runtime.pauses, scope.runtime.gate
    before = pauses.of(pipeline)
    if before.whole is not None if tenant is None else tenant in before.tenants:
        environment.note(scope.runtime, "resume", **scope.key)
    released = pauses.release(pipeline, tenant)
    left = pauses.of(pipeline)
    started = [one for one in scope.pending() if left.holding(one) is None]
    environment.start(started, pipeline)
    # Tenants without pending records may still have a runner that the pause holds.
    held = [one for one in gate.paused(pipeline) if tenant in (None, one) and left.holding(one) is None]
    gate.expire(pipeline, held, early=True)
    paused = (left.whole if tenant is None else left.holding(tenant)) is not None
    result = "resumed" if released else "was not paused"
    console.answer(
        scope.key | {"paused": paused, "resumed": released, "started": len(started)},
        f"{scope.name}: {result}; started {counted(len(started), 'tenant')} with pending records",
        as_json=as_json,
    )
    if tenant is not None and left.whole is not None:
        console.tell(f"{pipeline} itself is still paused: resume it with `taskbridge resume --pipeline {pipeline}`.")
    elif tenant is None and left.tenants:
        console.tell(
            f"{counted(len(left.tenants), 'tenant is', 'tenants are')} still paused: `taskbridge status` lists them."
        )


@click.command(epilog=examples("taskbridge drain France", "taskbridge drain --pipeline invoices --timeout 60"))
@click.argument("tenant", required=False)
@pipeline_option
@click.option("--timeout", type=click.FloatRange(min=0), default=300.0, metavar="SECONDS", help="How long to wait.")
@_reason_option
@data_dir_option
@json_option
def drain(tenant: str | None, pipeline: str, timeout: float, reason: str | None, as_json: bool) -> None:
    """Wait until no record is pending, then pause TENANT or the pipeline.

    It waits only for records that are already committed. If some of these are still pending after --timeout, nothing
    is paused, and the exit status is 1.
    """
    started = time.monotonic()
    scope = _Scope.of(pipeline, tenant)
    scope.warn_if_unknown()
    left, paused = _wait(scope, timeout)
    found = scope.key | {"drained": not left, "paused": False, "left": left}
    if not left:
        found |= scope.pause(reason, "drain")
    found["seconds"] = round(time.monotonic() - started, 3)
    console.answer(found, *([] if left else [f"{scope.name}: drained and paused"]), as_json=as_json)
    if left:
        remedy = "`taskbridge status` shows why; use a longer --timeout to wait longer"
        if paused:
            remedy = "paused tenants have pending records: use `taskbridge resume` first"
        pending = counted(sum(left.values()), "record is", "records are")
        raise TaskBridgeError(f"{scope.name}: not drained and not paused, {pending} pending", remedy)


def _wait(scope: _Scope, timeout: float) -> tuple[dict[str, int], bool]:
    """Wait until no record is left. Return the number left, by tenant, and whether all those tenants are paused."""
    pauses, tenants_of = scope.runtime.pauses, scope.runtime.tenants_of(scope.pipeline)
    deadline = time.monotonic() + timeout
    snapshot = pauses.snapshot()
    tenants, is_announced = scope.pending(), False
    while True:
        interrupts.check()
        left = tenants_of.pending_before(scope.pipeline, tenants, snapshot)
        now = pauses.of(scope.pipeline)
        paused = all(now.holding(tenant) for tenant in left)
        remaining = deadline - time.monotonic()
        if not left or paused or remaining <= 0:
            return left, paused
        if not is_announced:
            console.tell(f"{scope.name}: waiting for {counted(sum(left.values()), 'pending record')}")
        tenants, is_announced = list(left), True
        time.sleep(min(POLL_SECONDS, remaining))
