"""What producers call: write records, then notify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery
from sqlalchemy import Connection

from taskbridge import store
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.gate import Answer
from taskbridge.process.runtime import runtime_of
from taskbridge.process.translation import speaking_plainly
from taskbridge.producing import notify, recording
from taskbridge.producing.notify_task import NotifyTask
from taskbridge.producing.recording import Recorded
from taskbridge.store import Row

__all__ = ["Bridge"]


@dataclass(frozen=True, slots=True)
class Bridge:
    """What a producer needs of one Celery app; made by `taskbridge.install`."""

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
        connection: Connection | None = None,
    ) -> bool:
        """Write or update one record of a source, in the transaction of `connection` or in one of its own.

        Whoever commits notifies the pipelines that read the source: call `notify_event.delay(tenant, pipeline)` after
        the commit, when this returned True.

        Args:
            tenant: whose record it is; 1 to 200 characters.
            key: the record's own name, unique within source and tenant; 1 to 200 characters, none a control character.
            document: the record as JSON. Write decimals and dates as strings.
            source: where it belongs. A pipeline reads the source of its own name unless it declares another.
            connection: a SQLAlchemy connection to the same database.

        Returns:
            Whether anything changed. A record that is there with an equal document stays untouched.

        Raises:
            InvalidName: the source or the tenant is not allowed.
            InvalidInput: the key is not allowed, or the document is no JSON object.
            Unavailable: Postgres cannot be used. Its subclass `ForeignCluster`: the database was restored into another
                cluster and not rebased yet.
        """
        with speaking_plainly():
            return store.record(runtime_of(self.app).engine, source, tenant, key, document, connection)

    def record_many(self, rows: Iterable[Row], *, source: str, connection: Connection | None = None) -> dict[str, int]:
        """Write or update many records of a source, 5,000 in a statement; each is (tenant, key, document).

        If a tenant's key is there several times, the last one counts. Whoever commits notifies:
        `notify_many(changed, pipeline)`.

        Returns:
            How many records changed, by tenant; a tenant without a change is not in it.

        Raises: as `record`. Without a connection each statement is a transaction, so what came before an error stays.
        """
        with speaking_plainly():
            return store.record_many(runtime_of(self.app).engine, source, rows, connection)

    def record_invoice(
        self, tenant: str, number: str, document: Mapping[str, Any], connection: Connection | None = None
    ) -> bool:
        """Write or update one record of the source `invoices`: as `record`, for the pipeline of that name.

        Whoever commits notifies: call `notify_event.delay(tenant)` after the commit, when this returned True.

        Args:
            tenant: whose invoice it is; 1 to 200 characters.
            number: the invoice's number, unique within the tenant; 1 to 200 characters, none a control character.
            document: the invoice as JSON. Write decimals and dates as strings.
            connection: a SQLAlchemy connection to the same database.

        Returns:
            Whether anything changed. An invoice that is there with an equal document stays untouched.

        Raises:
            InvalidName: the tenant is not allowed.
            InvalidInput: the number is not allowed, or the document is no JSON object.
            Unavailable: as `record`.
        """
        with speaking_plainly():
            return store.record_invoice(runtime_of(self.app).engine, tenant, number, document, connection)

    def record_event(
        self, pipeline: str, payload: Any, *, message_id: str | None = None, connection: Connection | None = None
    ) -> Recorded:
        """Record one message of a pipeline with criteria, once per message id, and notify the tenant that it matches.

        A message that no criterion matches is stored as well, with the reason; `taskbridge unmatched list` shows it.

        Args:
            pipeline: a pipeline declared with `DelaySinceLastRun`.
            payload: any JSON value.
            message_id: the sender's id of the message, 1 to 200 printable characters; a second message with it changes
                nothing. None: a new id.
            connection: a SQLAlchemy connection to the same database. The record is then part of its transaction, and
                whoever commits notifies: `notify_event.delay(recorded.tenant, pipeline)`.

        Raises:
            UnknownPipeline, InvalidInput: no such pipeline, one without criteria, a message id that is not allowed, or
                a payload that is no JSON.
            Unavailable: Postgres (see `record`) or Redis cannot be used. Workers find a record that is written also
                without a notification.
        """
        return recording.record_event(self.app, pipeline, payload, message_id, connection)

    def notify_many(self, tenants: Iterable[str], pipeline: str = INVOICES) -> list[Answer]:
        """Notify many tenants, in one round trip to Redis for each 500; a tenant may stand in the list several times.

        Returns:
            The gate's answer for each: STARTED, DELAYED or ABSORBED.

        Raises:
            InvalidName: a tenant is not allowed; nothing was sent.
            UnknownPipeline: no loaded module declares the pipeline.
            Unavailable: Redis cannot be used. The records are safe: workers find them also without a notification.
        """
        return notify.notify_many(self.app, tenants, pipeline)
