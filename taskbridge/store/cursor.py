"""The cursor: how far a tenant's records have been handled, as a snapshot and not as a number.

Ids and timestamps commit out of order, so "handled up to 1042" loses row 1041 when its transaction commits later. Each
record carries the id of the transaction that wrote it, and a cursor is a `pg_snapshot`: pending is what is visible now
and was not visible in the cursor's snapshot. (PgQ's batches are made this way.) A late commit is found by the next
sweep; a long transaction holds back its own rows and nobody else's.

A sweep larger than one batch is paged by (xid, id) under the snapshot of its first page, the target. Where it stands is
part of the cursor, so the run after a crash resumes there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, takewhile
from threading import Event
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from taskbridge.common.histogram import bucket
from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text, storable
from taskbridge.declaring.batch import Record
from taskbridge.declaring.failures import Bisection
from taskbridge.errors import HandlerMistake, InvalidInput
from taskbridge.store.adopted import described, known
from taskbridge.store.documents import decoded
from taskbridge.store.engine import Bounded, NoAnswer, distrust, within
from taskbridge.store.queries import queries, query, schema_of

__all__ = [
    "Broken",
    "CursorLost",
    "Cursors",
    "Evidence",
    "Page",
    "Quarantined",
    "StaleToken",
    "Transaction",
    "Unread",
    "Waiting",
    "WaitingRecords",
    "driving",
]

log = logging.getLogger(__name__)

LONG_LOOK: Final = 60.0
"""Seconds for a look at many tenants of a pipeline."""
LOCKED: Final = 2.0
"""Of those, seconds to wait for a lock: somebody works on the table, and other pipelines wait for their turn."""
_BLOCKED: Final = ("55P03", "57014")
"""SQLSTATEs of a statement that ended because of a lock or of its time-out."""
PAGE: Final = 1_000
_AT_WORK: Final = (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN)
NO_BISECTION: Final = Bisection()
SMALL: Final = 2_000
"""Bytes of a stored document up to which it comes with its batch; larger ones are fetched after it, in slices.

Postgres compresses what takes more, to a hundredth at the very least. So 500 of these stay below 100 MB.
"""
SLICE: Final = 1_048_576
"""Stored bytes of a slice. Postgres compresses large documents, so as text it may be several times as much."""
BATCH_BYTES: Final = 64 * 2**20
ANY_SIZE: Final = 2**31 - 1
ENDED_TRANSACTION: Final = (
    "the handler committed, rolled back or closed `batch.connection`, so what it wrote did not commit with the cursor: "
    "leave the transaction to the runner, and use `batch.connection.begin_nested()` for a part of it"
)
BATCH_IS_OVER: Final = (
    "the batch is over: a thread or a coroutine that its handler left behind cannot use `batch.connection` any more; "
    "wait for it in the handler, or give it a connection of its own"
)


class CursorLost(Exception):
    """Another run owns the cursor, or the same token advanced it elsewhere; nothing of this batch may take effect."""


class Broken(psycopg.OperationalError):
    """The connection broke, so that nothing is known of the statement."""


class StaleToken(Exception):
    """The cursor belongs to a higher token, `owner`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class _OtherAdoption(Exception):
    """The source was adopted, or adopted anew, since this process has looked."""


class Unread(Exception):
    """A batch of up to `limit` records could not be read because of `error`. The token owns the cursor all the same."""

    def __init__(self, error: Exception, limit: int, *, bisecting: bool) -> None:
        super().__init__(error_text(error))
        self.error = error
        self.limit = limit
        self.bisecting = bisecting


@dataclass(frozen=True, slots=True)
class Page:
    """One batch of records and where the cursor goes when they are handled.

    `finished`: it is the last batch of its sweep. `resumed`: the sweep was begun by an earlier batch, so that records
    committed since are not part of it. `paused`: a pause holds the tenant or the pipeline, and nothing was read. The
    first `retried` records come out of quarantine; `positions` has the place of each of the others, as (xid, id).
    `quarantined` has the external ids of those of which quarantine has a row, be it of an earlier revision.
    `undecodable` says by external id why a record's document cannot be decoded.
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

    @property
    def decoded(self) -> tuple[Record, ...]:
        """The records that a handler can be given."""
        if not self.undecodable:
            return self.records
        return tuple(record for record in self.records if record.external_id not in self.undecodable)

    @property
    def moves_cursor(self) -> bool:
        """Whether there is anything to advance past. An empty sweep moves nothing, unless it ends a paged one."""
        return bool(self.records) or (self.resumed and not self.paused)

    @property
    def position(self) -> tuple[str | None, int | None]:
        """Where the cursor stands after this batch, in the middle of its sweep; nulls: where it stood before."""
        return self.positions[-1] if self.positions else (None, None)

    @property
    def leaving(self) -> list[str]:
        """External ids of the batch's records that leave quarantine when they are handled."""
        return (
            [one.external_id for one in self.records if one.external_id in self.quarantined] if self.quarantined else []
        )

    def first(self, count: int) -> Page:
        """Return the batch of the first `count` records alone."""
        if count >= len(self.records):
            return self
        records = self.records[:count]
        ids = {record.external_id for record in records} if self.undecodable else ()
        return replace(
            self,
            records=records,
            undecodable={one: reason for one, reason in self.undecodable.items() if one in ids},
            finished=False,
            retried=min(self.retried, count),
            positions=self.positions[: max(0, count - self.retried)],
        )


class Quarantined(NamedTuple):
    """Records of a batch that go to quarantine: the reason by external id, and how often each failed alone.

    `cause` is `failed` or `rejected`.
    """

    reasons: Mapping[str, str]
    cause: str
    attempts: int = 1


class Evidence(NamedTuple):
    """What the pipeline's other records say about one that fails alone; see `evidence.sql`."""

    others_succeed: bool
    in_a_row: int


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


class Cursors:
    """The cursors of pipelines that read one source, and what lies after them.

    A run that freezes while it advances holds the cursor's row for `runner_ttl` seconds at the most. A batch's
    transaction that is idle, or gets no answer to a statement of the handler, ends after `transaction_timeout` seconds.
    A batch ends where its large documents come to `batch_bytes` as text.
    """

    def __init__(
        self,
        engine: Engine,
        source: str = "invoices",
        *,
        runner_ttl: float = 5.0,
        transaction_timeout: float = 300.0,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._engine = engine
        self._batch_bytes = batch_bytes
        self._transaction_timeout = transaction_timeout
        self._source = source
        self._query = queries(engine)
        self._rows = RECORDED
        self._idle_timeout = f"{round(runner_ttl * 1000)}ms"
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    def claim(
        self,
        key: RunKey,
        limit: int,
        *,
        events: int,
        new_events: int,
        runs: int,
        bisecting: bool = True,
        documents: bool = True,
    ) -> Page:
        """Make the token of `key` (pipeline, tenant, token) the cursor's owner, count the run, and read a batch.

        Raises:
            StaleToken: a higher token owns the cursor.
            Unread: the cursor was claimed, and the batch could not be read.
        """
        counts = {"new_events": new_events, "burst_runs": runs, "burst_events": events}
        statement = (self._query("claim"), {**key._asdict(), **counts, "session": session_name(key)})
        try:
            page = self._claim(key, limit, bisecting, documents, *statement)
        except Unread:
            # The claim may have been undone with the read. Only who owns the cursor can write the failure down.
            if self._owner(key) != key.token:
                with driving(self._engine) as driver:
                    if driver.execute(*statement).fetchone() is None:
                        raise StaleToken(str(self._owner(key))) from None
            raise
        if page is None:
            raise StaleToken(str(self._owner(key)))
        return page

    def _claim(self, key: RunKey, limit: int, bisecting: bool, documents: bool, *statement: Any) -> Page | None:
        try:
            return self._read(key, limit, bisecting, documents, *statement)
        except Unread as unread:
            if getattr(unread.error, "sqlstate", None) not in _BLOCKED:
                raise
            # A run that was replaced may hold the cursor's row.
            if not self._end_replaced(key):
                raise
            return self._read(key, limit, bisecting, documents, *statement)

    def _end_replaced(self, key: RunKey) -> bool:
        """Whether there were sessions of runs that this one replaced, or others of its own; they are ended."""
        with self._autocommit.connect() as connection:
            return any(connection.exec_driver_sql(self._query("end_replaced"), _successor(key)).scalars().all())

    def read(self, key: RunKey, limit: int, *, bisecting: bool = True, documents: bool = True) -> Page:
        """Read up to `limit` records after the cursor; if `bisecting`, fewer while a bad one is looked for.

        Without `documents` the records' documents are empty, and none is touched in Postgres.

        Raises:
            CursorLost: the token does not own the cursor.
            Unread: Postgres took too long or failed, or there was too little memory.
        """
        page = self._read(key, limit, bisecting, documents, self._query("plan_by_index"))
        if page is None:
            raise CursorLost
        return page

    def load(self, record: Record) -> Record | None:
        """Return a record that was read without its document with it; None: it is gone, or cannot be decoded.

        Raises:
            Unread: as `read` does.
        """
        which = {"source": self._source, "tenant": record.tenant, "key": record.external_id}
        values = {**which, "revision": record.revision, "small": ANY_SIZE}
        try:
            with driving(self._engine) as driver:
                row = driver.execute(self._reading("document"), values).fetchone()
            if row is None:
                return None
            text, deleted = row
            document, reason = ({}, None) if text is None else decoded(text)
        except (psycopg.Error, MemoryError) as error:
            raise Unread(error, 1, bisecting=False) from error
        return replace(record, document=document, deleted=deleted) if reason is None else None

    def _reading(self, name: str) -> str:
        return query(name, schema_of(self._engine), self._rows.document)

    def _read(self, key: RunKey, limit: int, bisecting: bool, documents: bool, *before: Any) -> Page | None:
        """Read one batch in one round trip, and once more if its connection broke.

        A server that restarts breaks every connection that lies in the pool; one run must find all of them out.
        """
        try:
            try:
                return self._read_known(key, limit, bisecting, documents, *before)
            except Broken:
                distrust(self._engine)
                return self._read_known(key, limit, bisecting, documents, *before)
        except (psycopg.Error, MemoryError, InvalidInput) as error:
            # What was read so far would fill the memory until the failure is written down.
            traceback.clear_frames(error.__traceback__)
            raise Unread(error, limit, bisecting=bisecting) from error

    def _read_known(self, key: RunKey, limit: int, bisecting: bool, documents: bool, *before: Any) -> Page | None:
        """Read one batch; once more where the source was adopted, or its table changed, since this process has looked.

        Raises:
            InvalidInput: the adopted table is not what it was, so that its rows cannot be read.
        """
        seen = self._rows
        try:
            return self._read_once(key, limit, bisecting, documents, *before)
        except _OtherAdoption:
            # What came before the read is committed.
            before = (self._query("plan_by_index"),)
        except psycopg.ProgrammingError:
            # As where the table, or a column, was renamed.
            if seen is RECORDED:
                raise
        self._look_up()
        return self._read_once(key, limit, bisecting, documents, *before)

    def _look_up(self) -> None:
        """Look what the source is now: that of records with their documents, or an adopted table.

        Raises:
            InvalidInput: the table was dropped, or cannot be a source as it is now.
        """
        with self._engine.begin() as connection:
            found = known(connection, self._source)
            if not found:
                self._rows = RECORDED
                return
            adopted = described(connection, found[0].relation, found[0].definition)
            self._rows = _Rows(found[0].version, adopted.document)

    def _read_once(self, key: RunKey, limit: int, bisecting: bool, documents: bool, *before: Any) -> Page | None:
        """Read one batch in a transaction of its own, after the statement `before`; all of it is sent at once.

        READ COMMITTED, whatever the database's default is, so that the read sees what the claim waited for.
        """
        with driving(self._engine) as driver:
            cursor = driver.cursor()
            with driver.pipeline():
                driver.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                driver.execute(*before)
                small = SMALL if documents else -1
                values = {
                    **key._asdict(),
                    "source": self._source,
                    "limit": limit,
                    "bisecting": bisecting,
                    "small": small,
                }
                cursor.execute(self._reading("read_batch"), values)
                driver.execute("COMMIT")
            # Asked for any earlier, the rows would cost a round trip of their own.
            rows = cursor.fetchall()
            whole, is_known = True, not rows or rows[0][_ADOPTED] == self._rows.version
            if is_known and documents and any(row[_STORED] for row in rows):
                rows, whole = self._with_documents(driver, key, rows)
        if not is_known:
            raise _OtherAdoption
        return _page(key, rows, whole=whole) if rows else None

    def _with_documents(
        self, driver: psycopg.Connection[Any], key: RunKey, rows: list[tuple[Any, ...]]
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Fetch the documents that were left out, in slices, up to that with which they come to the most bytes.

        Returns the rows up to there, and whether none is missing. A record that was changed or deleted since it was
        read is left out: its new revision is found as any other.
        """
        left, at = self._batch_bytes, 0
        kept: list[tuple[Any, ...]] = []
        while at < len(rows) and left > 0:
            part = _slice(rows, at)
            at += len(part)
            large = [row for row in part if row[_STORED]]
            names = {"source": self._source, "tenant": key.tenant}
            which = {"ids": [row[_ID] for row in large], "xids": [row[_XID] for row in large], "small": ANY_SIZE}
            found = driver.execute(self._reading("documents"), {**names, **which}).fetchall() if large else []
            texts = {row_id: (text, deleted) for row_id, text, deleted in found}
            left -= sum(len(text or "") for text, _ in texts.values())
            for row in part:
                if not row[_STORED]:
                    kept.append(row)
                elif row[_ID] in texts:
                    text, deleted = texts[row[_ID]]
                    kept.append((*row[:_TEXT], text, *row[_STORED:-1], deleted))
        return kept or [(*rows[0][:_ID], *[None] * (len(rows[0]) - _ID))], len(kept) == len(rows)

    def _owner(self, key: RunKey) -> str | None:
        with self._autocommit.connect() as connection:
            return connection.exec_driver_sql(self._query("owner"), key._asdict()).scalar()

    @contextmanager
    def transaction(self, key: RunKey) -> Iterator[Transaction]:
        """Open the transaction of one batch: what is written through it commits with the cursor or not at all."""
        transaction = Transaction(self._engine, key, self._source, self._idle_timeout, self._transaction_timeout)
        try:
            yield transaction
        finally:
            if transaction.close():
                # Other sessions of the pool may be silent too, and each costs a record one of its tries.
                distrust(self._engine)
                # Its statement would go on, and its locks would keep what is tried next waiting.
                try:
                    self._end_replaced(key)
                except (DBAPIError, psycopg.Error) as error:
                    # Postgres may be what failed. What is tried next ends the session at its own beginning.
                    log.warning("the session of tenant %r may go on: %s", key.tenant, error_text(error))

    def fail(self, key: RunKey, error: str, bisection: Bisection | None = None, unread: int | None = None) -> int:
        """Keep the text of a failure, and how far the search for a bad record got; return the failures in a row.

        Where a batch of up to `unread` records could not be read, the next one has half as many at the most.

        Raises:
            CursorLost: the token does not own the cursor.
        """
        columns = _columns(bisection or NO_BISECTION)
        with self._autocommit.connect() as connection:
            values = {
                **key._asdict(),
                **columns,
                "bisecting": bisection is not None,
                "unread": unread,
                "error": storable(error),
            }
            failures = connection.exec_driver_sql(self._query("fail"), values).scalar()
        if failures is None:
            raise CursorLost
        return int(failures)

    def limit(self, key: RunKey, bisection: Bisection) -> None:
        """Keep how many records the next batch may have.

        Raises:
            CursorLost: the token does not own the cursor.
        """
        with self._autocommit.connect() as connection:
            if (
                connection.exec_driver_sql(self._query("limit_batch"), {**key._asdict(), **_columns(bisection)}).first()
                is None
            ):
                raise CursorLost

    def evidence(self, key: RunKey) -> Evidence:
        """Return what the pipeline's other records say about one of this tenant that fails alone."""
        with self._autocommit.connect() as connection:
            return Evidence(*connection.exec_driver_sql(self._query("evidence"), key._asdict()).one())

    def note_success(self, key: RunKey, *, trial: bool = False) -> None:
        """Note that the handler took records after something failed; a `trial` moves no cursor."""
        with self._autocommit.connect() as connection:
            connection.exec_driver_sql(self._query("succeeded"), {**key._asdict(), "trial": trial})

    def last_runs(self, pipeline: str, within_ms: int, page: int = 5 * PAGE) -> Iterator[list[tuple[str, int]]]:
        """Return (tenant, milliseconds of the Unix epoch) of each last run that began within `within_ms`, in pages."""
        values = {"pipeline": pipeline, "within_ms": within_ms, "after": "", "limit": page}
        while True:
            with self._autocommit.connect() as connection, within(connection, LONG_LOOK, LOCKED):
                rows = connection.exec_driver_sql(self._query("last_runs"), values).all()
            yield [(row.tenant, row.last_ms) for row in rows if row.last_ms is not None]
            if len(rows) < page:
                return
            values["after"] = rows[-1].tenant

    def waiting(self, pipeline: str, tenant: str, smallest: int) -> WaitingRecords | None:
        """Return what waits for one tenant; None: nothing."""
        values = {"pipeline": pipeline, "tenant": tenant, "smallest": smallest, "size": None}
        with self._autocommit.connect() as connection:
            row = connection.exec_driver_sql(self._query("waiting_records"), {**values, "source": self._source}).first()
        return None if row is None else WaitingRecords(*row)

    def pending_before(self, pipeline: str, tenants: Collection[str], snapshot: str) -> dict[str, int]:
        """Return, of `tenants`, those with pending records that are visible in `snapshot`, and how many each has.

        A record that is tried again is pending; one that changed after the snapshot is not visible in it.
        """
        values = {"pipeline": pipeline, "tenants": list(tenants), "snapshot": snapshot, "size": None}
        with self._autocommit.connect() as connection, within(connection, None):
            rows = connection.exec_driver_sql(self._query("pending_before"), {**values, "source": self._source})
            return {row.tenant: row.records for row in rows}

    def tenants_after(self, pipeline: str, after: str, limit: int) -> list[str]:
        """Return the next `limit` tenants by name that have records or a cursor; after "" the first ones."""
        values = {"pipeline": pipeline, "source": self._source, "after": after, "limit": limit}
        with self._autocommit.connect() as connection, within(connection, None):
            return list(connection.exec_driver_sql(self._query("tenants_after"), values).scalars())

    def every_count(self, pipeline: str) -> Iterator[dict[str, Any]]:
        """Return what `counts` says of every tenant, by name, page by page."""
        after = ""
        while tenants := self.tenants_after(pipeline, after, PAGE):
            yield from self.counts(pipeline, tenants)
            after = tenants[-1]

    def counts(self, pipeline: str, tenants: Collection[str], most: int | None = None) -> list[dict[str, Any]]:
        """Return records by state and the cursor's counters, per tenant; see `tenant_counts.sql` for the columns.

        Of each tenant up to `most` records are counted; None: all. Tenants without records and cursor are left out.
        """
        values = {"pipeline": pipeline, "source": self._source, "tenants": list(tenants), "size": most}
        with self._autocommit.connect() as connection, within(connection, None):
            rows = connection.exec_driver_sql(self._query("tenant_counts"), values)
            return [dict(row) for row in rows.mappings() if row["known"]]

    def delivery_counts(self, pipeline: str) -> tuple[int, int]:
        """Return how many deliveries the journal holds, and how many repeat one of the same revision."""
        with self._autocommit.connect() as connection, within(connection, None):
            row = connection.exec_driver_sql(self._query("delivery_counts"), {"pipeline": pipeline}).one()
        return row.deliveries, row.duplicates


@contextmanager
def driving(engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    """Lend a connection of the pool, each statement its own transaction. SQLAlchemy's share of a run's time is saved.

    Raises:
        Broken: the connection broke.
    """
    pooled = engine.raw_connection()
    driver: psycopg.Connection[Any] | None = pooled.driver_connection
    assert driver is not None  # noqa: S101 - for the type: a connection of the pool has its driver's
    try:
        driver.autocommit = True
        yield driver
        driver.autocommit = False
    except BaseException as error:
        broken = driver.broken
        # Nobody knows how it stands, so it must not go back to the pool.
        pooled.invalidate()
        if isinstance(error, NoAnswer):
            # A second try would take as long.
            distrust(engine)
        elif broken and isinstance(error, psycopg.OperationalError):
            raise Broken(*error.args) from error
        raise
    finally:
        pooled.close()


def session_name(key: RunKey) -> str:
    """Return what a session that may hold locks of a run is called: its tenant's part, and the token."""
    return f"{_tenant_name(key)} {key.token}"


def _tenant_name(key: RunKey) -> str:
    of_tenant = hashlib.sha256(json.dumps((key.pipeline, key.tenant)).encode()).hexdigest()
    return f"taskbridge {of_tenant[:16]}"


def _successor(key: RunKey) -> dict[str, str]:
    return {"session": session_name(key), "of_tenant": f"{_tenant_name(key)} %"}


class _Standing(NamedTuple):
    """Where the cursor stands: the first columns of `read_batch.sql`, the same in each of its rows."""

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
    adopted: int | None


class _Rows(NamedTuple):
    """Where the documents of a source are: the version of its adoption, and the part of SQL that reads them."""

    version: int | None
    document: str | None


RECORDED: Final = _Rows(None, None)


# After them comes the record, if there is one. No named tuple: a batch is thousands of rows.
_ADOPTED: Final = _Standing._fields.index("adopted")
_ID: Final = len(_Standing._fields)
_XID, _TEXT, _STORED = _ID + 1, _ID + 4, _ID + 5


def _slice(rows: Sequence[tuple[Any, ...]], first: int) -> Sequence[tuple[Any, ...]]:
    """Return the rows from `first` on, up to that with which the documents that were left out make a slice."""
    stored = accumulate(row[_STORED] or 0 for row in rows[first:])
    return rows[first : first + 1 + sum(1 for _ in takewhile(lambda bytes_: bytes_ < SLICE, stored))]


def _page(key: RunKey, rows: Sequence[tuple[Any, ...]], *, whole: bool) -> Page:
    columns = len(_Standing._fields)
    cursor = _Standing._make(rows[0][:columns])
    found = [row[columns:] for row in rows if row[columns] is not None]
    pipeline, tenant = key.pipeline, key.tenant
    records, undecodable = [], {}
    for _, _, external_id, revision, text, *_, deleted in found:
        document, reason = ({}, None) if text is None else decoded(text)
        if reason is not None:
            undecodable[external_id] = reason
        records.append(Record(pipeline, tenant, external_id, revision, document, deleted))
    return Page(
        records=tuple(records),
        undecodable=undecodable,
        sweeps=cursor.sweeps,
        target=cursor.target,
        finished=whole and len(found) < cursor.size,
        resumed=cursor.resumed,
        paused=cursor.paused,
        retried=sum(retried for *_, retried, _, _ in found),
        positions=tuple((xid, row_id) for row_id, xid, *_, retried, _, _ in found if not retried),
        quarantined=frozenset(external_id for _, _, external_id, *_, quarantined, _ in found if quarantined),
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


def _columns(bisection: Bisection) -> dict[str, int | None]:
    return {
        "batch_limit": bisection.limit,
        "suspects": bisection.suspects,
        "attempts": bisection.attempts,
        "deaths": bisection.deaths,
        "suspect_revision": bisection.revision,
        "outages": bisection.outages,
    }


def _first_event(milliseconds: int | None) -> dict[str, int | None]:
    """Return how long a burst's first event took, and its bucket, as Postgres counts: from 1."""
    return {"first_event_ms": milliseconds, "first_event_bucket": bucket(milliseconds or 0) + 1}


class Transaction:
    """One batch's transaction, opened when it is first needed.

    `idle_timeout`: how long the session may be idle between the advance and the commit, such as `5000ms`. `timeout`:
    seconds that the session may be idle before the advance, or wait for one answer of Postgres.
    """

    def __init__(self, engine: Engine, key: RunKey, source: str, idle_timeout: str, timeout: float) -> None:
        self._engine = engine
        self._source = source
        self._query = queries(engine)
        self._key = key
        self._idle_timeout = idle_timeout
        self._timeout = timeout
        self._own_answer_timeout: float | None = None
        self._connection: Connection | None = None
        self._transaction: RootTransaction | None = None
        self._over = Event()

    @property
    def used(self) -> bool:
        """Whether somebody asked for the connection."""
        return self._connection is not None

    def connect(self) -> Connection:
        """Return the transaction's connection, opening it at the first call.

        BEGIN takes along, in its round trip, what lets a successor end this session, and ends those of runs that this
        one replaced: a frozen process keeps the locks on all that its handler wrote. So none may be opened after
        `close`: it would end the session of what the same run does next.

        Raises:
            HandlerMistake: the batch is over.
        """
        if self._over.is_set():
            raise HandlerMistake(BATCH_IS_OVER)
        if self._connection is None:
            try:
                self._begin()
            except NoAnswer:
                raise
            except psycopg.OperationalError:
                # A server that restarted broke every connection that lies in the pool.
                distrust(self._engine)
                self._begin()
            if self._over.is_set():
                # Another thread closed it meanwhile, and saw no connection.
                self.close()
                raise HandlerMistake(BATCH_IS_OVER)
        assert self._connection is not None  # noqa: S101 - for the type: `_begin` sets it or raises
        return self._connection

    def _begin(self) -> None:
        connection = self._engine.connect()
        try:
            transaction = connection.begin()
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)  # noqa: S101 - for the type
            with driver.pipeline():  # psycopg sends BEGIN before the first of them
                # The handler's statements have the limits of its role, not those of ours.
                driver.execute("SET LOCAL statement_timeout TO DEFAULT")
                driver.execute(self._query("end_replaced"), _successor(self._key))
                idle = f"{round(self._timeout * 1000)}ms"
                whose = {**self._key._asdict(), "source": self._source}
                driver.execute(self._query("announce"), {**whose, "session": session_name(self._key), "idle": idle})
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        if isinstance(driver, Bounded) and driver.answer_timeout is not None:
            self._own_answer_timeout, driver.answer_timeout = driver.answer_timeout, self._timeout
        self._connection, self._transaction = connection, transaction

    def _limit_own_statements(self) -> None:
        """From here on the statements are ours, and not the handler's."""
        connection = self._connection
        if connection is None or self._own_answer_timeout is None or connection.closed or connection.invalidated:
            return
        driver = connection.connection.driver_connection
        if isinstance(driver, Bounded):
            driver.answer_timeout = self._own_answer_timeout

    def advance(
        self,
        page: Page,
        *,
        bisection: Bisection = NO_BISECTION,
        to_quarantine: Quarantined | None = None,
        first_event_ms: int | None = None,
    ) -> bool:
        """Move the cursor past `page` and commit, together with all that was written through `connect`.

        Records in `to_quarantine` are put into quarantine, and rows of quarantine whose records were handled are
        deleted. Returns whether to call `note_success`: something of the pipeline failed before.

        Raises:
            CursorLost: the cursor is not ours, or not where the page was read; all is rolled back.
            HandlerMistake: the handler ended the transaction.
        """
        reasons = to_quarantine.reasons if to_quarantine else {}
        leaving = [external_id for external_id in page.leaving if external_id not in reasons]
        values = {**self._key._asdict(), **self._moving(page, bisection), **_first_event(first_event_ms)}
        if self._connection is None and not leaving and not reasons:
            # Nothing goes with it: one statement that is its own transaction, in one round trip.
            with driving(self._engine) as driver:
                moved = driver.execute(self._query("advance"), values).fetchone()
            if moved is None:
                raise CursorLost
            return bool(moved[-1])
        connection = self.connect()
        if connection.closed or connection.get_transaction() is not self._transaction:
            raise HandlerMistake(ENDED_TRANSACTION)
        self._limit_own_statements()
        moved = connection.exec_driver_sql(self._query("advance"), values).first()
        if moved is None or moved.batch != self._key.token:
            connection.rollback()
            raise CursorLost if moved is None else HandlerMistake(ENDED_TRANSACTION)
        if leaving:
            connection.exec_driver_sql(
                self._query("leave_quarantine"), {**self._key._asdict(), "external_ids": leaving}
            )
        if to_quarantine is not None and reasons:
            self._quarantine(page, to_quarantine)
        connection.commit()
        return bool(moved.asked)

    def _moving(self, page: Page, bisection: Bisection) -> dict[str, Any]:
        at_xid, at_id = page.position
        return {
            **_columns(bisection),
            "sweeps": page.sweeps,
            "target": page.target,
            "finished": page.finished,
            "at_xid": at_xid,
            "at_id": at_id,
            "records": len(page.records),
            "idle_timeout": self._idle_timeout,
        }

    def _quarantine(self, page: Page, quarantined: Quarantined) -> None:
        records = [record for record in page.records if record.external_id in quarantined.reasons]
        self.connect().exec_driver_sql(
            self._query("quarantine_records"),
            {
                **self._key._asdict(),
                "external_ids": [record.external_id for record in records],
                "revisions": [record.revision for record in records],
                "reasons": [storable(quarantined.reasons[record.external_id]) for record in records],
                "attempts": quarantined.attempts,
                "cause": quarantined.cause,
                "failing_since": page.failing_since,
            },
        )

    def close(self) -> bool:
        """Roll back what was not committed and give the connection back; return whether its session may go on.

        It does where the handler was interrupted inside a statement, and where that got no answer in time.
        """
        self._over.set()
        connection = self._connection
        if connection is None:
            return False
        if at_work := _is_at_work(connection):
            connection.invalidate()
        self._limit_own_statements()
        # Where the session is gone, so is its transaction; what went wrong before says more than this.
        with suppress(DBAPIError, psycopg.Error):
            connection.close()
        self._connection = None
        return at_work


def _is_at_work(connection: Connection) -> bool:
    """Whether the session may be inside a statement, as far as its process here knows."""
    if connection.closed:
        return False
    if connection.invalidated:
        return True
    driver = connection.connection.driver_connection
    return isinstance(driver, psycopg.Connection) and driver.info.transaction_status in _AT_WORK
