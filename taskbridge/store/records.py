"""Writing records of every source, and matching messages again. The caller notifies the tenants."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from sqlalchemy import Connection, Engine

from taskbridge.common import tracing
from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.server_errors import causes, sqlstate
from taskbridge.declaring.criteria import Match, Unmatched
from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.store.db import SHORT_WAIT, checked_out, fetch_within, in_one_message, is_busy
from taskbridge.store.documents import decoded, unreadable
from taskbridge.store.queries import Queries, queries
from taskbridge.store.unmatched import UnmatchedRecord, read_unmatched

__all__ = [
    "Matcher",
    "Records",
    "Row",
    "Statement",
    "documents_statement",
    "exact_json_text",
    "execute",
    "json_text",
    "message_statement",
    "record",
    "record_invoice",
    "record_many",
    "record_statements",
    "refused",
]

log = logging.getLogger(__name__)

Row = tuple[str, str, Mapping[str, Any]]
"""Tenant, key and document of a record."""

Matcher = Callable[[Any], Match | Unmatched]

INVALID_PARAMETER: Final = "22023"
"""The SQLSTATE with which the trigger refuses a record."""
UNTRANSLATABLE: Final = ("22P05", "22021")
"""SQLSTATEs of a character that the database's encoding lacks, and of bytes that are none in it."""
AT_ONCE: Final = 5_000
"""The most records that one statement writes."""
CHARACTERS_AT_ONCE: Final = 16_000_000
"""A statement ends with the record at which its documents reach this length, to bound the memory."""

DISCARDED_AT_ONCE: Final = 250
"""Records that one statement gives up, and at most locks."""
DISCARD_TIMEOUT: Final = 60.0
DISCARD_PAUSE: Final = 0.1
"""Seconds until records that others have locked are retried."""

# A NUL as JSON writes it: not the backslash, u, 0, 0, 0, 0 of a text, whose own backslash is doubled.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Statement(NamedTuple):
    """A query by its name, and its values."""

    query: str
    values: Mapping[str, Any]


def record(
    engine: Engine,
    source: str,
    tenant: str,
    key: str,
    document: Mapping[str, Any],
    connection: Connection | None = None,
) -> bool:
    """Write or update one record, in the transaction of `connection` or in one of its own.

    Returns:
        Whether anything changed. A record that exists with an equal document is not touched: it gets no revision and
        needs no event.

    Raises:
        InvalidName: the source or the tenant is not allowed.
        InvalidInput: the key is empty, longer than 200 characters or contains a control character, or the document is
            not a JSON object.
    """
    return bool(record_many(engine, source, [(tenant, key, document)], connection))


def record_many(engine: Engine, source: str, rows: Iterable[Row], connection: Connection | None = None) -> Counter[str]:
    """Write or update many records, in the transaction of `connection`, or each statement in one of its own.

    A statement has at most `AT_ONCE` records and about `CHARACTERS_AT_ONCE` characters. If a record occurs repeatedly,
    the last one counts.

    Returns:
        The number of changed records by tenant, without tenants that have none.

    Raises: as `record`. What earlier statements wrote is committed by then, unless a connection was given.
    """
    changed: Counter[str] = Counter()
    for statement in record_statements(source, rows):
        changed.update(execute(engine, statement, connection))
    return changed


def record_statements(source: str, rows: Iterable[Row]) -> Iterator[Statement]:
    """Yield the statements that write or update records as `record_many`; each returns a tenant for each change."""
    check_source_name(source)
    if _is_text(rows):
        raise InvalidInput(
            f"the rows are {type(rows).__name__}: pass a list with (tenant, key, document) for each record"
        )
    documents: dict[tuple[str, str], str] = {}
    characters = 0
    for number, row in enumerate(rows, 1):
        tenant, key, text = _checked(number, row)
        documents[tenant, key] = text
        characters += len(text)
        if len(documents) == AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield documents_statement(source, documents)
            documents, characters = {}, 0
    if documents:
        yield documents_statement(source, documents)


def message_statement(
    source: str, message_id: str, payload: str, found: Match | Unmatched, traceparent: str | None = None
) -> Statement:
    """Return the statement that writes a message; it returns a row if the message is new."""
    values = {"source": source, "key": message_id, "document": payload, **_columns(found)}
    return Statement("record_event", values | {"traceparent": traceparent or tracing.current()})


def execute(engine: Engine, statement: Statement, connection: Connection | None = None) -> list[Any]:
    """Return the first column of a statement's rows."""
    with refused(), _lent(engine, connection) as lent:
        return list(lent.exec_driver_sql(queries(engine)(statement.query), statement.values).scalars())


def _checked(number: int, row: Row) -> tuple[str, str, str]:
    """Return tenant, key and the document's text; `number` counts from 1."""
    try:
        if _is_text(row):
            raise TypeError
        tenant, key, document = row
    except (TypeError, ValueError):
        raise InvalidInput(f"row {number} is not (tenant, key, document): pass three values per record") from None
    check_tenant(tenant)
    check_key(tenant, key)
    where = f"tenant {tenant!r}, record {key!r}"
    if not isinstance(document, Mapping):
        raise InvalidInput(f"{where}: the document is {type(document).__name__}, pass a mapping (a JSON object)")
    return tenant, key, json_text(where, document)


def _is_text(given: object) -> bool:
    """Whether it is a string, which Python would iterate by character."""
    return isinstance(given, (str, bytes))


def documents_statement(
    source: str, documents: Mapping[tuple[str, str], str], traceparent: str | None = None
) -> Statement:
    """Return the statement that writes checked documents by tenant and key; it returns the tenant of each change.

    `traceparent`: by default the current span.
    """
    tenants, keys = ([name[at] for name in documents] for at in (0, 1))
    columns = {"tenants": tenants, "keys": keys, "documents": [*documents.values()]}
    return Statement("record_many", {"source": source, **columns, "traceparent": traceparent or tracing.current()})


def record_invoice(
    engine: Engine, tenant: str, number: str, document: Mapping[str, Any], connection: Connection | None = None
) -> bool:
    """Write or update one record of the source `invoices`, as `record` does."""
    return record(engine, "invoices", tenant, number, document, connection)


def _lent(engine: Engine, connection: Connection | None) -> AbstractContextManager[Connection]:
    # One statement needs no transaction around it, which would be two more round trips.
    if connection is not None:
        return nullcontext(connection)
    # An engine with this option costs more to make than a connection.
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


@contextmanager
def refused() -> Iterator[None]:
    """Translate errors about the values of a record into InvalidInput, for every driver.

    The trigger rejects values with a message of ours. The encoding of the database may lack a character.
    """
    try:
        yield
    except Exception as error:
        if any(sqlstate(cause) in UNTRANSLATABLE for cause in causes(error)):
            raise InvalidInput(
                "a name or the document has a character that the database cannot store in its encoding",
                "leave it out, or use a database with the encoding UTF8 (`taskbridge doctor` shows the present one)",
            ) from error
        refusals = [cause for cause in causes(error) if sqlstate(cause) == INVALID_PARAMETER]
        if not refusals:
            raise
        diagnosis = getattr(refusals[-1], "diag", None)
        raise InvalidInput(str(diagnosis.message_primary if diagnosis else refusals[-1]).splitlines()[0]) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains a value of type {type(value).__name__}")


_ENCODER: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=_plain)
_EXACT_ENCODER: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=_plain)


def json_text(where: str, document: object) -> str:
    """Return `document` as JSON that jsonb stores unchanged.

    Raises:
        InvalidInput: it is not JSON; the message begins with `where`.
    """
    try:
        text = _ENCODER.encode(document)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: the document is not JSON: {error}. Pass decimals and dates as strings") from None
    return _checked_text(where, text, unreadable(text))


def exact_json_text(where: str, document: object) -> str:
    """Return a document that was read from JSON, with fractions as `Decimal`, as JSON with the same digits.

    Raises:
        InvalidInput: it is not JSON; the message begins with `where`.
    """
    try:
        text = _EXACT_ENCODER.encode(document).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: the document is not JSON: {error}") from None
    # This includes numbers out of the range of a double, which no worker could read.
    return _checked_text(where, text, unreadable(text) or decoded(text)[1])


def _checked_text(where: str, text: str, unreadable_because: str | None) -> str:
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidInput(f"{where}: the document contains a NUL character, which jsonb cannot store: remove it")
    if unreadable_because:
        raise InvalidInput(
            f"{where}: no worker can read the document: {unreadable_because}. Make it a string, or split it"
        )
    return text


class Records:
    """The messages of a source, which are written once, and matched again after the criteria change."""

    def __init__(self, engine: Engine, source: str) -> None:
        self._engine = engine
        self._source = source
        self._query: Queries = queries(engine)

    def write(self, message_id: str, payload: str, found: Match | Unmatched) -> bool:
        """Write one message, `payload` as JSON text, in a transaction of its own; return whether it is new.

        A message that was recorded before stays as it is.
        """
        return bool(execute(self._engine, message_statement(self._source, message_id, payload, found)))

    def discard(self, message_ids: Sequence[str] | None, reason: str | None = None) -> list[str]:
        """Discard unmatched records, those with `message_ids` or all; return their message ids.

        The next prune for which they are old enough deletes them. Records locked by other transactions are retried for
        `DISCARD_TIMEOUT` seconds, without locks in between.

        Raises:
            Unavailable: some are still locked by other transactions; the rest is discarded.
        """
        until = time.monotonic() + DISCARD_TIMEOUT
        given_up: list[str] = []
        found = self._rows("unmatched_keys", message_ids=message_ids, reason=reason)
        while keys := [row["key"] for row in found]:
            found = []
            for at in range(0, len(keys), DISCARDED_AT_ONCE):
                found += self._rows("discard_unmatched", keys=keys[at : at + DISCARDED_AT_ONCE])
            given_up += [row["key"] for row in found if not row["held"]]
            found = [row for row in found if row["held"]]
            if found and time.monotonic() > until:
                raise Unavailable(
                    f"{len(given_up):,} were discarded; {len(found):,} are locked by open transactions "
                    "(pg_stat_activity shows them): run it again when these have ended"
                )
            if found:
                time.sleep(DISCARD_PAUSE)
        return given_up

    def _rows(self, name: str, **values: Any) -> list[dict[str, Any]]:
        return fetch_within(self._engine, None, name, {"source": self._source, **values})

    def match_again(self, match: Matcher) -> Iterator[tuple[UnmatchedRecord, Match | Unmatched]]:
        """Match unmatched records again, each in its own transaction; yield each with the result of `match`."""
        for message in read_unmatched(self._engine, self._source, thin=False):
            result = match(message.payload)
            if result == Unmatched(message.reason) or self._settle(message.message_id, result):
                yield message, result

    def _settle(self, message_id: str, found: Match | Unmatched) -> bool:
        """Store the result for a message; return whether it was stored."""
        values = {"source": self._source, "key": message_id, **_columns(found)}
        with checked_out(self._engine) as driver:
            try:
                # Others must not wait for the message while this waits for the record, which is another row.
                return bool(in_one_message(driver, self._query("match_again"), values, lock_timeout=SHORT_WAIT))
            except psycopg.IntegrityError:
                # Another transaction wrote it just now, or a record with the same key is no message.
                reason = "its key is taken"
            except psycopg.OperationalError as error:
                if not is_busy(error):
                    raise
                reason = "another transaction is writing it; match it again"
        log.warning("source %s: message %r is not matched: %s", self._source, message_id, reason)
        return False


def _columns(found: Match | Unmatched) -> Mapping[str, object]:
    if isinstance(found, Match):
        return {"tenant": found.tenant, "delay_ms": found.delay_ms, "criterion": found.criterion, "reason": None}
    return {"tenant": "", "delay_ms": None, "criterion": None, "reason": found.reason}
