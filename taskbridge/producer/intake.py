"""Messages of the task `record_event`: each one is recorded in the end, however often it has to be retried.

| problem | what happens |
| --- | --- |
| Postgres is unavailable, or an unexpected error | Celery retries the message with back-off, without a limit |
| this worker does not declare the pipeline, as during a rolling deployment | the same |
| it can never be recorded: not valid for jsonb, an invalid id, no criteria | it is stored as unmatched |
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy.exc import DBAPIError

from taskbridge.common.names import check_message_id, check_pipeline_name
from taskbridge.common.server_errors import POSTGRES_AWAY, sqlstate, translated_errors
from taskbridge.common.texts import printable
from taskbridge.declaring.criteria import Unmatched
from taskbridge.errors import InvalidInput, Unavailable, UnknownPipeline, UsageError
from taskbridge.process.runtime import Runtime
from taskbridge.producer import recording
from taskbridge.store import driver_error, json_text

__all__ = ["record_message"]

log = logging.getLogger(__name__)

POSTGRES_REST: Final = 1.0
"""Seconds after a failure of Postgres in which this process records no message, since each might wait for a timeout."""
LONGEST_UNSTORABLE: Final = 10_000_000


class _Message(NamedTuple):
    """The arguments of `record_event`; `task_id` is the id of a message without a `message_id`."""

    pipeline: Any
    payload: Any
    message_id: Any
    task_id: str


def record_message(runtime: Runtime, arguments: Sequence[Any], keywords: Mapping[str, Any], task_id: str) -> str:
    """Record a message, or store why it can never be recorded; return its id.

    Raises:
        UnknownPipeline: this process does not declare the pipeline; another one may.
        Exception: Postgres did not accept it this time.
    """
    if time.monotonic() < runtime.shut_until:
        raise Unavailable("Postgres was unavailable a moment ago")
    try:
        return _store(runtime, _message(arguments, keywords, task_id))
    except Exception as error:
        if _is_away(error):
            runtime.shut_until = time.monotonic() + POSTGRES_REST
        raise


def _message(arguments: Sequence[Any], keywords: Mapping[str, Any], task_id: str) -> _Message:
    def called(pipeline: Any, payload: Any, message_id: Any = None) -> _Message:
        return _Message(pipeline, payload, message_id, task_id)

    try:
        return called(*arguments, **keywords)
    except TypeError:
        return _Message("", {"args": arguments, "kwargs": keywords}, None, task_id)


def _store(runtime: Runtime, message: _Message) -> str:
    pipeline, payload, message_id = message.pipeline, message.payload, message.message_id or message.task_id
    try:
        check_pipeline_name(pipeline)
        return recording.record_event(runtime.app, pipeline, payload, message_id, notify=True).message_id
    except UnknownPipeline:
        raise
    except UsageError as error:
        reason = str(error)
    except (DBAPIError, Unavailable) as error:
        # The driver's error, or its translation for producers.
        refusal = driver_error(error) or driver_error(error.__cause__)
        if not _is_about_the_payload(refusal):
            raise
        reason = f"Postgres does not accept the payload: {str(refusal).splitlines()[0]}"
    return _give_up(runtime, message, reason)


def _is_about_the_payload(error: psycopg.Error | None) -> bool:
    """Whether Postgres can never accept the value: bad data, or one of its limits is exceeded."""
    return isinstance(error, psycopg.DataError) or sqlstate(error).startswith(("22", "54"))


def _is_away(error: Exception) -> bool:
    """Whether the error says that Postgres cannot be used, as opposed to refusing one statement."""
    if not isinstance(error, Unavailable) or driver_error(error.__cause__) is None:
        return False
    state = sqlstate(driver_error(error.__cause__))
    return not state or state.startswith(POSTGRES_AWAY)


def _give_up(runtime: Runtime, message: _Message, reason: str) -> str:
    """Store a message as unmatched, in a form that Postgres accepts; return its id.

    Raises:
        Unavailable: Postgres cannot be used.
    """
    pipeline = message.pipeline if isinstance(message.pipeline, str) else ""
    pipeline = printable(pipeline)[:200] or "(none)"
    try:
        message_id = check_message_id(pipeline, message.message_id or message.task_id)
    except InvalidInput:
        # Derived from the message, so that a redelivered message is stored once.
        message_id = str(uuid.uuid5(uuid.NAMESPACE_OID, ascii((message.message_id, message.task_id))))
    unmatched = Unmatched(printable(reason)[:2000])
    with translated_errors():
        try:
            runtime.records_of(pipeline).write(message_id, json_text("", message.payload), unmatched)
        except (InvalidInput, DBAPIError) as error:
            if isinstance(error, DBAPIError) and not _is_about_the_payload(driver_error(error)):
                raise
            runtime.records_of(pipeline).write(message_id, _as_text(message.payload), unmatched)
    log.error(
        "message %s of pipeline %r is stored as unmatched: %s (`taskbridge quarantine list --unmatched` shows it)",
        message_id,
        pipeline,
        unmatched.reason,
    )
    return message_id


def _as_text(payload: Any) -> str:
    """Return a payload that is not valid for jsonb as a JSON object with its text."""
    try:
        text = ascii(payload)
    except Exception as error:
        text = f"a {type(payload).__name__} that cannot be shown ({type(error).__name__})"
    return json.dumps({"unstorable": text[:LONGEST_UNSTORABLE]})
