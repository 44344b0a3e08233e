"""The actions of the dashboard. Each does what a command does, and is written into the audit first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from taskbridge.common.names import check_key, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import LONGEST_TEXT, counted, printable
from taskbridge.errors import InvalidInput
from taskbridge.process.runtime import Runtime
from taskbridge.producer import notify as notifying
from taskbridge.store import LOOK_SECONDS, Audit, Quarantine, QuarantinedRecord

__all__ = ["ACTIONS", "AT_ONCE", "MESSAGES", "Done", "Target", "act"]

AT_ONCE: Final = 10_000
"""Records of one action on quarantine."""
STARTED_AT_ONCE: Final = 1_000
"""Tenants that are started when a whole pipeline is resumed; the reconciler finds the others."""

MESSAGES: Final = {
    "paused": "Paused. Events are taken in, and records stay pending until it is resumed.",
    "paused-before": "It was paused already.",
    "resumed": "Resumed.",
    "not-paused": "It was not paused.",
    "started": "Its runner is started.",
    "delayed": "Its last run was a moment ago, so the next one is set.",
    "absorbed": "It has a runner, which takes this event along.",
    "retried": "Tried again: {records} of {tenants}.",
    "discarded": "Discarded: {records} of {tenants}.",
    "none": "There was nothing to do: no such record is in quarantine.",
}


class Done(NamedTuple):
    """What was done: a key of `MESSAGES`, and to how many records and tenants."""

    message: str
    records: int = 0
    tenants: int = 0


class Target(NamedTuple):
    """What a form is about. `reason` is that of a pause, and `kind` a kind of error of records in quarantine."""

    pipeline: str
    tenant: str | None
    key: str | None
    reason: str | None
    kind: str | None

    @classmethod
    def of(cls, form: Mapping[str, str]) -> Target:
        """Return what a form is about.

        Raises:
            InvalidName, InvalidInput: a name or a text is not allowed.
        """
        tenant, key = form.get("tenant") or None, form.get("key") or None
        if tenant is not None:
            check_tenant(tenant)
            if key is not None:
                check_key(tenant, key)
        # Browsers send line ends as CR LF.
        texts = {
            name: form[name].replace("\r\n", "\n").replace("\r", "\n") for name in ("reason", "kind") if name in form
        }
        if any("\0" in text or len(text) > LONGEST_TEXT for text in texts.values()):
            raise InvalidInput(f"the reason is not allowed: write up to {LONGEST_TEXT:,} characters of text")
        return cls(form.get("pipeline", ""), tenant, key, texts.get("reason") or None, texts.get("kind"))


def act(runtime: Runtime, action: str, target: Target, user: str) -> Done:
    """Do what `user` asks for.

    Raises:
        TaskBridgeError: it cannot be done, or a server is unavailable.
    """
    with translated_errors():
        # Raises UnknownPipeline.
        _ = runtime.pipelines[target.pipeline]
        return ACTIONS[action](runtime, target, user)


def _audit(runtime: Runtime, target: Target, user: str, action: str, detail: str | None = None) -> None:
    audit = Audit(runtime.engine)
    audit.note(user, action, pipeline=target.pipeline, tenant=target.tenant, key=target.key, detail=detail)


def _pause(runtime: Runtime, target: Target, user: str) -> Done:
    _audit(runtime, target, user, "pause", target.reason)
    _, new = runtime.pauses.pause(target.pipeline, target.tenant, target.reason, user)
    return Done("paused" if new else "paused-before")


def _resume(runtime: Runtime, target: Target, user: str) -> Done:
    _audit(runtime, target, user, "resume")
    pipeline, gate = target.pipeline, runtime.gate
    released = runtime.pauses.release(pipeline, target.tenant)
    paused = runtime.pauses.of(pipeline)
    if target.tenant is None:
        pending, held = list(islice(runtime.pending(pipeline), STARTED_AT_ONCE)), gate.paused(pipeline)
    else:
        pending, held = [target.tenant], []
    if started := [tenant for tenant in pending if paused.holding(tenant) is None]:
        notifying.start(runtime.app, started, pipeline, gate)
    gate.expire(pipeline, [tenant for tenant in held if paused.holding(tenant) is None], early=True)
    return Done("resumed" if released else "not-paused")


def _notify(runtime: Runtime, target: Target, user: str) -> Done:
    if target.tenant is None:
        raise InvalidInput("no tenant is named: open the tenant's page")
    _audit(runtime, target, user, "notify")
    return Done(notifying.notify(runtime.app, target.tenant, target.pipeline).name.lower())


def _retry(runtime: Runtime, target: Target, user: str) -> Done:
    records = _chosen(runtime, target, user, "retry")
    retried = runtime.quarantine_of(target.pipeline).retry(target.pipeline, records)
    if tenants := list(dict(retried)):
        notifying.start(runtime.app, tenants, target.pipeline, runtime.gate)
    return Done("retried", len(retried), len(tenants)) if records else Done("none")


def _discard(runtime: Runtime, target: Target, user: str) -> Done:
    records = _chosen(runtime, target, user, "discard")
    discarded = runtime.quarantine_of(target.pipeline).discard(target.pipeline, records)
    return Done("discarded", len(discarded), len(dict(discarded))) if records else Done("none")


def _chosen(runtime: Runtime, target: Target, user: str, action: str) -> list[QuarantinedRecord]:
    """Return the records in quarantine that are meant, written into the audit if there are any.

    They are one record, a tenant's, or those with one kind of error.
    """
    if target.tenant is None and target.kind is None:
        raise InvalidInput("nothing is chosen: choose a record, a tenant or a kind of error")
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


ACTIONS: Final[Mapping[str, Callable[[Runtime, Target, str], Done]]] = {
    "pause": _pause,
    "resume": _resume,
    "notify": _notify,
    "retry": _retry,
    "discard": _discard,
}
