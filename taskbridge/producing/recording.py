"""What producers write, whichever connection they hold: rows of a source, and messages that are matched to a tenant.

A message of a pipeline with criteria is written once, and its event has its own delay.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from celery import Celery

from taskbridge.common.names import check_message_id, check_source_name
from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.criteria import Match, Unmatched, match
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.errors import InvalidInput, UnknownPipeline
from taskbridge.gate import Answer
from taskbridge.process.light_runtime import LightRuntime
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producing import notify as notifying
from taskbridge.producing.holders import Holder, OnHolder, holder_of
from taskbridge.store import Row, UnmatchedRecord, Writing, json_text, writing, writing_message, written
from taskbridge.store.unmatched import PAGE

__all__ = [
    "MatchedAgain",
    "Prepared",
    "Recorded",
    "criteria_of",
    "match_again",
    "of_message",
    "of_rows",
    "prepare",
    "readers_of",
    "record_event",
    "with_event",
]

R = TypeVar("R")


class Recorded(NamedTuple):
    """What became of one message.

    `new`: it was not recorded before. `tenant` and `delay` (seconds) are those of the criterion that matched, else
    `reason` says why none did. `answer` is the gate's, None where nobody was notified.
    """

    message_id: str
    new: bool
    tenant: str | None
    delay: float | None
    reason: str | None
    answer: Answer | None


class MatchedAgain(NamedTuple):
    """One record that was matched again: `tenant` if it found one, else `reason`."""

    record: UnmatchedRecord
    tenant: str | None
    reason: str | None


def of_rows(app: Celery, rows: Iterable[Row], source: str, *, notify: bool) -> OnHolder[Counter[str]]:
    """Write or update records of a source; `notify` its pipelines after the commit.

    Raises:
        UnknownPipeline: nobody is there to be notified.
    """
    runtime = runtime_of(app)
    readers = readers_of(runtime, source) if notify else []

    def on(holder: Holder) -> Writing[Counter[str]]:
        def after_each(tenants: Iterable[str]) -> None:
            holder.after_commit(app, {(pipeline, tenant): None for pipeline in readers for tenant in tenants})

        return writing(source, rows, after_each if readers else None)

    return on


def readers_of(runtime: LightRuntime, source: str) -> list[str]:
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
        f"no pipeline that is loaded reads the source {source!r}, so there is none to notify: name the module that "
        "declares it in TASKBRIDGE_PIPELINES, or leave `notify` out"
    )


def of_message(app: Celery, prepared: Prepared, *, notify: bool) -> OnHolder[Recorded]:
    """Write a message; `notify` its tenant after the commit."""
    runtime, found = runtime_of(app), prepared.found

    def on(holder: Holder) -> Writing[Recorded]:
        new = yield from prepared.writing(runtime)
        if notify and new and isinstance(found, Match):
            holder.after_commit(app, {(prepared.pipeline, found.tenant): found.delay_ms})
        return prepared.recorded(new=new)

    return on


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

    See `taskbridge.record_event`, which is this for the package's own app.
    """
    runtime = runtime_of(app)
    prepared = prepare(runtime, pipeline, payload, message_id)
    with translated_errors():
        holder = holder_of(runtime, connection, tells=notify)
        recorded = written(of_message(app, prepared, notify=notify)(holder), holder.fetch)
    return recorded if notify or connection is not None else with_event(app, prepared, recorded)


def with_event(app: Celery, prepared: Prepared, recorded: Recorded) -> Recorded:
    """Notify the tenant of a message that is new and committed; return what became of it.

    Raises: Unavailable as `notify`.
    """
    found = prepared.found
    if not recorded.new or not isinstance(found, Match):
        return recorded
    return recorded._replace(answer=notifying.notify(app, found.tenant, prepared.pipeline, found.delay_ms))


class Prepared(NamedTuple):
    """A message that was checked and matched and can be written; `text` is its payload as JSON."""

    pipeline: str
    message_id: str
    text: str
    found: Match | Unmatched
    traceparent: str | None = None
    """The span of the request that brought it, where it is traced."""

    def write(self, runtime: Runtime) -> bool:
        """Write it in a transaction of its own; return whether it is new."""
        return runtime.records_of(self.pipeline).write(self.message_id, self.text, self.found)

    def writing(self, runtime: Runtime) -> Writing[bool]:
        """Write it in anybody's transaction; whether it is new."""
        return writing_message(runtime.source_of(self.pipeline), self.message_id, self.text, self.found)

    def recorded(self, *, new: bool) -> Recorded:
        """Return what became of it, without anybody notified."""
        found = self.found
        if isinstance(found, Unmatched):
            return Recorded(self.message_id, new, None, None, found.reason, None)
        return Recorded(self.message_id, new, found.tenant, found.delay_ms / 1000, None, None)


def prepare(runtime: Runtime, pipeline: str, payload: Any, message_id: str | None) -> Prepared:
    """Check and match a message; nothing is written.

    Raises: UnknownPipeline, InvalidInput as `taskbridge.record_event`.
    """
    policy = criteria_of(runtime, pipeline)
    message_id = str(uuid.uuid4()) if message_id is None else check_message_id(pipeline, message_id)
    text = json_text(f"pipeline {pipeline!r}, message {message_id!r}", payload)
    # What is matched is what is stored, so that matching it again gives the same.
    return Prepared(pipeline, message_id, text, match(policy.criteria, json.loads(text)))


def match_again(app: Celery, pipeline: str, reason: str | None = None, page_size: int = PAGE) -> Iterator[MatchedAgain]:
    """Match unmatched messages once more, after the criteria changed, and notify the tenants that are found.

    Each is matched when the caller asks for the next; the caller may stop at any. With `reason` only those that were
    stored with it. `page_size` of them are in memory at once.

    Raises:
        UnknownPipeline, InvalidInput: there is no such pipeline, or it has no criteria.
        Unavailable: Postgres or Redis cannot be used; what was matched until then stays matched.
    """
    runtime = runtime_of(app)
    policy = criteria_of(runtime, pipeline)
    with translated_errors():
        # A message that came before the pipeline was known has the pipeline's name as its source.
        again = runtime.records_of(pipeline).match_again
        under = sorted({pipeline, runtime.pipelines[pipeline].source})
        for record, found in again(lambda payload: match(policy.criteria, payload), reason, under, page_size):
            if isinstance(found, Match):
                notifying.notify(app, found.tenant, pipeline, found.delay_ms)
                yield MatchedAgain(record, found.tenant, None)
            else:
                yield MatchedAgain(record, None, found.reason)


def criteria_of(runtime: LightRuntime, pipeline: str) -> DelaySinceLastRun:
    """Return the policy of a pipeline with criteria.

    Raises:
        UnknownPipeline: no loaded module declares it.
        InvalidInput: it has no criteria.
    """
    policy = runtime.pipelines[pipeline].criteria
    if policy is None:
        others = [name for name in runtime.pipelines.names() if runtime.pipelines[name].criteria is not None]
        raise InvalidInput(
            f"the pipeline {pipeline!r} has no criteria, so it takes no messages: name one that has "
            f"({', '.join(others) or 'none is declared with DelaySinceLastRun in the modules of TASKBRIDGE_PIPELINES'})"
        )
    return policy
