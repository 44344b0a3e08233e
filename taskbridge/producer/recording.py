"""Writing records with any kind of connection: rows of a source, and messages that are matched to a tenant.

A message of a pipeline with criteria is written once, and its event has its own delay.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery import Celery

from taskbridge.common.names import check_message_id, check_source_name
from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.criteria import Match, Unmatched, match
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.errors import InvalidInput, UnknownPipeline
from taskbridge.gate import Answer
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer import notify as notifying
from taskbridge.producer.notify import Event
from taskbridge.producer.transactions import adapter_of, async_fetch_of, in_coroutine
from taskbridge.store import Row, Statement, UnmatchedRecord, json_text, message_statement, record_statements, refused

__all__ = [
    "Prepared",
    "Recorded",
    "arecord_event",
    "arecord_rows",
    "criteria_of",
    "match_again",
    "prepare",
    "readers_of",
    "record_event",
    "record_rows",
]


class Recorded(NamedTuple):
    """The result of recording one message.

    `new`: it was not recorded before. `tenant` and `delay` (seconds) are those of the criterion that matched; if none
    did, `reason` says why. `answer` is the gate's answer, or None if no event was sent.
    """

    message_id: str
    new: bool
    tenant: str | None
    delay: float | None
    reason: str | None
    answer: Answer | None


def record_rows(
    app: Celery, rows: Iterable[Row], source: str, connection: object = None, *, notify: bool = False
) -> Counter[str]:
    """Write or update records of a source; `notify` its pipelines after the commit. Return the changes by tenant.

    Raises: as `Bridge.record_many`.
    """
    runtime, changed = runtime_of(app), Counter[str]()
    with translated_errors():
        readers = readers_of(runtime, source) if notify else []
        adapter = adapter_of(runtime, connection, notifies=notify)
        for statement in record_statements(source, rows):
            with refused():
                tenants = adapter.fetch(statement)
            changed.update(tenants)
            if readers and tenants:
                adapter.after_commit(app, {(pipeline, tenant): None for pipeline in readers for tenant in tenants})
    return changed


async def arecord_rows(
    app: Celery, rows: Iterable[Row], source: str, connection: object = None, *, notify: bool = False
) -> Counter[str]:
    """Like `record_rows`, for coroutines."""
    changed = Counter[str]()
    with translated_errors():
        fetch = async_fetch_of(runtime_of(app), connection, notifies=notify)
        if fetch is None:
            return await in_coroutine(connection, lambda given: record_rows(app, rows, source, given, notify=notify))
        for statement in record_statements(source, rows):
            with refused():
                changed.update(await fetch(statement))
    return changed


def readers_of(runtime: Runtime, source: str) -> list[str]:
    """Return the loaded pipelines that read a source.

    Raises:
        InvalidName: the source is not allowed.
        UnknownPipeline: there is none.
    """
    check_source_name(source)
    pipelines = runtime.pipelines
    if readers := [name for name in pipelines.names() if pipelines[name].source == source]:
        return readers
    raise UnknownPipeline(
        f"no loaded pipeline reads the source {source!r}, so there is none to notify: add the module that declares it "
        "to TASKBRIDGE_PIPELINES, or leave `notify` out"
    )


def record_event(
    app: Celery,
    pipeline: str,
    payload: Any,
    message_id: str | None = None,
    connection: object = None,
    *,
    notify: bool = False,
) -> Recorded:
    """Record one message of a pipeline with criteria, and notify its tenant if the record is committed here.

    Raises: as `Bridge.record_event`.
    """
    runtime = runtime_of(app)
    prepared = prepare(runtime, pipeline, payload, message_id)
    with translated_errors():
        adapter = adapter_of(runtime, connection, notifies=notify)
        with refused():
            new = bool(adapter.fetch(prepared.statement(runtime)))
        if notify and new and prepared.events:
            adapter.after_commit(app, dict(prepared.events))
    recorded = prepared.recorded(new=new)
    if new and prepared.events and not notify and connection is None:
        return recorded._replace(answer=notifying.send(runtime, prepared.events)[0])
    return recorded


async def arecord_event(
    app: Celery,
    pipeline: str,
    payload: Any,
    message_id: str | None = None,
    connection: object = None,
    *,
    notify: bool = False,
) -> Recorded:
    """Like `record_event`, for coroutines."""
    runtime = runtime_of(app)
    with translated_errors():
        fetch = async_fetch_of(runtime, connection, notifies=notify)
        if fetch is None:
            call = partial(record_event, app, pipeline, payload, message_id, notify=notify)
            return await in_coroutine(connection, call)
        prepared = prepare(runtime, pipeline, payload, message_id)
        with refused():
            return prepared.recorded(new=bool(await fetch(prepared.statement(runtime))))


class Prepared(NamedTuple):
    """A message that is checked, matched and ready to be written; `text` is its payload as JSON."""

    pipeline: str
    message_id: str
    text: str
    found: Match | Unmatched
    traceparent: str | None = None
    """The span of the request that brought it, if that is traced."""

    @property
    def events(self) -> Sequence[tuple[Event, int | None]]:
        """The event of the tenant that it matches, if it matches one."""
        found = self.found
        return [((self.pipeline, found.tenant), found.delay_ms)] if isinstance(found, Match) else []

    def statement(self, runtime: Runtime) -> Statement:
        """Return the statement that writes it; that returns a row if the message is new."""
        return message_statement(runtime.source_of(self.pipeline), *self[1:])

    def recorded(self, *, new: bool) -> Recorded:
        """Return the result, with no event sent."""
        found = self.found
        if isinstance(found, Unmatched):
            return Recorded(self.message_id, new, None, None, found.reason, None)
        return Recorded(self.message_id, new, found.tenant, found.delay_ms / 1000, None, None)


def prepare(runtime: Runtime, pipeline: str, payload: Any, message_id: str | None, text: str | None = None) -> Prepared:
    """Check and match a message; nothing is written. `text`: the payload as JSON, if the caller has it.

    Raises: UnknownPipeline, InvalidInput as `taskbridge.record_event`.
    """
    policy = criteria_of(runtime, pipeline)
    message_id = str(uuid.uuid4()) if message_id is None else check_message_id(pipeline, message_id)
    text = text or json_text(f"pipeline {pipeline!r}, message {message_id!r}", payload)
    # The stored text is matched, so that matching it again gives the same result.
    return Prepared(pipeline, message_id, text, match(policy.criteria, json.loads(text)))


def match_again(app: Celery, pipeline: str) -> Iterator[tuple[UnmatchedRecord, Match | Unmatched]]:
    """Match unmatched messages again after the criteria changed, and notify the tenants of those that match.

    Messages are matched one by one as the caller iterates, and each is yielded with its match, or with the reason why
    it has none. The caller may stop at any time.

    Raises:
        UnknownPipeline, InvalidInput: there is no such pipeline, or it has no criteria.
        Unavailable: Postgres or Redis cannot be used; messages matched before that stay matched.
    """
    runtime = runtime_of(app)
    policy = criteria_of(runtime, pipeline)
    with translated_errors():
        again = runtime.records_of(pipeline).match_again(lambda payload: match(policy.criteria, payload))
        for record, found in again:
            if isinstance(found, Match):
                notifying.notify(app, found.tenant, pipeline, found.delay_ms)
            yield record, found


def criteria_of(runtime: Runtime, pipeline: str) -> DelaySinceLastRun:
    """Return the policy of a pipeline with criteria.

    Raises:
        UnknownPipeline: no loaded module declares it.
        InvalidInput: it has no criteria.
    """
    policy = runtime.pipelines[pipeline].criteria
    if policy is None:
        others = [name for name in runtime.pipelines.names() if runtime.pipelines[name].criteria is not None]
        raise InvalidInput(
            f"the pipeline {pipeline!r} has no criteria, so it takes no messages: name a pipeline with criteria "
            f"({', '.join(others) or 'none is declared with DelaySinceLastRun in the modules of TASKBRIDGE_PIPELINES'})"
        )
    return policy
