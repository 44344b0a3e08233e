"""A batch of records as it was read, and the cursor's position after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from taskbridge.common import tracing
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Record
from taskbridge.declaring.failures import Bisection
from taskbridge.store.documents import decoded

__all__ = ["CursorRow", "Page", "columns_of", "page_of"]


@dataclass(frozen=True, slots=True)
class Page:
    """A batch of records and the cursor's position after it.

    `finished`: it is the last batch of its sweep. `resumed`: the sweep was begun by an earlier batch, so records
    committed since then are not part of it. `paused`: a pause holds the tenant or the pipeline, and nothing was read.
    The first `retried` records come out of quarantine; `positions` has the position (xid, id) of each of the others.
    `quarantined` has the external ids of records with a row in quarantine, possibly of an earlier revision.
    `undecodable` has, by external id, why a document cannot be decoded. `traceparents` has, by external id, the span
    that wrote a record, if there is one; it is empty if the program does not use tracing.
    """

    records: tuple[Record, ...]
    sweeps: int
    target: str
    finished: bool
    resumed: bool
    paused: bool
    retried: int
    positions: tuple[tuple[str, int], ...]
    quarantined: frozenset[str]
    bisection: Bisection
    failing_since: datetime | None
    undecodable: Mapping[str, str] = field(default_factory=dict)
    traceparents: Mapping[str, str] = field(default_factory=dict)

    @property
    def decoded(self) -> tuple[Record, ...]:
        """The records whose documents could be decoded."""
        if not self.undecodable:
            return self.records
        return tuple(record for record in self.records if record.external_id not in self.undecodable)

    @property
    def moves_cursor(self) -> bool:
        """Whether there is anything to advance past. An empty sweep moves nothing, unless it ends a paged one."""
        return bool(self.records) or (self.resumed and not self.paused)

    @property
    def position(self) -> tuple[str | None, int | None]:
        """The cursor's position after this batch, in the middle of its sweep; nulls: unchanged."""
        return self.positions[-1] if self.positions else (None, None)

    @property
    def leaving(self) -> list[str]:
        """External ids of the batch's records that leave quarantine when they are handled."""
        if not self.quarantined:
            return []
        return [record.external_id for record in self.records if record.external_id in self.quarantined]

    def first(self, count: int) -> Page:
        """Return the batch with only the first `count` records."""
        if count >= len(self.records):
            return self
        records = self.records[:count]
        return replace(
            self,
            records=records,
            undecodable=_undecodable_among(records, self.undecodable),
            finished=False,
            retried=min(self.retried, count),
            positions=self.positions[: max(0, count - self.retried)],
        )

    def after(self, count: int, bisection: Bisection) -> Page:
        """Return the batch with the rest, after the cursor has moved past the first `count` records."""
        records = self.records[count:]
        return replace(
            self,
            records=records,
            undecodable=_undecodable_among(records, self.undecodable),
            sweeps=self.sweeps + 1,
            resumed=True,
            retried=max(0, self.retried - count),
            positions=self.positions[max(0, count - self.retried) :],
            bisection=bisection,
        )


def _undecodable_among(records: Sequence[Record], undecodable: Mapping[str, str]) -> Mapping[str, str]:
    ids = {record.external_id for record in records} if undecodable else ()
    return {external_id: reason for external_id, reason in undecodable.items() if external_id in ids}


class CursorRow(NamedTuple):
    """The cursor: the first columns of `read_batch`, the same in each of its rows."""

    sweeps: int
    batch_limit: int | None
    suspects: int
    attempts: int
    deaths: int
    suspect_revision: int | None
    outages: int
    failing_since: datetime | None
    paused: bool
    size: int
    target: str
    resumed: bool
    adopted: str | None


def page_of(key: RunKey, rows: Sequence[tuple[Any, ...]], *, whole: bool) -> Page:
    """Return the rows of `read_batch` as a page."""
    columns = len(CursorRow._fields)
    cursor = CursorRow._make(rows[0][:columns])
    record_rows = [row[columns:] for row in rows] if rows[0][columns] is not None else []
    pipeline, tenant = key.pipeline, key.tenant
    records, positions, quarantined, undecodable = [], [], [], {}
    # One loop with every column named: a batch is thousands of rows.
    for row_id, xid, external_id, revision, text, _, _, retried, is_quarantined, deleted in record_rows:
        document, reason = ({}, None) if text is None else decoded(text)
        if reason is not None:
            undecodable[external_id] = reason
        records.append(Record(pipeline, tenant, external_id, revision, document, deleted, text or "{}"))
        if not retried:
            positions.append((xid, row_id))
        if is_quarantined:
            quarantined.append(external_id)
    return Page(
        records=tuple(records),
        undecodable=undecodable,
        traceparents=_traceparents(record_rows) if tracing.loaded_api() is not None else {},
        sweeps=cursor.sweeps,
        target=cursor.target,
        finished=whole and len(record_rows) < cursor.size,
        resumed=cursor.resumed,
        paused=cursor.paused,
        retried=len(records) - len(positions),
        positions=tuple(positions),
        quarantined=frozenset(quarantined),
        bisection=Bisection(
            cursor.batch_limit,
            cursor.suspects,
            cursor.attempts,
            cursor.deaths,
            cursor.suspect_revision,
            cursor.outages,
        ),
        failing_since=cursor.failing_since,
    )


def _traceparents(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {external_id: traceparent for _, _, external_id, *_, traceparent, _, _, _ in rows if traceparent is not None}


def columns_of(bisection: Bisection) -> dict[str, int | None]:
    """Return the columns in which a cursor stores the search for a bad record."""
    return {
        "batch_limit": bisection.limit,
        "suspects": bisection.suspects,
        "attempts": bisection.attempts,
        "deaths": bisection.deaths,
        "suspect_revision": bisection.revision,
        "outages": bisection.outages,
    }
