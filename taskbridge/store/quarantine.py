"""Actions of operators: quarantine (retrying and discarding), pauses, and the audit log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from taskbridge.common.names import key_spellings
from taskbridge.common.texts import storable
from taskbridge.store.db import checked_out, fetch, fetch_within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["Pause", "Paused", "Pauses", "Quarantine", "QuarantinedRecord", "audit"]

AT_ONCE: Final = 500
"""Records that one statement changes, and at most locks."""
TRIED: Final = 2.0
"""Seconds for which records that runs have locked are retried."""
PAUSE: Final = 0.05
WHOLE: Final = ""
"""The tenant under which the pause of a whole pipeline is stored."""


class QuarantinedRecord(NamedTuple):
    """A record in quarantine, and why it is there.

    `state`: `quarantined`, `retrying` (its tenant's next sweep takes it) or `discarded`. `cause`: `failed`, after so
    many `attempts` since `failing_since`, or `rejected` by the handler.
    """

    tenant: str
    external_id: str
    revision: int
    state: str
    cause: str
    reason: str
    attempts: int
    failing_since: datetime | None
    quarantined_at: datetime
    retry_at: datetime | None
    discarded_at: datetime | None


class Quarantine:
    """The quarantine of pipelines that read one source.

    A row is about one revision of a record: a record that has changed, or is gone, is not in quarantine.

    Args:
        database: where they are.
        source: what the pipelines read.
        seconds: how long `find` may take; None: no limit.
    """

    def __init__(self, database: Engine, source: str = "invoices", *, seconds: float | None = None) -> None:
        self._database = database
        self._source = source
        self._seconds = seconds

    def find(
        self,
        pipeline: str,
        *,
        tenant: str | None = None,
        external_ids: Collection[str] = (),
        reason: str | None = None,
        kind: str | None = None,
        since: datetime | timedelta | None = None,
        discarded: bool = False,
        limit: int | None = None,
    ) -> tuple[list[QuarantinedRecord], int]:
        """Return up to `limit` records, oldest first, and their total number.

        Args:
            pipeline: the pipeline.
            tenant: only records of this tenant.
            external_ids: only these; empty: any.
            reason: only those whose reason contains this text.
            kind: only those whose reason is of this kind, as defined by the query `look_errors`.
            since: only those quarantined since this time, or within this duration by the server's clock.
            discarded: include discarded records.
            limit: None: all.
        """
        values = {
            "pipeline": pipeline,
            "source": self._source,
            "tenant": tenant,
            "external_ids": [spelling for key in external_ids for spelling in key_spellings(key)] or None,
            "reason": reason,
            "kind": kind,
            "since": since if isinstance(since, datetime) else None,
            "within": since if isinstance(since, timedelta) else None,
            "discarded": discarded,
            "limit": limit,
        }
        records = fetch_within(self._database, self._seconds, "quarantined", values)
        count = records[0]["found"] if records else 0
        return [QuarantinedRecord(*(row[name] for name in QuarantinedRecord._fields)) for row in records], count

    def retry(self, pipeline: str, records: Sequence[QuarantinedRecord]) -> list[tuple[str, str]]:
        """Let the next sweep of their tenants take `records`, including discarded ones.

        Returns:
            Tenant and external id of each, without those that left quarantine in the meantime or were locked by a run.
            The caller notifies the tenants.
        """
        return self._mark(pipeline, records, retry=True)

    def discard(self, pipeline: str, records: Sequence[QuarantinedRecord]) -> list[tuple[str, str]]:
        """Give up `records`, including those that wait for a retry. They stay as `discarded`; `retry` undoes that.

        Returns: as `retry`.
        """
        return self._mark(pipeline, records, retry=False)

    def _mark(self, pipeline: str, records: Sequence[QuarantinedRecord], *, retry: bool) -> list[tuple[str, str]]:
        wanted = [(record.tenant, record.external_id, record.revision) for record in records]
        marked: list[tuple[str, str]] = []
        until = monotonic() + TRIED
        while wanted:
            locked = []
            for at in range(0, len(wanted), AT_ONCE):
                tenants, external_ids, revisions = map(list, zip(*wanted[at : at + AT_ONCE], strict=True))
                which = {"tenants": tenants, "external_ids": external_ids, "revisions": revisions}
                values = {**which, "pipeline": pipeline, "retry": retry}
                for row in fetch(self._database, "quarantine_mark", values):
                    key = row["tenant"], row["external_id"]
                    if row["marked"]:
                        marked.append(key)
                    else:
                        locked.append((*key, row["revision"]))
            if not locked or monotonic() > until:
                break
            sleep(PAUSE)
            wanted = locked
        return marked


@dataclass(frozen=True, slots=True)
class Pause:
    """What is paused (`tenant` None: the whole pipeline), since when, by whom, and the reason if one was given.

    `paused_by` None: it was not recorded.
    """

    tenant: str | None
    reason: str | None
    paused_at: datetime
    paused_by: str | None = None


class Paused(NamedTuple):
    """What is paused in a pipeline: the whole pipeline, and single tenants."""

    whole: Pause | None
    tenants: Mapping[str, Pause]

    def holding(self, tenant: str) -> Pause | None:
        """Return the pause that holds a tenant: its own, or that of its pipeline."""
        return self.tenants.get(tenant, self.whole)


class Pauses:
    """Pauses of tenants or whole pipelines, whose records stay pending until they are resumed."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def pause(
        self, pipeline: str, tenant: str | None = None, reason: str | None = None, by: str | None = None
    ) -> tuple[Pause, bool]:
        """Pause a tenant, or with None the whole pipeline. `by`: the person who does it.

        Returns:
            The pause, and whether it is new. An existing pause stays; its reason is replaced if one is given.
        """
        values = {"pipeline": pipeline, "tenant": tenant or WHOLE, "reason": reason, "by": by}
        (row,) = fetch(self._database, "pause", values)
        already = row.pop("already")
        return Pause(**row), not already

    def release(self, pipeline: str, tenant: str | None = None) -> bool:
        """End the pause of a tenant, or with None that of the pipeline; return whether there was one."""
        return bool(fetch(self._database, "release", {"pipeline": pipeline, "tenant": tenant or WHOLE}))

    def of(self, pipeline: str) -> Paused:
        """Return what is paused in a pipeline."""
        found = fetch(self._database, "pauses", {"pipeline": pipeline, "tenants": None})
        pauses = {row["tenant"]: Pause(**row) for row in found}
        return Paused(pauses.pop(None, None), pauses)

    def snapshot(self) -> str:
        """Return the current `pg_snapshot`, for `Tenants.pending_before`."""
        (row,) = fetch(self._database, "present_snapshot")
        return str(row["snapshot"])


def audit(
    database: Engine,
    who: str,
    action: str,
    *,
    pipeline: str | None = None,
    tenant: str | None = None,
    key: str | None = None,
    detail: str | None = None,
) -> None:
    """Record in the audit log that `who` did `action`; characters that Postgres cannot store are escaped."""
    values = {"pipeline": pipeline, "tenant": tenant, "key": key}
    values |= {"who": storable(who), "action": action, "detail": None if detail is None else storable(detail)}
    with checked_out(database) as driver:
        driver.execute(queries(database)("audit_note"), values)
