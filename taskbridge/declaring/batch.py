"""What a handler is given, a batch of one tenant's records, and what it may raise to be called again later."""

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
"""Seconds to wait where the downstream asks to wait and does not say for how long."""

NO_REASON: Final = "no reason given"
"""Kept where a handler rejects a record with an empty reason, as with the empty answer of a downstream."""

CALL_IS_OVER: Final = (
    "the batch is over: its handler has returned, so its records can be neither rejected nor marked as handled any "
    "more; wait in the handler for threads and coroutines that do so"
)

_NAMESPACE: Final = uuid.UUID("6b5f3a52-9d0c-5d9e-8a53-0c4a1f0d7c11")


class RetryAfter(Exception):
    """Raised by a handler whose downstream asks it to wait, as with HTTP 429: the batch comes again after `seconds`.

    It counts as no failure. Events meanwhile are absorbed.

    A handler that returns it keeps what it did so far: what it wrote through the batch commits with the batch's first
    records, up to the first that it did not mark with `batch.handled`. The others come again after `seconds`. Where it
    marked none, returning is as raising.

    Args:
        seconds: how long; a number, or the text of a `Retry-After` header: a number of seconds or an HTTP date. None,
            where there is no header, and a text that is neither mean 30 s. More than a day is a day, and a date that is
            past is 0.
        scope: who waits. "tenant": this tenant; others go on. "pipeline": all tenants of the pipeline, in all workers,
            because the downstream has one limit for all of them. When the time is over, one run begins. Each run that
            handles something doubles how many may be under way, up to `max_runs`.

    Raises:
        ValueError: `seconds` is none of these, or not a number (NaN); or `scope` is neither.
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
        # It has no zone where the text has none, or -0000; an HTTP date is always in UTC.
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return (date - datetime.now(UTC)).total_seconds()
    return DEFAULT_WAIT if math.isnan(seconds) else seconds


@dataclass(frozen=True, slots=True)
class Record:
    """One row of work.

    `external_id` is the record's key (an invoice number), unique within source and tenant. `revision` is a new and
    higher number after each change of the row, never one that was used before. A record that changed after it was
    handled is delivered again with its new revision.

    Of an adopted table the document is the row, its numerics as text; `deleted` says that the row is gone, and then the
    document is empty.

    A number with a fraction is a float in the document. `document_text` is the document as JSON, in which each number
    has all of its digits: `json.loads(record.document_text, parse_float=Decimal)` keeps them.
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
        """A UUID that is the same each time this revision of the record is delivered, and no other's, ever."""
        parts = (self.pipeline, self.tenant, self.external_id, self.revision)
        return str(uuid.uuid5(_NAMESPACE, json.dumps(parts)))


class Batch(Sequence[Record]):
    """Records of one tenant, oldest first.

    A handler that returns has handled them all but those that it rejected. One that raises has handled none, unless it
    says of each when it is done with it (`handled`); it is called again, in the end with each record alone. It may
    raise `RetryAfter` to be called again after a while.
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
        """The connection of the transaction that advances the cursor, opened when it is first asked for.

        What is written through it takes effect exactly once: it commits together with the cursor or not at all. Do not
        commit or roll back; the runner does.
        """
        return self._connect()

    @property
    def session(self) -> Session:
        """An ORM session of SQLAlchemy on `connection`, opened when it is first asked for.

        What it still holds when the handler returns is written then. `commit` and `rollback` end a part (a savepoint)
        of the batch's transaction, `close` does nothing. After the call its objects are detached. It is not for
        several threads or coroutines at once; there is no AsyncSession.
        """
        return self._open_session()

    @property
    def owned(self) -> bool:
        """Whether the run still has its tenant, as far as this process can know without asking.

        False once a heartbeat was refused, or when none was confirmed in time. A long handler that sees False should
        stop: another run is taking over, and the cursor will not move past this batch. Who goes through the batch with
        `for` is stopped before the next record.
        """
        return self._owned()

    @property
    def seconds_left(self) -> float:
        """How many seconds of the pipeline's soft time limit are left; infinity where it has none."""
        return self._until - time.monotonic()

    def reject(self, record: Record, reason: str) -> None:
        """Put one record of this batch into quarantine with `reason`; the others still count as handled.

        Takes effect when the handler returns, or with what it `handled`; with the cursor or not at all. What the
        handler wrote for the record through `connection` is not undone. A reason is kept up to 2,000 characters; in
        place of an empty one "no reason given" is.

        Raises:
            ValueError: the record is not of this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        text = storable(reason)
        # An error here would cost the whole batch, over and over, for want of a word about one record.
        self._rejected[record.external_id] = text if text.strip() else NO_REASON

    def handled(self, record: Record) -> None:
        """Say that one record of this batch is done with, as after the request that is made for it.

        Where the handler raises later, whatever it raises, the batch's first records up to the first that was neither
        handled nor rejected are not delivered again. Where its process is killed they may be: the mark is in memory.
        Marks say nothing where it raises and `connection` was used: what was written through it is rolled back with the
        whole batch. What is to be kept then: return `RetryAfter`.

        Raises:
            ValueError: the record is not of this batch.
            HandlerMistake: the handler's call is over.
        """
        self._check(record)
        self._handled.add(record.external_id)

    @property
    def done(self) -> Set[str]:
        """External ids of the records that were handled or rejected so far."""
        return self._handled | self._rejected.keys()

    def _check(self, record: Record) -> None:
        if self._is_over:
            # It has been decided what becomes of its records, so a word about one would be lost.
            raise HandlerMistake(CALL_IS_OVER)
        if record != self._by_id.get(record.external_id):
            raise ValueError(f"record {record.external_id!r} of tenant {record.tenant!r} is not of this batch")

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        return {record.external_id: record for record in self._records}

    @property
    def rejected(self) -> Mapping[str, str]:
        """What was rejected so far: the reason by external id."""
        return MappingProxyType(self._rejected)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records one by one, for as long as the run has its tenant (`owned`).

        A process that stood still for longer than `TASKBRIDGE_RUNNER_TTL` would else go on with records that another
        run has handled in newer revisions.

        Raises:
            RetryAfter: it has it no more. What was marked is kept if no other run took over, as where Redis is away.
        """
        for record in self._records:
            if not self._is_over and not self._owned():
                raise RetryAfter(0)
            yield record

    def end_call(self) -> None:
        """Say that the handler's call is over: who has kept the batch may go through it, whoever has the tenant."""
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
