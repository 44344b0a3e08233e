"""Records of pipelines with criteria: written once per message, waiting, unmatched, and matched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine

from taskbridge.criteria import Match, Unmatched
from taskbridge.store.cursor import LOCKED, LONG_LOOK
from taskbridge.store.engine import patiently
from taskbridge.store.queries import query

__all__ = ["Matcher", "Records", "UnmatchedRecord", "Waiting", "WaitingRecords"]

Matcher = Callable[[Any], Match | Unmatched]

PAGE: Final = 500


class Waiting(NamedTuple):
    """A tenant with records to take: their smallest delay, and when its records were last taken (milliseconds)."""

    tenant: str
    delay_ms: int
    last_ms: int | None


class WaitingRecords(NamedTuple):
    """How many records wait for a tenant, and the criterion and delay (milliseconds) that set when they are due."""

    waiting: int
    delay_ms: int
    criterion: str


class UnmatchedRecord(NamedTuple):
    """A record that no criterion matched, and why."""

    id: int
    message_id: str
    reason: str
    payload: Any
    recorded_at: datetime


class Records:
    """The records of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    def write(
        self, pipeline: str, message_id: str, payload: str, found: Match | Unmatched, connection: Connection | None
    ) -> bool:
        """Write one record, `payload` as JSON text, in the transaction of `connection` or in one of its own.

        Returns whether it is new; a message that was recorded before stays as it is.
        """
        values = {"pipeline": pipeline, "message_id": message_id, "payload": payload, **_columns(found)}
        if connection is not None:
            return connection.exec_driver_sql(query("record_event"), values).first() is not None
        with self._autocommit.connect() as own:
            return own.exec_driver_sql(query("record_event"), values).first() is not None

    def waiting_tenants(self, pipeline: str, *, every: bool) -> list[Waiting]:
        """Return the tenants whose records are due, or with `every` all that have some to take."""
        with self._autocommit.connect() as connection, patiently(connection, LONG_LOOK, LOCKED):
            rows = connection.exec_driver_sql(query("waiting_tenants"), {"pipeline": pipeline, "all": every})
            return [Waiting(*row) for row in rows]

    def last_runs(self, pipeline: str, within_ms: int) -> list[tuple[str, int]]:
        """Return (tenant, milliseconds of the Unix epoch) of each last run that began within `within_ms`."""
        with self._autocommit.connect() as connection, patiently(connection, LONG_LOOK, LOCKED):
            rows = connection.exec_driver_sql(query("last_runs"), {"pipeline": pipeline, "within_ms": within_ms})
            return [(row.tenant, row.last_ms) for row in rows]

    def waiting(self, pipeline: str, tenant: str) -> WaitingRecords | None:
        """Return what waits for one tenant; None: nothing."""
        values = {"pipeline": pipeline, "tenant": tenant}
        with self._autocommit.connect() as connection:
            row = connection.exec_driver_sql(query("waiting_records"), values).first()
        return None if row is None else WaitingRecords(*row)

    def unmatched(self, pipeline: str, reason: str | None = None, page_size: int = PAGE) -> Iterator[UnmatchedRecord]:
        """Return the records that no criterion matched, oldest first; with `reason` those that have it.

        `page_size` of them are in memory at once.
        """
        after = 0
        while True:
            values = {"pipeline": pipeline, "reason": reason, "after": after, "limit": page_size}
            with self._autocommit.connect() as connection:
                page = [UnmatchedRecord(*row) for row in connection.exec_driver_sql(query("unmatched"), values)]
            yield from page
            if len(page) < page_size:
                return
            after = page[-1].id

    def count_unmatched(self, pipeline: str) -> int:
        """Return how many records no criterion matched."""
        with self._autocommit.connect() as connection:
            return int(connection.exec_driver_sql(query("count_unmatched"), {"pipeline": pipeline}).scalar_one())

    def unmatched_pipelines(self) -> dict[str, int]:
        """Return how many unmatched records each pipeline has, also one that nobody declares; only those with some."""
        with self._autocommit.connect() as connection:
            rows = connection.exec_driver_sql(query("unmatched_pipelines"))
            return {row[0]: row[1] for row in rows}

    def with_reason(self, pipelines: Sequence[str], reason: str) -> dict[str, int]:
        """Return those of `pipelines` that have unmatched records with this reason, each with the oldest one's id."""
        values = {"pipelines": list(pipelines), "reason": reason}
        with self._autocommit.connect() as connection:
            return {row[0]: row[1] for row in connection.exec_driver_sql(query("unmatched_with_reason"), values)}

    @contextmanager
    def matching_alone(self) -> Iterator[bool]:
        """Whether no other process is in such a block: two would match the same records."""
        with self._engine.begin() as connection:
            yield bool(connection.exec_driver_sql(query("matching_alone")).scalars().first())

    def discard(self, pipeline: str, message_ids: Sequence[str] | None, reason: str | None = None) -> list[str]:
        """Give unmatched records up, those with `message_ids` or all; return their message ids.

        They are unmatched no more, and go with the next prune that they are old enough for.
        """
        values = {"pipeline": pipeline, "message_ids": message_ids, "reason": reason}
        with self._autocommit.connect() as connection, patiently(connection, None):
            return list(connection.exec_driver_sql(query("discard_unmatched"), values).scalars())

    def match_again(
        self, pipeline: str, match: Matcher, reason: str | None = None, page_size: int = PAGE
    ) -> Iterator[tuple[UnmatchedRecord, Match | Unmatched]]:
        """Match the unmatched records again, each in a transaction of its own, and yield those that `match` decided.

        With `reason`, only those that were stored with it. `page_size` of them are in memory at once.
        """
        for record in self.unmatched(pipeline, reason, page_size):
            found = match(record.payload)
            if isinstance(found, Unmatched) and found.reason == record.reason:
                yield record, found
                continue
            with self._autocommit.connect() as connection:
                values = {"id": record.id, **_columns(found)}
                changed = connection.exec_driver_sql(query("match_again"), values).first() is not None
            if changed:
                yield record, found


def _columns(found: Match | Unmatched) -> Mapping[str, object]:
    if isinstance(found, Match):
        return {"tenant": found.tenant, "delay_ms": found.delay_ms, "criterion": found.criterion, "reason": None}
    return {"tenant": None, "delay_ms": None, "criterion": None, "reason": found.reason}
