"""The actions of the dashboard. Each one does the same as a command, and is first recorded in the audit table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from taskbridge.common.names import check_key, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import counted, printable, storable
from taskbridge.errors import InvalidInput
from taskbridge.gate import Gate
from taskbridge.process.runtime import Runtime
from taskbridge.producer import notify as notifying
from taskbridge.store import LOOK_SECONDS, Quarantine, QuarantinedRecord, audit

__all__ = ["ACTIONS", "AT_ONCE", "MESSAGES", "Target", "act"]

AT_ONCE: Final = 10_000
"""The maximum number of records of an action on quarantine."""

MESSAGES: Final = {
    "paused": "Paused. Events are accepted, and records stay pending until you resume it.",
    "paused-before": "Already paused.",
    "resumed": "Resumed.",
    "not-paused": "It was not paused.",
    "started": "Its runner has been started.",
    "delayed": "It ran a moment ago, and its next run is scheduled.",
    "absorbed": "It already has a runner, which also handles this event.",
    "retried": "Retried: the records are pending again.",
    "discarded": "Discarded.",
    "none": "Nothing to do: no such record is in quarantine.",
}
"""What is shown after an action, by the result of its function."""


class Target(NamedTuple):
    """What a form applies to. `reason`: of a pause; `kind`: a kind of error of records in quarantine."""

    pipeline: str
    tenant: str | None
    key: str | None
    reason: str | None
    kind: str | None

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Target:
        """Parse a form.

        Raises:
            InvalidName: a name is not allowed.
        """
        tenant, key = form.get("tenant") or None, form.get("key") or None
        if tenant is not None:
            check_tenant(tenant)
            if key is not None:
                check_key(tenant, key)
        # Browsers send line breaks as CR LF.
        kind = storable(form["kind"].replace("\r\n", "\n").replace("\r", "\n")) if "kind" in form else None
        return cls(form.get("pipeline", ""), tenant, key, storable(form.get("reason", "")) or None, kind)


def act(runtime: Runtime, action: str, target: Target, user: str) -> str:
    """Perform an action for `user`, and return a key of `MESSAGES`.

    Raises:
        TaskBridgeError: it is not possible, or a server is unavailable.
    """
    with translated_errors():
        # Raises UnknownPipeline.
        _ = runtime.pipelines[target.pipeline]
        return ACTIONS[action](runtime, target, user)


def _audit(runtime: Runtime, target: Target, user: str, action: str, detail: str | None = None) -> None:
    which = {"pipeline": target.pipeline, "tenant": target.tenant, "key": target.key}
    audit(runtime.engine, user, action, **which, detail=detail)


def _checked(runtime: Runtime, target: Target) -> Gate:
    """Return the gate of the pipeline; raise ForeignGate if workers of another database use it."""
    on = runtime.on(target.pipeline)
    on.check_owner()
    return on.interactive_gate


def _pause(runtime: Runtime, target: Target, user: str) -> str:
    _audit(runtime, target, user, "pause", target.reason)
    _, new = runtime.pauses.pause(target.pipeline, target.tenant, target.reason, user)
    return "paused" if new else "paused-before"


def _resume(runtime: Runtime, target: Target, user: str) -> str:
    pipeline, gate = target.pipeline, _checked(runtime, target)
    _audit(runtime, target, user, "resume")
    released = runtime.pauses.release(pipeline, target.tenant)
    paused = runtime.pauses.of(pipeline)
    resumed = [target.tenant] if target.tenant else gate.paused(pipeline)
    resumed = [tenant for tenant in resumed if paused.holding(tenant) is None]
    if target.tenant:
        notifying.start(runtime.app, resumed, pipeline, gate)
    else:
        # The reconciler starts those that have pending records and no runner.
        gate.expire(pipeline, resumed, early=True)
    return "resumed" if released else "not-paused"


def _notify(runtime: Runtime, target: Target, user: str) -> str:
    if target.tenant is None:
        raise InvalidInput("the tenant is missing: use the tenant's page")
    _checked(runtime, target)
    _audit(runtime, target, user, "notify")
    return notifying.notify(runtime.app, target.tenant, target.pipeline).name.lower()


def _retry(runtime: Runtime, target: Target, user: str) -> str:
    gate, records = _checked(runtime, target), _chosen(runtime, target, user, "retry")
    retried = runtime.quarantine_of(target.pipeline).retry(target.pipeline, records)
    if tenants := list(dict(retried)):
        notifying.start(runtime.app, tenants, target.pipeline, gate)
    return "retried" if retried else "none"


def _discard(runtime: Runtime, target: Target, user: str) -> str:
    records = _chosen(runtime, target, user, "discard")
    discarded = runtime.quarantine_of(target.pipeline).discard(target.pipeline, records)
    return "discarded" if discarded else "none"


def _chosen(runtime: Runtime, target: Target, user: str, action: str) -> list[QuarantinedRecord]:
    """Return the chosen records in quarantine, and record the action in the audit table if there are any.

    The form chooses a single record, those of a tenant, or those with the same kind of error.
    """
    if target.tenant is None and target.kind is None:
        raise InvalidInput("no records chosen: choose a record, a tenant or a kind of error")
    records, _ = Quarantine(runtime.engine, runtime.source_of(target.pipeline), seconds=LOOK_SECONDS).find(
        target.pipeline,
        tenant=target.tenant,
        external_ids=() if target.key is None else (target.key,),
        kind=target.kind,
        discarded=target.key is not None,
        limit=AT_ONCE,
    )
    if records:
        number = counted(len(records), "record")
        _audit(runtime, target, user, action, number if target.kind is None else f"{number}: {printable(target.kind)}")
    return records


ACTIONS: Final[Mapping[str, Callable[[Runtime, Target, str], str]]] = {
    "pause": _pause,
    "resume": _resume,
    "notify": _notify,
    "retry": _retry,
    "discard": _discard,
}
