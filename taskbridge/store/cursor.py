"""The cursor: how far a tenant's records have been handled, as a snapshot and not as a number.

Rows do not commit in the order of their ids or timestamps, so "handled up to 1042" loses row 1041 if its transaction
commits later. Each record has the id of the transaction that wrote it, and a cursor is a `pg_snapshot`: pending is what
is visible now and was not visible in the cursor's snapshot. (PgQ makes its batches this way.) The next sweep finds a
late commit, and a long transaction delays only its own rows.

A sweep of more than one batch proceeds by (xid, id), under the snapshot that was taken for its first batch: the target.
The cursor stores the position, so after a crash the next run continues there.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.errors import LockNotAvailable, QueryCanceled
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.common.texts import error_text, storable
from taskbridge.declaring.batch import Record
from taskbridge.declaring.failures import Bisection
from taskbridge.errors import InvalidInput
from taskbridge.store.adopted import dropped, known_as, present
from taskbridge.store.db import (
    SHORT_WAIT,
    SILENT,
    Bounded,
    NoSession,
    begin_transaction,
    checked_out,
    distrust,
    fetch,
    in_one_message,
    milliseconds,
    rows,
    session_name,
    shorter,
    successor_of,
    with_second_try,
    within,
)
from taskbridge.store.documents import decoded
from taskbridge.store.history import HistoryRow, with_history
from taskbridge.store.page import CursorRow, Page, columns_of, page_of
from taskbridge.store.queries import LOCAL, queries, query, schema_of, setting
from taskbridge.store.transaction import NO_BISECTION, CursorLost, Transaction

__all__ = ["CLAIMED_WITHIN", "Claim", "Cursors", "Evidence", "StaleToken", "Unread", "Waiting"]

log = logging.getLogger(__name__)

WAITS_SHORTLY: Final = setting("lock_timeout", "500ms", LOCAL)
LONG_LOOK: Final = 60.0
"""Seconds for a query over many tenants of a pipeline."""
LOCKED: Final = 2.0
"""How many of these seconds it may wait for a lock, while other pipelines have to wait."""
SHORT_STATEMENT: Final = 0.5
"""Seconds for each statement of claims that are made together; one that needs longer is made alone."""
CLAIMED_WITHIN: Final = 1.0
"""Seconds after which no more claims are made together if one met a lock, or was slow."""
_BLOCKED: Final = (LockNotAvailable, QueryCanceled)
"""Errors of a statement that waited for a lock, or exceeded its timeout."""
PAGE: Final = 5_000
"""Cursors of a page of last runs."""
SMALL: Final = 2_000
"""Stored bytes of a document up to which it is read with its batch; larger ones are fetched afterwards, in slices.

Postgres compresses what takes more, at most to a hundredth. So 500 of these stay below 100 MB.
"""
SLICE: Final = 1_048_576
"""Stored bytes of a slice. Postgres compresses large documents, so their text may be several times as long."""
BATCH_BYTES: Final = 64 * 2**20
ANY_SIZE: Final = 2**31 - 1


class StaleToken(Exception):
    """The cursor belongs to a higher token, `owner`."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class Claim(NamedTuple):
    """A run's claim of its cursor: which one, how many records to read, and what the gate has counted.

    `events` of the burst so far, and its `runs` including this one. `burst`: the token of its first run; empty: it is
    this one. `bisecting` is as in `Cursors.read`. `died`: the previous run died, or its process is frozen. The batch is
    then read without documents, because they may be the reason.
    """

    key: RunKey
    limit: int
    events: int
    runs: int
    burst: str = ""
    bisecting: bool = True
    died: bool = False


class _BatchRead(NamedTuple):
    """The read of a batch, in one round trip with `before`, a statement and its values.

    Up to `limit` records are read, if `bisecting` fewer while a bad one is looked for.
    """

    key: RunKey
    limit: int
    bisecting: bool
    with_documents: bool
    before: tuple[Any, ...]


class _OtherAdoption(Exception):
    """The source was adopted, or adopted again, since this process last looked it up."""


class Unread(Exception):
    """A batch of up to `limit` records could not be read because of `error`. The token owns the cursor."""

    def __init__(self, error: Exception, limit: int, *, bisecting: bool) -> None:
        super().__init__(error_text(error))
        self.error = error
        self.limit = limit
        self.bisecting = bisecting


class Evidence(NamedTuple):
    """What other records of the pipeline say about one that fails alone; see the query `evidence`."""

    others_succeed: bool
    in_a_row: int


class Waiting(NamedTuple):
    """A tenant with records to take: their smallest delay, and when its records were last taken (milliseconds)."""

    tenant: str
    delay_ms: int
    last_ms: int | None


class Cursors:
    """The cursors of pipelines that read one source, and the records after them.

    A run that freezes while it advances locks the cursor's row for at most `runner_ttl` seconds. The transaction of a
    batch ends if it is idle, or waits for the answer to a statement of the handler, for `transaction_timeout` seconds.
    A batch ends with the record at which its large documents exceed `batch_bytes` as text.
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
        self._documents = RECORDED
        self._idle_timeout = milliseconds(runner_ttl)

    def claim(self, claim: Claim) -> Page:
        """Make the token of a claim the cursor's owner, count the run, and read a batch.

        Raises:
            StaleToken: a higher token owns the cursor.
            Unread: the cursor was claimed, and the batch could not be read.
        """
        reading = self._claiming(claim)
        if claim.died:
            # It may hold a lock on the cursor.
            self._try_to_end_replaced(claim.key)
        try:
            page = self._read(reading)
        except Unread as unread:
            page = self._claim_again(reading, unread)
        if page is None:
            raise StaleToken(str(self._owner(claim.key)))
        return page

    def _claim_again(self, reading: _BatchRead, unread: Unread) -> Page | None:
        """Claim a cursor after a first attempt that may have rolled back; None: a higher token owns it.

        Raises:
            Unread: the cursor was claimed, and the batch could not be read.
        """
        try:
            # A run that was replaced may hold the cursor's row.
            if isinstance(unread.error, _BLOCKED) and self._end_replaced(reading.key):
                return self._read(reading)
        except Unread as second:
            unread = second
        # Only the owner of the cursor can store the failure.
        if self._owner(reading.key) != reading.key.token:
            with checked_out(self._engine) as driver:
                if driver.execute(*reading.before).fetchone() is None:
                    return None
        raise unread

    def claim_together(self, claims: Sequence[Claim]) -> list[Page | None]:
        """Claim cursors for runs that begin together and read the first batch of each, in one round trip.

        None of them waits long for a lock or a statement. If a run has no page, only `claim` can tell why, which may
        take long.

        Raises:
            psycopg.Error: Postgres did not answer, or the connection broke; which were claimed is unknown.
        """
        pages: list[Page | None] = []
        ends = time.monotonic() + CLAIMED_WITHIN
        while len(pages) < len(claims) and time.monotonic() < ends:
            rest = claims[len(pages) :]
            try:
                pages += with_second_try(lambda: self._claim_at_once(rest))  # noqa: B023 - called at once
            except (*SILENT, NoSession):
                raise
            except (psycopg.Error, MemoryError):
                # One of them is the cause. To find out which, each is claimed alone.
                pages += [self._claim_unless_slow(claim) if time.monotonic() < ends else None for claim in rest]
        return pages + [None] * (len(claims) - len(pages))

    def _claim_unless_slow(self, claim: Claim) -> Page | None:
        try:
            (page,) = self._claim_at_once([claim])
        except SILENT:
            raise
        except (psycopg.Error, MemoryError):
            return None
        return page

    def _claim_at_once(self, claims: Sequence[Claim]) -> list[Page | None]:
        """Claim and read in a transaction for each, all sent at once.

        Those before one that takes too long are committed. That one has no page, and those after it are not returned.
        """
        documents = self._documents
        cursors: list[psycopg.Cursor[Any]] = []
        with suppress(QueryCanceled), checked_out(self._engine) as driver:
            cursors += [driver.cursor() for _ in claims]
            with driver.pipeline(), shorter(driver, SHORT_STATEMENT, SHORT_WAIT):
                for claim, cursor in zip(claims, cursors, strict=True):
                    self._send(driver, cursor, documents, self._claiming(claim))
        done = sum(cursor.pgresult is not None for cursor in cursors)
        pages = [cursor.fetchall() for cursor in cursors[:done]]
        return [
            # If the source was adopted in the meantime, a document is large, or another run owns the cursor, it takes
            # longer.
            page_of(claim.key, page, whole=True)
            if page and page[0][_ADOPTED] == documents.version and not any(row[_STORED] for row in page)
            else None
            for claim, page in zip(claims, [*pages, []], strict=False)
        ]

    def _claiming(self, claim: Claim) -> _BatchRead:
        values = {
            **claim.key._asdict(),
            "burst": claim.burst or claim.key.token,
            "burst_runs": claim.runs,
            "burst_events": claim.events,
            "session": session_name(claim.key),
        }
        before = (self._query("claim"), values)
        return _BatchRead(claim.key, claim.limit, claim.bisecting, with_documents=not claim.died, before=before)

    def _end_replaced(self, key: RunKey) -> bool:
        """End the sessions of runs that this one replaced, and others of its own; return whether there were any."""
        ended = with_second_try(lambda: fetch(self._engine, "end_replaced", successor_of(key)))
        return any(row["ended"] for row in ended)

    def _try_to_end_replaced(self, key: RunKey) -> None:
        """End the sessions of replaced runs, if Postgres answers; otherwise the next attempt does it when it begins."""
        try:
            self._end_replaced(key)
        except psycopg.Error as error:
            log.warning("a former session of tenant %r may still be open: %s", key.tenant, error_text(error))

    def read(self, key: RunKey, limit: int, *, bisecting: bool = True, documents: bool = True) -> Page:
        """Read up to `limit` records after the cursor; if `bisecting`, fewer while a bad one is looked for.

        Without `documents` the documents of the records are empty, and Postgres reads none of them.

        Raises:
            CursorLost: the token does not own the cursor.
            Unread: Postgres took too long or failed, or there was too little memory.
        """
        page = self._read(_BatchRead(key, limit, bisecting, documents, (self._query("plan_by_index"),)))
        if page is None:
            raise CursorLost
        return page

    def load(self, record: Record) -> Record | None:
        """Return a record with its document, without which it was read; None: it is gone, or cannot be decoded.

        Raises:
            Unread: as `read` does.
        """
        which = {"source": self._source, "tenant": record.tenant, "key": record.external_id}
        values = {**which, "revision": record.revision, "small": ANY_SIZE}
        try:
            with checked_out(self._engine) as driver:
                documents = self._look_up()
                row = driver.execute(self._reading("one_document", documents), values).fetchone()
            if row is None:
                return None
            text, deleted, version = row
            if version != documents.version:
                return self.load(record)
            document, reason = ({}, None) if text is None else decoded(text)
        except (psycopg.Error, MemoryError, InvalidInput) as error:
            raise Unread(error, 1, bisecting=False) from error
        if reason is not None:
            return None
        return replace(record, document=document, deleted=deleted, document_text=text or "{}")

    def _reading(self, name: str, documents: _Documents) -> str:
        return query(name, schema_of(self._engine), documents.sql)

    def _read(self, reading: _BatchRead) -> Page | None:
        """Read one batch in one round trip; None: the token does not own the cursor.

        It is read once more if the source was adopted, or its table changed, since this process has looked.

        Raises:
            Unread: as `read` does.
        """
        # Another thread may replace the attribute in the meantime.
        documents = self._documents
        try:
            try:
                return with_second_try(lambda: self._read_once(documents, reading))
            except _OtherAdoption:
                # The statement before the read is committed.
                reading = reading._replace(before=(self._query("plan_by_index"),))
            except psycopg.ProgrammingError:
                # For example, the table or a column was renamed.
                if documents is RECORDED:
                    raise
            return with_second_try(lambda: self._read_once(self._look_up(), reading))
        except NoSession:
            raise
        except (psycopg.Error, MemoryError, InvalidInput) as error:
            # Otherwise the rows that were read fill the memory until the failure is stored.
            traceback.clear_frames(error.__traceback__)
            raise Unread(error, reading.limit, bisecting=reading.bisecting) from error

    def _look_up(self) -> _Documents:
        """Look up whether the source is an adopted table, and how its rows are read.

        Raises:
            InvalidInput: the table was dropped, or cannot be a source as it is now.
        """
        with self._engine.begin() as connection:
            adopted, documents = known_as(connection, self._source), RECORDED
            if adopted is not None:
                if adopted.ended and adopted.called is None:
                    document = dropped(schema_of(self._engine))
                else:
                    document = present(connection, adopted).document
                documents = _Documents(adopted.version, document)
        if adopted is not None or self._documents is RECORDED:
            self._documents = documents
        return documents

    def _read_once(self, documents: _Documents, reading: _BatchRead) -> Page | None:
        """Read one batch in a transaction of its own; all of it is sent at once.

        READ COMMITTED, whatever the database's default is, so that the read sees what the claim waited for.
        """
        with checked_out(self._engine) as driver:
            cursor = driver.cursor()
            with driver.pipeline():
                self._send(driver, cursor, documents, reading)
            # Inside the pipeline, fetching would take a round trip of its own.
            rows = cursor.fetchall()
            whole, is_known = True, not rows or rows[0][_ADOPTED] == documents.version
            if is_known and reading.with_documents and any(row[_STORED] for row in rows):
                rows, whole = self._with_documents(driver, documents, reading.key.tenant, rows)
        if not is_known:
            raise _OtherAdoption
        return page_of(reading.key, rows, whole=whole) if rows else None

    def _send(self, driver: Bounded, cursor: psycopg.Cursor[Any], documents: _Documents, reading: _BatchRead) -> None:
        begin_transaction(driver)
        driver.execute(*reading.before)
        if documents is not RECORDED:
            # The application may lock its table for long; a worker does not wait for that, since other tenants are due.
            driver.execute(WAITS_SHORTLY)
        which = {"source": self._source, "limit": reading.limit, "bisecting": reading.bisecting}
        values = {**reading.key._asdict(), **which, "small": SMALL if reading.with_documents else -1}
        cursor.execute(self._reading("read_batch", documents), values)
        driver.execute(self._query("commit"))

    def _with_documents(
        self, driver: psycopg.Connection[Any], documents: _Documents, tenant: str, rows: list[tuple[Any, ...]]
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Fetch the documents that were left out, in slices, until they exceed the bytes of a batch.

        Returns the rows up to there, and whether these are all. A record that was changed or deleted since it was read
        is left out: its new revision comes later.
        """
        left, at = self._batch_bytes, 0
        names = {"source": self._source, "tenant": tenant, "small": ANY_SIZE}
        kept: list[tuple[Any, ...]] = []
        while at < len(rows) and left > 0:
            part = _slice(rows, at)
            at += len(part)
            large = [row for row in part if row[_STORED]]
            which = {"ids": [row[_ID] for row in large], "xids": [row[_XID] for row in large]}
            found = driver.execute(self._reading("documents", documents), {**names, **which}) if large else ()
            texts = {}
            for row_id, text, deleted, version in found:
                if version != documents.version:
                    raise _OtherAdoption
                texts[row_id] = (text, deleted)
            left -= sum(len(text or "") for text, _ in texts.values())
            for row in part:
                if not row[_STORED]:
                    kept.append(row)
                elif row[_ID] in texts:
                    text, deleted = texts[row[_ID]]
                    kept.append((*row[:_TEXT], text, *row[_STORED:-1], deleted))
        return kept or [(*rows[0][:_ID], *[None] * (len(rows[0]) - _ID))], len(kept) == len(rows)

    def _owner(self, key: RunKey) -> str | None:
        return next((row["owner"] for row in fetch(self._engine, "owner", key._asdict())), None)

    @contextmanager
    def transaction(self, key: RunKey) -> Iterator[Transaction]:
        """Return the transaction of one batch: what is written through it commits with the cursor or not at all."""
        transaction = Transaction(self._engine, key, self._source, self._idle_timeout, self._transaction_timeout)
        try:
            yield transaction
        finally:
            if transaction.close():
                # Other sessions of the pool may not answer either, and each would cost a record one of its attempts.
                distrust(self._engine)
                # Otherwise its statement continues, and its locks keep the next attempt waiting.
                self._try_to_end_replaced(key)

    def fail(
        self,
        key: RunKey,
        error: str,
        bisection: Bisection | None = None,
        unread: int | None = None,
        row: HistoryRow | None = None,
    ) -> int:
        """Store a failure, and the state of the search for a bad record; return the failures in a row.

        If a batch of up to `unread` records could not be read, the next one has at most half as many. `row` is inserted
        into the run history afterwards.

        Raises:
            CursorLost: the token does not own the cursor.
        """
        values = {
            **key._asdict(),
            **columns_of(bisection or NO_BISECTION),
            "bisecting": bisection is not None,
            "unread": unread,
            "error": storable(error),
        }
        found = with_history(self._engine, self._query("fail"), values, [row] if row else [])
        if not found:
            raise CursorLost
        return int(found[0][0] or 0)

    def limit(self, key: RunKey, bisection: Bisection) -> None:
        """Store how many records the next batch may have.

        Raises:
            CursorLost: the token does not own the cursor.
        """
        if not fetch(self._engine, "limit_batch", {**key._asdict(), **columns_of(bisection)}):
            raise CursorLost

    def evidence(self, key: RunKey) -> Evidence:
        """Return what other records of the pipeline say about one of this tenant that fails alone."""
        (row,) = fetch(self._engine, "evidence", key._asdict())
        return Evidence(**row)

    def note_success(self, key: RunKey, *, trial: bool = False) -> None:
        """Store that the handler took records after a failure; a `trial` moves no cursor.

        An error is only logged: the next success is stored instead.
        """
        try:
            with checked_out(self._engine) as driver:
                values = {**key._asdict(), "trial": trial}
                in_one_message(driver, self._query("succeeded"), values, lock_timeout=SHORT_WAIT)
        except psycopg.Error as error:
            log.warning("a success of %s could not be stored: %s", key.pipeline, error_text(error))

    def last_runs(self, pipeline: str, within_ms: int, page: int = PAGE) -> Iterator[list[tuple[str, int]]]:
        """Return (tenant, Unix time in milliseconds) of each last run that began within `within_ms`, in pages."""
        values = {"pipeline": pipeline, "within_ms": within_ms, "after": "", "limit": page}
        while True:
            with checked_out(self._engine) as driver, within(driver, LONG_LOOK, LOCKED):
                found = rows(driver, self._query("last_runs"), values)
            yield [(row["tenant"], row["last_ms"]) for row in found if row["last_ms"] is not None]
            if len(found) < page:
                return
            values["after"] = found[-1]["tenant"]


class _Documents(NamedTuple):
    """How the documents of a source are read: the version of its adoption, and the SQL expression."""

    version: str | None
    sql: str | None


RECORDED: Final = _Documents(None, None)


# The columns of the record follow. It is no named tuple because a batch has thousands of rows.
_ADOPTED: Final = CursorRow._fields.index("adopted")
_ID: Final = len(CursorRow._fields)
_XID, _TEXT, _STORED = _ID + 1, _ID + 4, _ID + 5


def _slice(rows: Sequence[tuple[Any, ...]], first: int) -> Sequence[tuple[Any, ...]]:
    """Return the rows from `first` on whose left-out documents make up a slice."""
    stored = accumulate(row[_STORED] or 0 for row in rows[first:])
    return rows[first : first + 1 + sum(1 for _ in takewhile(lambda bytes_: bytes_ < SLICE, stored))]
