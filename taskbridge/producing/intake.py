"""Messages of the task `record_event`: each ends in the table of records, however often that has to be tried.

| what keeps it out | where the message goes |
| --- | --- |
| Postgres cannot be used, or an error that nobody foresaw | into the broker's parking queue, and from there again |
| no worker that took it knows the pipeline | stored as unmatched; a worker that knows the pipeline matches it |
| it can never be recorded: no JSON for jsonb, a bad id, no criteria | stored as unmatched, with the reason |

Nobody consumes the parking queue. A thread of each worker, the keeper, counts the messages in it and lets the pool try
some of them for a short time; it waits longer each time that none is recorded. So an hour without Postgres keeps no
message in a worker's memory, needs no countdown, and holds up no run.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.exceptions import Reject
from sqlalchemy.exc import DataError, DBAPIError

from taskbridge.common.names import check_message_id, check_pipeline_name
from taskbridge.common.server_errors import POSTGRES_AWAY, sqlstate, translated_errors
from taskbridge.common.texts import error_line, printable
from taskbridge.declaring.criteria import Match, Unmatched
from taskbridge.errors import InvalidInput, Unavailable, UnknownPipeline, UsageError
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producing import recording
from taskbridge.producing.notify import notify
from taskbridge.producing.parking import bound, park, rotate
from taskbridge.store import driver_error, json_text, matching_alone, with_reason

__all__ = ["UNDECLARED", "Message", "again", "give_up", "take", "with_undeclared"]

log = logging.getLogger(__name__)

UNDECLARED: Final = "no worker that took it knows the pipeline; one that does matches it"
"""The reason of a message whose pipeline may come with the next deployment."""

SLICE: Final = 0.1
"""Seconds for which the pool tries waiting messages before it does something else."""
NOT_TRIED: Final = 1.0
"""Seconds after a failure of Postgres in which this process parks messages without a try, since each may take long."""
MOST_FAILURES: Final = 3
AT_ONCE: Final = 50
"""Messages whose pipeline was not known are read so many at a time: not many more than fit into a slice."""
LONGEST_UNSTORABLE: Final = 10_000_000


class Message(NamedTuple):
    """What `record_event` was called with; `task_id` names a message that has no id of its own."""

    pipeline: Any
    payload: Any
    message_id: Any
    task_id: str


def take(app: Celery, arguments: Sequence[Any], keywords: Mapping[str, Any], task_id: str) -> str:
    """Record a message; return its id, or "" where it was parked.

    Raises:
        Reject: it can be neither stored nor parked; the broker gives it again.
    """
    runtime = runtime_of(app)
    failure = "Postgres could not be used a moment ago"
    if time.monotonic() >= runtime.shut_until:
        try:
            return _store(runtime, _message(arguments, keywords, task_id))
        except Exception as error:
            if runtime.eager:
                raise
            if _is_away(error):
                runtime.shut_until = time.monotonic() + NOT_TRIED
            failure = error_line(error)
    try:
        park(app, arguments, keywords, task_id, 1, failure)
    except Exception as error:
        log.error("message %s can be neither recorded (%s) nor parked: %s", task_id, failure, error)
        time.sleep(1)
        raise Reject(failure, requeue=True) from error
    log.warning("message %s waits to be recorded: %s", task_id, failure)
    return ""


def again(app: Celery) -> None:
    """Match messages whose pipeline was not known when they came, then try parked ones; half a slice for each."""
    runtime = runtime_of(app)
    try:
        with translated_errors():
            _match_undeclared(runtime)
    except Exception as error:
        log.warning("messages that came before their pipeline was known cannot be matched: %s", error_line(error))
        if _is_away(error):
            return
    pool: Any = app.pool
    with pool.acquire(block=True) as connection, connection.channel() as channel:
        queue: Any = bound(runtime, channel)
        left, failures = queue.queue_declare().message_count, 0
        # From here on, so that at least one is tried each time, however slowly the broker answers.
        until = time.monotonic() + SLICE / 2
        while left and failures < MOST_FAILURES and time.monotonic() < until:
            left -= 1
            message = queue.get(accept=app.conf.accept_content)
            if message is None:
                return
            try:
                if message.delivery_info.get("redelivered"):
                    raise ConnectionError("its last try did not come to an end")
                arguments, keywords, _ = message.decode()
                _store(runtime, _message(arguments, keywords, message.headers["id"]))
            except Exception as error:
                # It goes to the end of the queue, so that it holds up no other, and as a new message: one that the
                # broker takes back is marked as redelivered, and the next try would refuse it.
                rotate(app, message, error_line(error))
                failures += 1
                if _is_away(error):
                    return
            else:
                message.ack()


def _message(arguments: Sequence[Any], keywords: Mapping[str, Any], task_id: str) -> Message:
    try:
        given = _SIGNATURE.bind(*arguments, **keywords)
    except TypeError:
        return Message("", {"args": arguments, "kwargs": keywords}, None, task_id)
    given.apply_defaults()
    pipeline, payload, message_id = given.args
    return Message(pipeline, payload, message_id, task_id)


def _called(pipeline: Any, payload: Any, message_id: Any = None) -> None:
    """Take the arguments of `record_event`; never called, its signature binds them."""


_SIGNATURE: Final = inspect.signature(_called)


def _store(runtime: Runtime, message: Message) -> str:
    """Record a message, or store why it can never be recorded.

    Raises:
        Exception: Postgres does not take it now.
    """
    try:
        recorded = recording.prepare(runtime, message.pipeline, message.payload, message.message_id or message.task_id)
        new = recorded.write(runtime)
    except UnknownPipeline as error:
        reason = UNDECLARED if _is_pipeline_name(message.pipeline) else str(error)
    except UsageError as error:
        reason = str(error)
    except DBAPIError as error:
        if not _is_about_the_payload(error):
            with translated_errors():
                raise
        reason = f"Postgres does not take the payload: {str(error.orig).splitlines()[0]}"
    else:
        found = recorded.found
        if new and isinstance(found, Match):
            # The record is stored: if this fails, the tail finds it.
            try:
                notify(runtime.app, found.tenant, recorded.pipeline, found.delay_ms)
            except Exception as error:
                log.warning("message %s is recorded, its tenant not notified: %s", recorded.message_id, error)
        return recorded.message_id
    return give_up(runtime, message, reason)


def _is_about_the_payload(error: DBAPIError) -> bool:
    """Whether Postgres says that it can never take the value: bad data, or one of its limits is exceeded."""
    return isinstance(error, DataError) or sqlstate(error.orig).startswith(("22", "54"))


def _is_away(error: Exception) -> bool:
    """Whether the error says that Postgres cannot be used, and not that it refused one statement."""
    if not isinstance(error, Unavailable) or driver_error(error.__cause__) is None:
        return False
    state = sqlstate(driver_error(error.__cause__))
    return not state or state.startswith(POSTGRES_AWAY)


def give_up(runtime: Runtime, message: Message, reason: str) -> str:
    """Store a message as unmatched, in a form that Postgres takes; return its id.

    Raises:
        Unavailable: Postgres cannot be used.
    """
    pipeline = message.pipeline if isinstance(message.pipeline, str) else ""
    pipeline = printable(pipeline)[:200] or "(none)"
    try:
        message_id = check_message_id(pipeline, message.message_id or message.task_id)
    except InvalidInput:
        # It is made from the message, so that one that comes twice is stored once.
        message_id = str(uuid.uuid5(uuid.NAMESPACE_OID, ascii((message.message_id, message.task_id))))
    found = Unmatched(printable(reason)[:2000])
    with translated_errors():
        try:
            runtime.records_of(pipeline).write(message_id, json_text("", message.payload), found)
        except (InvalidInput, DBAPIError) as error:
            if isinstance(error, DBAPIError) and not _is_about_the_payload(error):
                raise
            runtime.records_of(pipeline).write(message_id, _as_text(message.payload), found)
    log.error(
        "message %s of pipeline %r is stored as unmatched: %s (`taskbridge unmatched list` shows it)",
        message_id,
        pipeline,
        found.reason,
    )
    return message_id


def _as_text(payload: Any) -> str:
    """Return a payload that jsonb does not take as a JSON object with its text."""
    try:
        text = ascii(payload)
    except Exception as error:
        text = f"a {type(payload).__name__} that cannot be written down ({type(error).__name__})"
    return json.dumps({"unstorable": text[:LONGEST_UNSTORABLE]})


def _is_pipeline_name(name: Any) -> bool:
    with suppress(UsageError):
        check_pipeline_name(name)
        return True
    return False


def _match_undeclared(runtime: Runtime) -> None:
    """Match messages that came before their pipeline was known, for half a slice; at least one of each pipeline."""
    pipelines = with_undeclared(runtime)
    if not pipelines:
        return
    with matching_alone(runtime.engine) as alone:
        until = time.monotonic() + SLICE / 2
        for pipeline in pipelines if alone else ():
            count = 0
            for _ in recording.match_again(runtime.app, pipeline, UNDECLARED, AT_ONCE):
                count += 1
                if time.monotonic() >= until:
                    break
            log.info("%s: %d messages that came before the pipeline was known are matched", pipeline, count)


def with_undeclared(runtime: Runtime) -> dict[str, int]:
    """Return the known pipelines that have messages from before they were known, each with the oldest one's id."""
    known = [name for name in runtime.pipelines.names() if runtime.pipelines[name].criteria is not None]
    return with_reason(runtime.engine, known, UNDECLARED) if known else {}
