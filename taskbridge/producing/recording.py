"""Records of pipelines with criteria: matched, written once per message, and notified with their own delay."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery import Celery
from sqlalchemy import Connection

from taskbridge.common.names import check_message_id
from taskbridge.declaring.criteria import Match, Unmatched, match
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.errors import InvalidInput
from taskbridge.gate import Answer
from taskbridge.process.looking import Looking
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.process.translation import speaking_plainly
from taskbridge.producing.notify import notify
from taskbridge.store import UnmatchedRecord, json_text
from taskbridge.store.unmatched import PAGE

__all__ = [
    "MatchedAgain",
    "Prepared",
    "Recorded",
    "criteria_of",
    "match_again",
    "prepare",
    "record_event",
]


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


def record_event(
    app: Celery, pipeline: str, payload: Any, message_id: str | None = None, connection: Connection | None = None
) -> Recorded:
    """Record one message of a pipeline with criteria, and notify its tenant if the record is committed here.

    See `taskbridge.record_event`, which is this for the package's own app.
    """
    runtime = runtime_of(app)
    prepared = prepare(runtime, pipeline, payload, message_id)
    found, message_id = prepared.found, prepared.message_id
    with speaking_plainly():
        new = prepared.write(runtime, connection)
        answer = None
        if new and connection is None and isinstance(found, Match):
            answer = notify(app, found.tenant, pipeline, found.delay_ms)
    if isinstance(found, Unmatched):
        return Recorded(message_id, new, None, None, found.reason, None)
    return Recorded(message_id, new, found.tenant, found.delay_ms / 1000, None, answer)


class Prepared(NamedTuple):
    """A message that was checked and matched and can be written; `text` is its payload as JSON."""

    pipeline: str
    message_id: str
    text: str
    found: Match | Unmatched

    def write(self, runtime: Runtime, connection: Connection | None = None) -> bool:
        """Write it, in the transaction of `connection` or in one of its own; return whether it is new."""
        return runtime.records_of(self.pipeline).write(self.message_id, self.text, self.found, connection)


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
    with speaking_plainly():
        # A message that came before the pipeline was known has the pipeline's name as its source.
        again = runtime.records_of(pipeline).match_again
        under = sorted({pipeline, runtime.pipelines[pipeline].source})
        for record, found in again(lambda payload: match(policy.criteria, payload), reason, under, page_size):
            if isinstance(found, Match):
                notify(app, found.tenant, pipeline, found.delay_ms)
                yield MatchedAgain(record, found.tenant, None)
            else:
                yield MatchedAgain(record, None, found.reason)


def criteria_of(runtime: Looking, pipeline: str) -> DelaySinceLastRun:
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
