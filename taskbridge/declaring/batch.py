"""What a handler gets, a batch of one tenant's records, and what it can raise to be called again later."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from taskbridge.common.limits import OPTIONS
from taskbridge.common.texts import storable
from taskbridge.errors import HandlerMistake

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

__all__ = ["Batch", "Record", "RetryAfter"]

DEFAULT_WAIT: Final = 30.0
"""Seconds to wait if the downstream does not say for how long."""

NO_REASON: Final = "no reason given"
"""Stored if a handler rejects a record with an empty reason, such as the empty response of a downstream."""

CALL_IS_OVER: Final = (
    "the batch is over: its handler has returned, so its records can be neither rejected nor marked as handled any "
    "more; wait in the handler for threads and coroutines that do so"
)

_NAMESPACE: Final = uuid.UUID("6b5f3a52-9d0c-5d9e-8a53-0c4a1f0d7c11")


class RetryAfter(Exception):
    """Raised by a handler whose downstream asks it to wait, as with HTTP 429: the batch is delivered again later.

    It does not count as a failure. Events in the meantime are absorbed.

    A handler that returns it keeps what it has done so far: what it wrote through the batch commits together with the
    leading records, those before the first one not marked with `batch.handled`. The others are delivered again after
    `seconds`. If no record is marked, returning it is the same as raising it.

    Args:
        seconds: how long to wait; a number, or the text of a `Retry-After` header: a number of seconds or an HTTP date.
            None (no header), or text that is neither a number nor a date, means 30 s. The maximum is a day; a date in
            the past means 0.
        scope: who waits. "tenant": this tenant only. "pipeline": all tenants of the pipeline, in all workers, because
            the downstream has one limit for all of them. After the wait a single run begins; each run that handles
            something doubles how many may be in progress, up to `max_runs`.

    Raises:
                        ValueError: `seconds` is of another type, or NaN; or `scope` is unknown.
    """

    def __init__(self, seconds: float | str | None, scope: Literal["tenant", "pipeline"] = "tenant") -> None:
        if scope not in ("tenant", "pipeline"):
            raise ValueError(f"the scope of RetryAfter is 'tenant' or 'pipeline', not {scope!r}")
        super().__init__(seconds, scope)
        self.seconds: Final = min(max(_seconds(seconds), 0.0), OPTIONS["RetryAfter"].most)
        self.scope: Final = scope

    def __str__(self) -> str:
        return f"wait {self.seconds:g} s" + (" with the whole pipeline" if self.scope == "pipeline" else "")


def _seconds(given: object) -> float:
    if given is None:
        return DEFAULT_WAIT
    if isinstance(given, str):
        return _seconds_of_header(given)
    if not isinstance(given, int | float) or isinstance(given, bool) or given != given:
        raise ValueError(f"RetryAfter takes seconds or the text of a Retry-After header, not {given!r}")
    return float(min(given, OPTIONS["RetryAfter"].most))


def _seconds_of_header(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (TypeError, ValueError, OverflowError):
            return DEFAULT_WAIT
        # The date is naive if the text has no zone, or -0000; an HTTP date is always in UTC.
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return (date - datetime.now(UTC)).total_seconds()
    return DEFAULT_WAIT if math.isnan(seconds) else seconds


@dataclass(frozen=True, slots=True)
class Record:
    """One row of work.

    `external_id` is the record's key (such as an invoice number), unique within source and tenant. Each change of the
    row gives it a new, higher `revision`, which is never reused. A record that changes after it was handled is
    delivered again with its new revision.

    For an adopted table the document is the row, with numerics as text; `deleted` means that the row is gone, and the
    document is then empty.

    Numbers with a fraction are floats in the document. `document_text` is the document as JSON with all digits:
    `json.loads(record.document_text, parse_float=Decimal)` keeps them.
    """

    pipeline: str
    tenant: str
    external_id: str
    revision: int
    document: Mapping[str, Any] = field(repr=False)
    deleted: bool = False
    document_text: str = field(default="", repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """A UUID that is the same each time this revision of the record is delivered, and unique to it."""
        parts = (self.pipeline, self.tenant, self.external_id, self.revision)
        return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


class Batch(Sequence[Record]):
    """Records of one tenant, oldest first.

    A handler that returns has handled all of them except those it rejected. One that raises has handled none, unless it
    marks each record when it is done (`handled`); it is called again, if need be with ever smaller batches, down to a
    single record. It can raise `RetryAfter` to be called again later.
    """

    def __init__(
        self,
        pipeline: str,
        tenant: str,
        token: str,
        records: Sequence[Record],
        *,
        connect: Callable[[], Connection],
        open_session: Callable[[], Session],
        owned: Callable[[], bool],
        until: float = math.inf,
    ) -> None:
        self.pipeline: Final = pipeline
        self.tenant: Final = tenant
        self.token: Final = token
        self._records = tuple(records)
        self._connect = connect
        self._open_session = open_session
        self._owned = owned
        self._until = until
        self._is_over = False
        self._rejected: dict[str, str] = {}
        self._handled: set[str] = set()

    @property
    def connection(self) -> Connection:
        """The connection of the transaction that advances the cursor, opened on first use.

        What you write through it takes effect exactly once: it commits together with the cursor or not at all. Do not
        commit or roll back; the worker does.
        """
        return self._connect()

    @property
    def session(self) -> Session:
        """A SQLAlchemy ORM session on `connection`, opened on first use.

        It is flushed when the handler returns. `commit` and `rollback` end a savepoint in the batch's transaction,
        `close` does nothing. After the call the session's objects are detached. Do not use it from several threads or
        coroutines at once; there is no AsyncSession.
        """
        return self._open_session()

    @property
    def owned(self) -> bool:
        """Whether the run still owns its tenant, as far as this process knows without asking.

        False once a heartbeat was refused, or if none was confirmed in time. A long handler that sees False should
        stop: another run is taking over, and the cursor will not move past this batch. A `for` loop over the batch is
        stopped before the next record.
        """
        return self._owned()

    @property
    def seconds_left(self) -> float:
        """How many seconds of the pipeline's soft time limit are left; infinity if there is no limit."""
        return self._until - time.monotonic()

    def reject(self, record: Record, reason: str) -> None:
        """Put one record of this batch into quarantine with `reason`; the others still count as handled.

        The rejection takes effect when the handler returns or, if it raises, together with the leading records that it
        marked as `handled`; in both cases only if the cursor advances. What the handler wrote for the record through
        `connection` is not undone. A reason is cut to 2,000 characters; an empty one becomes "no reason given".

        Raises:
            ValueError: the record is not in this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        text = storable(reason)
        # An error here would fail the whole batch again and again for a missing reason of one record.
        self._rejected[record.external_id] = text if text.strip() else NO_REASON

    def handled(self, record: Record) -> None:
        """Mark one record of this batch as done, for example after the request that was made for it.

        If the handler raises later, whatever it raises, the leading records of the batch are not delivered again: those
        before the first one that was neither handled nor rejected. If its process is killed they may be, because marks
        are in memory. Marks have no effect if the handler raises after it used `connection`: what was written through
        it is rolled back with the whole batch. To keep what was written, return `RetryAfter` instead.

        Raises:
            ValueError: the record is not in this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        self._handled.add(record.external_id)

    @property
    def done(self) -> Set[str]:
        """External ids of the records that have been handled or rejected so far."""
        return self._handled | self._rejected.keys()

    def _check(self, record: Record) -> None:
        if self._is_over:
            # The outcome of its records is decided already, so the mark would be lost.
            raise HandlerMistake(CALL_IS_OVER)
        if record != self._by_id.get(record.external_id):
            raise ValueError(f"record {record.external_id!r} of tenant {record.tenant!r} is not in this batch")

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        return {record.external_id: record for record in self._records}

    @property
    def rejected(self) -> Mapping[str, str]:
        """The reason for each record rejected so far, by external id."""
        return MappingProxyType(self._rejected)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records one by one, as long as the run owns its tenant (`owned`).

        Otherwise a process that was frozen for longer than `TASKBRIDGE_RUNNER_TTL` would continue with records that
        another run has handled in newer revisions.

        Raises:
            RetryAfter: the run no longer owns its tenant. Marks are kept if no other run took over, for example if
                Redis is unavailable.
        """
        for record in self._records:
            if not self._is_over and not self._owned():
                raise RetryAfter(0)
            yield record

    def end_call(self) -> None:
        """Note that the handler's call is over. Code that kept the batch can still read it, whoever owns the tenant."""
        self._is_over = True

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<Batch {self.pipeline} {self.tenant!r}: {len(self)} records>"
