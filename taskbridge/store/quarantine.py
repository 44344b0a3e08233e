"""Records in quarantine: what is there and why, another try, and giving up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NamedTuple

from taskbridge.common.names import key_spellings
from taskbridge.store.db import driving, within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Quarantine", "QuarantinedRecord"]

AT_ONCE: Final = 500
"""Records that one statement decides on, at the most, and so the most that it locks."""
TRIED: Final = 2.0
"""Seconds for which what runs have locked is tried again."""
PAUSE: Final = 0.05


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

    A row is about one revision of a record: once the record changes in the source, or is gone, it is not in quarantine.

    Args:
        database: where they are.
        source: what the pipelines read.
        seconds: how long `find` may take; None: any time.
    """

    def __init__(self, database: Database, source: str = "invoices", *, seconds: float | None = None) -> None:
        self._source = source
        self._seconds = seconds
        self._query = queries(database)
        self._database = database

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
        """Return up to `limit` records, oldest first, and how many there are in all.

        Args:
            pipeline: whose quarantine.
            tenant: only this tenant's.
            external_ids: only these; none given: any.
            reason: only those whose reason holds this text.
            kind: only those whose reason is of this kind, as the query `look_errors` has it.
            since: only those that came since this time, or in so long a time until now by the server's clock.
            discarded: also those that were discarded.
            limit: None: all.
        """
        values = {
            "pipeline": pipeline,
            "source": self._source,
            "tenant": tenant,
            "external_ids": [meant for one in external_ids for meant in key_spellings(one)] or None,
            "reason": reason,
            "kind": kind,
            "since": since if isinstance(since, datetime) else None,
            "within": since if isinstance(since, timedelta) else None,
            "discarded": discarded,
            "limit": limit,
        }
        with driving(self._database) as driver, within(driver, self._seconds):
            found = driver.execute(self._query("quarantined"), values).fetchall()
        return [QuarantinedRecord(*row[:-1]) for row in found], found[0][-1] if found else 0

    def retry(self, pipeline: str, records: Sequence[QuarantinedRecord]) -> list[tuple[str, str]]:
        """Let the next sweep of their tenants take `records`, also those that were discarded.

        Returns:
            Tenant and external id of each; one that left quarantine meanwhile is not among them, nor one that a run
            held all the time. Whoever calls this notifies the tenants.
        """
        return self._mark(pipeline, records, retry=True)

    def discard(self, pipeline: str, records: Sequence[QuarantinedRecord]) -> list[tuple[str, str]]:
        """Give `records` up, also those that wait for another try. They stay as `discarded`; `retry` takes that back.

        Returns: as `retry`.
        """
        return self._mark(pipeline, records, retry=False)

    def _mark(self, pipeline: str, records: Sequence[QuarantinedRecord], *, retry: bool) -> list[tuple[str, str]]:
        wanted = [(one.tenant, one.external_id, one.revision) for one in records]
        marked: list[tuple[str, str]] = []
        until = monotonic() + TRIED
        while wanted:
            held = []
            for at in range(0, len(wanted), AT_ONCE):
                tenants, external_ids, revisions = map(list, zip(*wanted[at : at + AT_ONCE], strict=True))
                values = {"tenants": tenants, "external_ids": external_ids, "revisions": revisions}
                with driving(self._database) as driver:
                    found = driver.execute(
                        self._query("quarantine_mark"), {**values, "pipeline": pipeline, "retry": retry}
                    ).fetchall()
                marked += [(tenant, external_id) for tenant, external_id, _, is_marked in found if is_marked]
                held += [tuple(row[:3]) for row in found if not row[3]]
            if not held or monotonic() > until:
                break
            sleep(PAUSE)
            wanted = held
        return marked
