"""What producers call: write records, then notify."""

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
from taskbridge.producer.notify import asend, events_of, logged, send
from taskbridge.producer.notify_task import NotifyTask
from taskbridge.producer.recording import Recorded
from taskbridge.producer.transactions import anotify_after_commit, notify_after_commit
from taskbridge.store import Row

__all__ = ["AfterCommit", "Bridge"]

AfterCommit = Literal["after commit"]
"""When a producer may ask for an event."""
AFTER_COMMIT: Final[AfterCommit] = "after commit"


def _wants_event(notify: object) -> bool:
    """Return whether a producer asked for an event after the commit.

    Raises:
        InvalidInput: it is neither None nor "after commit".
    """
    if notify is not None and notify != AFTER_COMMIT:
        raise InvalidInput(
            f"notify is {notify!r}", f"pass {AFTER_COMMIT!r}, or leave it out and notify when you have committed"
        )
    return notify is not None


@dataclass(frozen=True, slots=True)
class Bridge:
    """What a producer needs of one Celery app; made by `taskbridge.install`.

    A `connection` is to the database of TaskBridge and holds the caller's transaction: a Connection, Session or
    scoped_session of SQLAlchemy with any driver, one of psycopg, or Django's (`django.db.connection`). The functions
    for coroutines take an AsyncConnection, AsyncSession or async_scoped_session of SQLAlchemy, an AsyncConnection of
    psycopg, or one of asyncpg. None is committed or rolled back here. Anything else is refused by `InvalidConnection`.

    With `notify="after commit"` the event goes out when the transaction has committed, one for each tenant that
    changed and each loaded pipeline that reads the source, and none of what was rolled back, with it or with a
    savepoint. Should Redis be away at that moment, there is a line in the log and no error: workers find the records
    all the same. psycopg and asyncpg tell nobody of a commit, so there this is refused.
    """

    app: Celery
    notify_event: NotifyTask
    """The task: `notify_event.delay(tenant, pipeline="invoices")` tells the tenant's runner of new records."""

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

        Without `notify` whoever commits notifies the pipelines that read the source: call
        `notify_event.delay(tenant, pipeline)` after the commit, when this returned True.

        Args:
            tenant: whose record it is; 1 to 200 characters.
            key: the record's own name, unique within source and tenant; 1 to 200 characters, none a control character.
            document: the record as JSON. Write decimals and dates as strings.
            source: where it belongs. A pipeline reads the source of its own name unless it declares another.
            connection: who holds the transaction; see `Bridge`.
            notify: "after commit": an event when the transaction has committed; see `Bridge`.

        Returns:
            Whether anything changed. A record that is there with an equal document stays untouched.

        Raises:
            InvalidName: the source or the tenant is not allowed.
            InvalidInput: the key is not allowed, or the document is no JSON object.
            InvalidConnection: the connection cannot hold records, or does not tell of its commit.
            UnknownPipeline: with `notify`, no loaded pipeline reads the source.
            Unavailable: Postgres cannot be used. Its subclass `ForeignCluster`: the database was restored into another
                cluster and not rebased yet.
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
        """Do in a coroutine what `record` does, on a connection for coroutines; without one, in a thread."""
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
        """Write or update many records of a source, 5,000 in a statement; each is (tenant, key, document).

        If a tenant's key is there several times, the last one counts. Without `notify` whoever commits notifies:
        `notify_many(changed, pipeline)`.

        Returns:
            How many records changed, by tenant; a tenant without a change is not in it.

        Raises: as `record`. Without a connection each statement is a transaction, so what came before an error stays.
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
        """Do in a coroutine what `record_many` does, on a connection for coroutines; without one, in a thread."""
        return await recording.arecord_rows(self.app, rows, source, connection, notify=_wants_event(notify))

    def record_invoice(
        self,
        tenant: str,
        number: str,
        document: Mapping[str, Any],
        connection: object = None,
        notify: AfterCommit | None = None,
    ) -> bool:
        """Write or update one record of the source `invoices`: as `record`, for the pipeline of that name.

        Without `notify` whoever commits notifies: call `notify_event.delay(tenant)` after the commit, when this
        returned True.

        Args:
            tenant: whose invoice it is; 1 to 200 characters.
            number: the invoice's number, unique within the tenant; 1 to 200 characters, none a control character.
            document: the invoice as JSON. Write decimals and dates as strings.
            connection: who holds the transaction; see `Bridge`.
            notify: "after commit": an event when the transaction has committed; see `Bridge`.

        Returns:
            Whether anything changed. An invoice that is there with an equal document stays untouched.

        Raises: as `record`.
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
        """Do in a coroutine what `record_invoice` does, on a connection for coroutines; without one, in a thread."""
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
        """Record one message of a pipeline with criteria, once per message id, and notify the tenant that it matches.

        A message that no criterion matches is stored as well, with the reason: see
        `taskbridge quarantine list --unmatched`.

        Args:
            pipeline: a pipeline declared with `DelaySinceLastRun`.
            payload: any JSON value.
            message_id: the sender's id of the message, 1 to 200 printable characters; a second message with it changes
                nothing. None: a new id.
            connection: who holds the transaction; see `Bridge`. Without `notify` whoever commits notifies:
                `notify_event.delay(recorded.tenant, pipeline)`.
            notify: "after commit": an event when the transaction has committed; see `Bridge`.

        Raises:
            UnknownPipeline, InvalidInput: no such pipeline, one without criteria, a message id that is not allowed, or
                a payload that is no JSON.
            InvalidConnection: as `record`.
            Unavailable: Postgres (see `record`) or, without `notify`, Redis cannot be used. Workers find a record that
                is written also without a notification.
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
        """Do in a coroutine what `record_event` does, on a connection for coroutines; without one, in a thread."""
        notifies = _wants_event(notify)
        return await recording.arecord_event(self.app, pipeline, payload, message_id, connection, notify=notifies)

    def notify(self, tenant: str, pipeline: str = INVOICES, *, connection: object = None) -> Answer | None:
        """Notify the tenant: after the transaction of `connection` has committed, else at once.

        As `notify_event.delay`, but where Redis cannot be used, or does not answer within TASKBRIDGE_NOTIFY_TIMEOUT,
        there is a line in the log and no error: workers find the records all the same. After a time-out nothing is
        tried for a second, so that a request that notifies several times waits for one of them.

        Args:
            tenant: whose records are new.
            pipeline: which pipeline is to handle them.
            connection: who holds the transaction; see `Bridge`. A tenant is notified once, however often it is named.

        Returns:
            The gate's answer: STARTED, DELAYED or ABSORBED. None: with a connection, or where Redis cannot be used.

        Raises:
            InvalidName: the tenant is not allowed.
            UnknownPipeline: no loaded module declares the pipeline.
            InvalidConnection: the connection does not tell of its commit.
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
        """Do in a coroutine what `notify` does; the event loop goes on while a thread waits for Redis."""
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
        """Notify many tenants, in one round trip to Redis for each 500; a tenant may stand in the list several times.

        Returns:
            The gate's answer for each: STARTED, DELAYED or ABSORBED.

        Raises:
            InvalidName: a tenant is not allowed; nothing was sent.
            UnknownPipeline: no loaded module declares the pipeline.
            Unavailable: Redis cannot be used, or did not answer in time, now or a moment ago. The records are safe:
                workers find them without an event.
        """
        runtime = runtime_of(self.app)
        return send(runtime, events_of(runtime, tenants, pipeline))

    async def anotify_many(self, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
        """Do in a coroutine what `notify_many` does; the event loop goes on while a thread waits for Redis."""
        runtime = runtime_of(self.app)
        return await asend(runtime, events_of(runtime, tenants, pipeline))
