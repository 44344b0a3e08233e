"""The producer API: write records, then notify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from celery import Celery

from taskbridge.declaring.pipeline import INVOICES
from taskbridge.errors import InvalidInput
from taskbridge.gate import Answer
from taskbridge.process.runtime import runtime_of
from taskbridge.producer import recording
from taskbridge.producer.notify import asend, events_of, logged, notify_many, send
from taskbridge.producer.notify_task import NotifyTask
from taskbridge.producer.recording import Recorded
from taskbridge.producer.transactions import anotify_after_commit, notify_after_commit
from taskbridge.store import Row

__all__ = ["AfterCommit", "Bridge"]

AfterCommit = Literal["after commit"]
"""When a producer can have an event sent."""
AFTER_COMMIT: Final[AfterCommit] = "after commit"


def _wants_event(notify: object) -> bool:
    """Return whether a producer requests an event after the commit.

    Raises:
        InvalidInput: it is neither None nor "after commit".
    """
    if notify is not None and notify != AFTER_COMMIT:
        raise InvalidInput(
            f"notify is {notify!r}", f"pass {AFTER_COMMIT!r}, or leave it out and notify after your commit"
        )
    return notify is not None


@dataclass(frozen=True, slots=True)
class Bridge:
    """The producer API of one Celery app; made by `taskbridge.install`.

    With `connection`, the functions write in your own transaction, which they neither commit nor roll back. The
    connection must lead to TaskBridge's database:

    - for functions: a SQLAlchemy Connection, Session or scoped_session with any driver, a psycopg connection, or
      Django's `django.db.connection`;
    - for coroutines: a SQLAlchemy AsyncConnection, AsyncSession or async_scoped_session, a psycopg AsyncConnection, or
      an asyncpg connection.

    With `notify="after commit"`, events are sent once the transaction has committed: one event for each changed tenant
    and each loaded pipeline that reads the source. Nothing is sent for changes that were rolled back. If Redis is
    unavailable, only a warning is logged, because workers find the records anyway. `notify` is not possible with
    connections of psycopg and asyncpg, which do not report commits.
    """

    app: Celery
    notify_event: NotifyTask
    """The task that notifies a tenant: `notify_event.delay(tenant, pipeline="invoices")`."""

    def record(
        self,
        tenant: str,
        key: str,
        document: Mapping[str, Any],
        *,
        source: str,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> bool:
        """Write or update one record of a source, in the transaction of `connection` or in one of its own.

        If you do not pass `notify`, and this returns True, call `notify_event.delay(tenant, pipeline)` after the
        commit, for each pipeline that reads the source.

        Args:
            tenant: the tenant of the record; 1 to 200 characters.
            key: the record's key, unique within source and tenant; 1 to 200 characters without control characters.
            document: the record as JSON. Write decimals and dates as strings.
            source: the source of the record. By default a pipeline reads the source with its own name.
            connection: the connection with your transaction; see `Bridge`.
            notify: "after commit": send an event after the commit; see `Bridge`.

        Returns:
            Whether anything changed. A record with an equal document does not change.

        Raises:
            InvalidName: the source or the tenant is not allowed.
            InvalidInput: the key is not allowed, or the document is not a JSON object.
            InvalidConnection: the connection cannot write records, or does not report its commit.
            UnknownPipeline: with `notify`, no loaded pipeline reads the source.
            Unavailable: Postgres cannot be used. Its subclass `ForeignCluster` means that the database was restored
                into another cluster and still needs a rebase.
        """
        return bool(self.record_many([(tenant, key, document)], source=source, connection=connection, notify=notify))

    async def arecord(
        self,
        tenant: str,
        key: str,
        document: Mapping[str, Any],
        *,
        source: str,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> bool:
        """Like `record`, for coroutines: with an async connection, or in a thread if there is no connection."""
        rows = [(tenant, key, document)]
        return bool(await self.arecord_many(rows, source=source, connection=connection, notify=notify))

    def record_many(
        self,
        rows: Iterable[Row],
        *,
        source: str,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> dict[str, int]:
        """Write or update many records of a source, 5,000 per statement. Each row is (tenant, key, document).

        If a key occurs several times for a tenant, the last one counts. If you do not pass `notify`, call
        `notify_many(changed, pipeline)` after the commit.

        Returns:
            The number of changed records by tenant, without tenants that have no change.

        Errors are the same as those of `record`. Without `connection`, each statement is a transaction of its own, so
        the statements before an error stay committed.
        """
        return recording.record_rows(self.app, rows, source, connection, notify=_wants_event(notify))

    async def arecord_many(
        self,
        rows: Iterable[Row],
        *,
        source: str,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> dict[str, int]:
        """Like `record_many`, for coroutines: with an async connection, or in a thread if there is no connection."""
        return await recording.arecord_rows(self.app, rows, source, connection, notify=_wants_event(notify))

    def record_invoice(
        self,
        tenant: str,
        number: str,
        document: Mapping[str, Any],
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> bool:
        """Write or update one record of the source `invoices`, like `record`.

        If you do not pass `notify`, and this returns True, call `notify_event.delay(tenant)` after the commit.

        Args:
            tenant: the tenant of the invoice; 1 to 200 characters.
            number: the invoice number, unique within the tenant; 1 to 200 characters without control characters.
            document: the invoice as JSON. Write decimals and dates as strings.
            connection: the connection with your transaction; see `Bridge`.
            notify: "after commit": send an event after the commit; see `Bridge`.

        Returns:
            Whether anything changed. An invoice with an equal document does not change.

        Errors are the same as those of `record`.
        """
        return self.record(tenant, number, document, source=INVOICES, connection=connection, notify=notify)

    async def arecord_invoice(
        self,
        tenant: str,
        number: str,
        document: Mapping[str, Any],
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> bool:
        """Like `record_invoice`, for coroutines: with an async connection, or in a thread if there is no connection."""
        return await self.arecord(tenant, number, document, source=INVOICES, connection=connection, notify=notify)

    def record_event(
        self,
        pipeline: str,
        payload: Any,
        *,
        message_id: str | None = None,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> Recorded:
        """Record one message of a pipeline with criteria, once per message id, and notify its tenant.

        A message that matches no criterion is stored with the reason. `taskbridge quarantine list --unmatched` shows
        these messages.

        Args:
            pipeline: a pipeline declared with `DelaySinceLastRun`.
            payload: any JSON value.
            message_id: the sender's id of the message, 1 to 200 printable characters. A second message with the same id
                is ignored. None: a new id.
            connection: the connection with your transaction; see `Bridge`. If you do not pass `notify`, call
                `notify_event.delay(recorded.tenant, pipeline)` after the commit.
            notify: "after commit": send an event after the commit; see `Bridge`.

        Raises:
            UnknownPipeline, InvalidInput: the pipeline is not declared or has no criteria, the message id is not
                allowed, or the payload is not JSON.
            InvalidConnection: see `record`.
            Unavailable: Postgres cannot be used (see `record`), or Redis cannot be used and `notify` was not passed. If
                the record was written, workers find it even without an event.
        """
        notifies = _wants_event(notify)
        return recording.record_event(self.app, pipeline, payload, message_id, connection, notify=notifies)

    async def arecord_event(
        self,
        pipeline: str,
        payload: Any,
        *,
        message_id: str | None = None,
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> Recorded:
        """Like `record_event`, for coroutines: with an async connection, or in a thread if there is no connection."""
        notifies = _wants_event(notify)
        return await recording.arecord_event(self.app, pipeline, payload, message_id, connection, notify=notifies)

    def notify(self, tenant: str, pipeline: str = INVOICES, *, connection: object = None) -> Answer | None:
        """Notify the tenant, now or after the transaction of `connection` has committed.

        This is like `notify_event.delay`, but raises no error if Redis is unavailable or does not answer within
        TASKBRIDGE_NOTIFY_TIMEOUT. It only logs a warning, because workers find the records anyway. After a timeout, no
        event is sent for a second, so that a web request that notifies several times waits only once.

        Args:
            tenant: the tenant with new records.
            pipeline: the pipeline that handles them.
            connection: the connection with your transaction; see `Bridge`. A tenant is notified once per transaction.

        Returns:
            The gate's answer: STARTED, DELAYED or ABSORBED. None with a connection, or if Redis cannot be used.

        Raises:
            InvalidName: the tenant is not allowed.
            UnknownPipeline: no loaded module declares the pipeline.
            InvalidConnection: the connection does not report its commit.
        """
        runtime = runtime_of(self.app)
        events = events_of(runtime, [tenant], pipeline)
        if connection is not None:
            notify_after_commit(self.app, dict(events), connection)
            return None
        answers: list[Answer] = []
        with logged(runtime, dict(events)):
            answers = send(runtime, events)
        return answers[0] if answers else None

    async def anotify(self, tenant: str, pipeline: str = INVOICES, *, connection: object = None) -> Answer | None:
        """Like `notify`, for coroutines: a thread waits for Redis, so the event loop is not blocked."""
        runtime = runtime_of(self.app)
        events = events_of(runtime, [tenant], pipeline)
        if connection is not None:
            await anotify_after_commit(self.app, dict(events), connection)
            return None
        answers: list[Answer] = []
        with logged(runtime, dict(events)):
            answers = await asend(runtime, events)
        return answers[0] if answers else None

    def notify_many(self, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
        """Notify many tenants, with one round trip to Redis per 500. A tenant may occur several times.

        Returns:
            The gate's answer for each event: STARTED, DELAYED or ABSORBED.

        Raises:
            InvalidName: a tenant is not allowed; nothing was sent.
            UnknownPipeline: no loaded module declares the pipeline.
            Unavailable: Redis cannot be used, or a request timed out in this call or within the last
                second. Workers find the
                records anyway.
        """
        return notify_many(self.app, tenants, pipeline)

    async def anotify_many(self, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
        """Like `notify_many`, for coroutines: a thread waits for Redis, so the event loop is not blocked."""
        runtime = runtime_of(self.app)
        return await asend(runtime, events_of(runtime, tenants, pipeline))
