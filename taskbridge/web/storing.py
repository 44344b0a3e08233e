"""Store the content of each request in a transaction, then send events to the pipelines that read it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final

import psycopg
from celery import Celery

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import error_line, printable
from taskbridge.declaring.criteria import Unmatched
from taskbridge.errors import InvalidInput
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.notify import Event, Events, asend, logged, merge
from taskbridge.producer.recording import Prepared
from taskbridge.store import (
    AsyncPool,
    Incoming,
    documents_statement,
    exact_json_text,
    forget_received,
    message_statement,
    receive_statement,
)
from taskbridge.web.webhook import Unfit

__all__ = ["Storage"]

log = logging.getLogger(__name__)

OPENED_WITHIN: Final = 2.0
"""How many seconds a server's startup waits for a session."""
FORGETS_EVERY: Final = 60.0
"""Seconds between two deletions of expired webhook ids."""
EVENTS_EVERY: Final = 0.05
"""Seconds between two batches of events: the first event is sent at once, and those that follow are collected."""
LONGEST_UNSTORABLE: Final = 1_000_000


class Storage:
    """Stores the content of requests and notifies pipelines. There is one for each event loop."""

    def __init__(self, app: Celery) -> None:
        self._runtime = runtime_of(app)
        self._pool = AsyncPool(self._runtime.engine)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: set[tuple[str, str]] = set()
        self._matched: dict[Event, int | None] = {}
        self._is_sending = self._is_prepared = False
        self._failures = LogThrottle()
        """Events that could not be sent."""
        self._forgets_at = 0.0

    async def open(self) -> None:
        """Open a session and import the pipeline modules, so that the first request does not have to wait.

        If either fails or takes longer than `OPENED_WITHIN`, requests report it.
        """
        opening = asyncio.gather(self._pool.open(), self.prepare(), return_exceptions=True)
        await asyncio.wait([opening], timeout=OPENED_WITHIN)

    async def close(self) -> None:
        """Wait for unfinished work, and close the sessions."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._pool.close()

    async def receive(self, incoming: Incoming) -> bool:
        """Store the record of a webhook; return whether the webhook is new.

        Raises:
            Unavailable: Postgres is unavailable, all sessions are in use, or another transaction has locked the record.
                It is unknown whether the record was stored, so the sender should try again.
            InvalidInput: Postgres rejects the record.
        """
        with _translated():
            (((is_new, has_changed),),) = await self._pool.execute(receive_statement(incoming))
        self._after_commit({(incoming.source, incoming.tenant)} if has_changed else (), {})
        return bool(is_new)

    async def store(self, records: Sequence[Incoming], messages: Sequence[Prepared]) -> None:
        """Store all records and messages of a request, or none.

        Raises: as `receive`.
        """
        documents: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        traceparent = None
        for one in records:
            documents[one.source][one.tenant, one.key] = one.document or "{}"
            traceparent = one.traceparent
        # Sorted, so that concurrent requests rarely wait for each other.
        sources = sorted(documents)
        messages = sorted(messages, key=lambda one: (one.pipeline, one.message_id))
        with _translated():
            changed = await self._pool.execute(
                *(documents_statement(source, documents[source], traceparent) for source in sources),
                *(one.statement(self._runtime) for one in messages),
            )
        matched: dict[Event, int | None] = {}
        for message, is_new in zip(messages, changed[len(sources) :], strict=True):
            if is_new:
                merge(matched, dict(message.events))
        tenants = {(source, tenant) for source, found in zip(sources, changed, strict=False) for (tenant,) in found}
        self._after_commit(tenants, matched)

    async def keep(self, unfit: Unfit) -> None:
        """Store a request without a valid record as unmatched; the same body is stored only once.

        Raises: as `receive`.
        """
        name = hashlib.sha256(unfit.request.body).hexdigest()
        try:
            await self._keep(unfit, name, exact_json_text("", unfit.request.payload))
        except InvalidInput:
            text = ascii(unfit.request.body.decode(errors="replace"))
            await self._keep(unfit, name, json.dumps({"unstorable": text[:LONGEST_UNSTORABLE]}))
        log.error(
            "stored request %s to %r as unmatched: %s (`taskbridge quarantine list --unmatched` shows it)",
            name,
            unfit.source,
            printable(unfit.reason),
        )

    async def _keep(self, unfit: Unfit, name: str, text: str) -> None:
        reason = Unmatched(printable(unfit.reason)[:2000])
        with _translated():
            await self._pool.execute(message_statement(unfit.source, name, text, reason))

    def _after_commit(self, changed: Iterable[tuple[str, str]], matched: Events) -> None:
        """Send events for tenants with changed records, in the background: workers find the records anyway."""
        self._changed.update(changed)
        merge(self._matched, matched)
        if (self._changed or self._matched) and not self._is_sending:
            self._is_sending = True
            self._begin(self._send())
        if time.monotonic() >= self._forgets_at:
            self._forgets_at = time.monotonic() + FORGETS_EVERY
            self._begin(asyncio.to_thread(self._forget))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        # Without the context of a request, because it works for many.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        try:
            await self.prepare()
            while self._changed or self._matched:
                changed, self._changed = self._changed, set()
                matched, self._matched = self._matched, {}
                if events := self._events(changed, matched):
                    with logged(self._runtime, events, self._failures):
                        await asend(self._runtime, [*events.items()])
                await asyncio.sleep(EVENTS_EVERY)
        except Exception as error:
            if self._failures.counted(type(error)):
                log.exception("events for new records were not sent; workers will find the records anyway")
        finally:
            self._is_sending = False

    async def prepare(self) -> None:
        """Import the pipeline modules and connect to Redis, once; in a thread, because this takes a while."""

        def connect() -> None:
            for runtime in self._runtime.by_redis():
                _ = runtime.event_gate

        if not self._is_prepared:
            await asyncio.to_thread(connect)
            self._is_prepared = True

    def _events(self, changed: set[tuple[str, str]], matched: Events) -> Events:
        pipelines = self._runtime.pipelines
        events: dict[Event, int | None] = dict(matched)
        for name in pipelines.names():
            merge(events, {(name, tenant): None for source, tenant in changed if source == pipelines[name].source})
        return events

    def _forget(self) -> None:
        try:
            with translated_errors():
                while forget_received(self._runtime.engine):
                    pass
        except Exception as error:
            log.warning("expired webhook ids could not be deleted: %s", error_line(error))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        with translated_errors():
            yield
    except psycopg.DataError:
        raise InvalidInput("Postgres cannot store the record") from None
