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
    """Raise this in a handler to have the batch delivered again later, for example after an HTTP 429.

    It does not count as a failure. Events that arrive in the meantime are absorbed.

    You can also return it, to keep a part of the batch. What the handler wrote through the batch is committed. The
    records before the first one that is not marked with `batch.handled` are done. All other records are delivered again
    after `seconds`. If no record is marked, returning it is the same as raising it.

    Args:
        seconds: how long to wait: a number, or the text of a `Retry-After` header (a number of seconds or an HTTP
            date). None or an unreadable text means 30 s. The maximum is a day. A date in the past means 0.
        scope: who waits. "tenant": only this tenant. "pipeline": all tenants of the pipeline, in all workers. After the
            wait for a pipeline, a single run begins. Each run that handles something then doubles the number of runs
            that may be in progress, up to `max_runs`.

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

    `external_id` is the record's key, such as an invoice number. It is unique within source and tenant. Each change of
    the record gives it a higher `revision`. If a record changes after it was handled, it is delivered again with its
    new revision.

    For an adopted table, the document is the row, with numerics as text. If `deleted` is True, the row is gone and the
    document is empty.

    Numbers with a fraction are floats in the document. To keep all digits, use
    `json.loads(record.document_text, parse_float=Decimal)`.
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
        """A UUID for this revision of the record. It is the same at each delivery."""
        parts = (self.pipeline, self.tenant, self.external_id, self.revision)
        return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


class Batch(Sequence[Record]):
    """Records of one tenant, oldest first.

    If the handler returns, all records are handled, except those that it rejected (`reject`). If it raises an error, no
    record is handled, except those that it marked (`handled`). In this case the handler is called again, if necessary
    with smaller and smaller batches, down to a single record. To be called again later, the handler can raise
    `RetryAfter`.
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

        What you write through it takes effect exactly once, because it commits together with the cursor. Do not commit
        or roll back yourself.
        """
        return self._connect()

    @property
    def session(self) -> Session:
        """A SQLAlchemy ORM session on `connection`, opened on first use.

        It is flushed when the handler returns. `commit` and `rollback` only end a savepoint in the batch's transaction,
        and `close` does nothing. After the call, the session's objects are detached. Do not use the session from
        several threads or coroutines at once. There is no AsyncSession.
        """
        return self._open_session()

    @property
    def owned(self) -> bool:
        """Whether the run still owns its tenant, as far as this process knows without asking a server.

        It is False once a heartbeat was refused or was not confirmed in time. In this case, a long handler should stop:
        another run takes over, and this batch will not be committed. A `for` loop over the batch stops before the next
        record.
        """
        return self._owned()

    @property
    def seconds_left(self) -> float:
        """How many seconds of the pipeline's soft time limit are left; infinity if there is no limit."""
        return self._until - time.monotonic()

    def reject(self, record: Record, reason: str) -> None:
        """Put one record of this batch into quarantine. The other records still count as handled.

        The rejection takes effect when the handler returns. If the handler raises an error instead, it takes effect
        only if all records before this one are handled or rejected too. What the handler wrote for the record through
        `connection` is not undone. The reason is cut to 2,000 characters. An empty reason becomes "no reason given".

        Raises:
            ValueError: the record is not in this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        text = storable(reason)
        # An error here would fail the whole batch again and again for a missing reason of one record.
        self._rejected[record.external_id] = text if text.strip() else NO_REASON

    def handled(self, record: Record) -> None:
        """Mark one record of this batch as done, for example after an HTTP request for it.

        If the handler raises an error later (including `RetryAfter`), records at the start of the batch are not
        delivered again: all those before the first record that is neither handled nor rejected. If the process is
        killed, these records may be delivered again, because marks are in memory.

        Marks have no effect if the handler used `connection` and then raises an error, because the whole batch is
        rolled back. To keep the writes, return `RetryAfter` instead.

        Raises:
            ValueError: the record is not in this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        self._handled.add(record.external_id)

    @property
    def done(self) -> Set[str]:
        """The external ids of the records that were marked as handled or rejected so far."""
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
