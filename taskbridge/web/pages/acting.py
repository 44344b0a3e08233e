"""What people do by the dashboard. Each action is what a command does, and is written into the audit before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from taskbridge.common.names import check_key, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import LONGEST_TEXT, counted, printable
from taskbridge.errors import InvalidInput
from taskbridge.process.runtime import Runtime
from taskbridge.producing import notify as notifying
from taskbridge.store import LOOK_SECONDS, Audit, Quarantine, QuarantinedRecord

__all__ = ["ACTIONS", "AT_ONCE", "SAID", "Asked", "Did", "act"]

AT_ONCE: Final = 10_000
"""Records of one action on quarantine."""
STARTED_AT_ONCE: Final = 1_000
"""Tenants that are started when a whole pipeline goes on; workers find the others in their next base round."""

SAID: Final = {
    "paused": "Paused. Events are taken in, and records stay pending until it is resumed.",
    "paused-before": "It was paused already.",
    "resumed": "Resumed.",
    "not-paused": "It was not paused.",
    "started": "Its runner is started.",
    "delayed": "Its last run was a moment ago, so the next one is set.",
    "absorbed": "It has a runner, which takes this event along.",
    "retried": "Tried again: {count} of {tenants}.",
    "discarded": "Discarded: {count} of {tenants}.",
    "none": "There was nothing to do: no such record is in quarantine.",
}
"""What is said after an action."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks for. `reason`: that of a pause. `kind`: the kind of error of records in quarantine."""

    pipeline: str
    tenant: str | None
    key: str | None
    reason: str | None
    kind: str | None

    @classmethod
    def read(cls, form: Mapping[str, str]) -> Asked:
        """Return what a form asks for.

        Raises:
            InvalidName, InvalidInput: a name is not allowed.
        """
        tenant, key = form.get("tenant") or None, form.get("key") or None
        if tenant is not None:
            check_tenant(tenant)
            if key is not None:
                check_key(tenant, key)
        reason, kind = form.get("reason") or None, form.get("kind")
        if any(one is not None and ("\0" in one or len(one) > LONGEST_TEXT) for one in (reason, kind)):
            raise InvalidInput(f"the reason is not allowed: write up to {LONGEST_TEXT:,} characters of text")
        return cls(form.get("pipeline", ""), tenant, key, None if reason is None else _line_ends(reason), kind)

    @property
    def named_tenant(self) -> str:
        """The tenant.

        Raises:
            InvalidInput: none is named.
        """
        if self.tenant is None:
            raise InvalidInput("no tenant is named: open the tenant's page")
        return self.tenant


@dataclass(frozen=True, slots=True)
class Did:
    """What was done: a key of `SAID`, of how many records and tenants."""

    what: str
    records: int = 0
    tenants: int = 0


def act(runtime: Runtime, action: str, asked: Asked, user: str) -> Did:
    """Do what `user` asks for.

    Raises:
        TaskBridgeError: it cannot be done, or a server cannot be used.
    """
    with translated_errors():
        # Raises where there is no such pipeline.
        _ = runtime.pipelines[asked.pipeline]
        return ACTIONS[action](runtime, asked, user)


def _audit(runtime: Runtime, asked: Asked, user: str, action: str, detail: str | None) -> None:
    audit = Audit(runtime.engine)
    audit.note(user, action, pipeline=asked.pipeline, tenant=asked.tenant, key=asked.key, detail=detail)


def _pause(runtime: Runtime, asked: Asked, user: str) -> Did:
    _audit(runtime, asked, user, "pause", asked.reason)
    _, new = runtime.pauses.pause(asked.pipeline, asked.tenant, asked.reason, user)
    return Did("paused" if new else "paused-before")


def _resume(runtime: Runtime, asked: Asked, user: str) -> Did:
    _audit(runtime, asked, user, "resume", None)
    released = runtime.pauses.release(asked.pipeline, asked.tenant)
    left = runtime.pauses.of(asked.pipeline)
    if asked.tenant is not None:
        pending = [asked.tenant]
    else:
        pending = list(islice(runtime.pending(asked.pipeline), STARTED_AT_ONCE))
    started = [one for one in pending if left.holding(one) is None]
    if started:
        notifying.start(runtime.app, started, asked.pipeline, runtime.gate)
    held = runtime.gate.paused(asked.pipeline) if asked.tenant is None else []
    runtime.gate.expire(asked.pipeline, [one for one in held if left.holding(one) is None], early=True)
    return Did("resumed" if released else "not-paused")


def _notify(runtime: Runtime, asked: Asked, user: str) -> Did:
    tenant = asked.named_tenant
    _audit(runtime, asked, user, "notify", None)
    return Did(notifying.notify(runtime.app, tenant, asked.pipeline).name.lower())


def _retry(runtime: Runtime, asked: Asked, user: str) -> Did:
    records = _chosen(runtime, asked)
    if not records:
        return Did("none")
    _audit(runtime, asked, user, "retry", _about(records, asked))
    done = runtime.quarantine_of(asked.pipeline).retry(asked.pipeline, records)
    tenants = Counter(tenant for tenant, _ in done)
    notifying.start(runtime.app, list(tenants), asked.pipeline, runtime.gate)
    return Did("retried", len(done), len(tenants))


def _discard(runtime: Runtime, asked: Asked, user: str) -> Did:
    records = _chosen(runtime, asked)
    if not records:
        return Did("none")
    _audit(runtime, asked, user, "discard", _about(records, asked))
    done = runtime.quarantine_of(asked.pipeline).discard(asked.pipeline, records)
    return Did("discarded", len(done), len({tenant for tenant, _ in done}))


def _chosen(runtime: Runtime, asked: Asked) -> list[QuarantinedRecord]:
    """Return the records in quarantine that are meant: one, a tenant's, or those with one kind of error.

    Raises:
        InvalidInput: nothing is chosen.
    """
    if asked.tenant is None and asked.kind is None:
        raise InvalidInput("nothing is chosen: choose a record, a tenant or a kind of error")
    there = Quarantine(runtime.engine, runtime.source_of(asked.pipeline), seconds=LOOK_SECONDS)
    found, _ = there.find(
        asked.pipeline,
        tenant=asked.tenant,
        external_ids=() if asked.key is None else (asked.key,),
        kind=asked.kind,
        discarded=asked.key is not None,
        limit=AT_ONCE,
    )
    return found


def _line_ends(text: str) -> str:
    """Return text with one kind of line ends: browsers change those of a form."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _about(records: list[QuarantinedRecord], asked: Asked) -> str:
    number = counted(len(records), "record")
    return number if asked.kind is None else f"{number}: {printable(asked.kind)}"


ACTIONS: Final[Mapping[str, Callable[[Runtime, Asked, str], Did]]] = {
    "pause": _pause,
    "resume": _resume,
    "notify": _notify,
    "retry": _retry,
    "discard": _discard,
}
"""The actions by name."""
