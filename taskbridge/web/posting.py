"""`POST /events`: events, records and messages from programs in any language.

| fields of an entry | meaning | equivalent call |
| --- | --- | --- |
| `pipeline`, `tenant` | an event | `notify_event` |
| `source` or `pipeline`, `tenant`, `key`, `document` | a record, and its events | `record`, with `notify` |
| `pipeline`, `payload`, optionally `message_id` | a message for a pipeline with criteria | `record_event` |
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from celery import Celery
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from taskbridge.common import tracing
from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.texts import error_line, shown
from taskbridge.declaring.criteria import Unmatched
from taskbridge.errors import ConfigurationError, InvalidInput, Unavailable, UsageError
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.notify import Event, asend
from taskbridge.producer.recording import Prepared, prepare, readers_of
from taskbridge.settings import Settings, check_token
from taskbridge.store import Incoming, exact_json_text
from taskbridge.web.endpoint import LONGEST_BODY, Endpoint, Refusal, Storages, mountable, unavailable
from taskbridge.web.webhook import parsed, text_of

__all__ = ["MOST_ENTRIES", "PATH", "events", "with_events"]

PATH: Final = "/events"
MOST_ENTRIES: Final = 1_000
"""The maximum number of entries in a request."""
LONGEST_SHOWN: Final = 40
UNKNOWN: Final = "the token is missing or invalid: send `Authorization: Bearer TOKEN`"


def events(
    tokens: str | Sequence[str] | None = None, *, app: Celery | None = None, longest_body: int = LONGEST_BODY
) -> Starlette:
    """Return an ASGI app for `POST /events`. You can mount it under any path.

    docs/how-to/events-over-http.md describes requests and responses.

    Args:
        tokens: the accepted bearer tokens, several during a rotation. None: those of TASKBRIDGE_EVENTS_TOKENS. Without
            any token, the path does not exist.
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        longest_body: the maximum size of a body in bytes.

    Raises:
        ConfigurationError: a token is not allowed.
    """
    if tokens is None:
        tokens = (Settings.read() if app is None else runtime_of(app).settings).events_tokens
    given = [check_token(one) for one in ([tokens] if isinstance(tokens, str) else tokens)]
    storages = Storages(app)
    routes = [Route(PATH, _Events(given, longest_body, storages), methods=["POST"])] if given else []
    return mountable(routes, storages.lifespan)


def with_events(target: ASGIApp) -> ASGIApp:
    """Return an ASGI app that handles `POST /events` and passes all other requests to `target`.

    Raises:
        ConfigurationError: a webhook of `target` uses the same path, or a token is not allowed.
    """
    webhooks = getattr(getattr(target, "state", None), "webhooks", ())
    if any(one.route == PATH for one in webhooks):
        raise ConfigurationError(
            f"a webhook has the path {PATH}, which TASKBRIDGE_EVENTS_TOKENS reserves: give the webhook another `path`"
        )
    ours = events()

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            # Only one app may respond to the lifespan messages, so ours runs around the other.
            async with ours.router.lifespan_context(ours):
                await target(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == PATH:
            await ours(scope, receive, send)
        else:
            await target(scope, receive, send)

    return both


@dataclass
class _Found:
    """The content of a request."""

    records: list[Incoming] = field(default_factory=list)
    messages: list[Prepared] = field(default_factory=list)
    events: dict[Event, None] = field(default_factory=dict)

    @property
    def stored(self) -> int:
        """How many records and messages are stored."""
        return len(self.records) + len(self.messages)


class _Events(Endpoint[_Found]):
    """The endpoint `POST /events`."""

    def __init__(self, tokens: Iterable[str], longest_body: int, storages: Storages) -> None:
        super().__init__(PATH, longest_body, storages)
        self._tokens = [token.encode() for token in tokens]

    async def begin(self, headers: dict[str, str]) -> None:
        """Check the token; for the first request, import the pipeline modules."""
        if not self._is_allowed(headers.get("authorization", "")):
            raise Refusal(401, UNKNOWN, {"WWW-Authenticate": "Bearer"})
        try:
            await self._storages.current.prepare()
        except UsageError as error:
            # It is not the sender's fault, so do not respond with 400.
            raise Unavailable(str(error)) from error

    def _is_allowed(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        sent = token.strip().encode("latin-1", "replace")
        # Compare all tokens, each in constant time.
        same = [hmac.compare_digest(sent, one) for one in self._tokens]
        return any(same) and scheme.lower() == "bearer"

    def read(self, headers: dict[str, str], body: bytes) -> _Found:
        """See `Endpoint`."""
        runtime, found, payload = runtime_of(self._storages.app), _Found(), parsed(body)
        entries = payload if isinstance(payload, list) else [payload]
        if len(entries) > MOST_ENTRIES:
            raise Refusal(413, f"there are {len(entries):,} entries: send at most {MOST_ENTRIES:,}")
        for number, entry in enumerate(entries):
            try:
                _take(runtime, entry, found)
            except UsageError as error:
                raise Refusal(400, str(error), index=number if isinstance(payload, list) else None) from None
        traceparent = tracing.of_request(headers.get("traceparent"))
        found.records = [one._replace(traceparent=traceparent) for one in found.records]
        found.messages = [one._replace(traceparent=traceparent) for one in found.messages]
        return found

    async def store(self, brought: _Found) -> Response:
        """Store records and messages, send events that have no record, and respond."""
        if brought.stored:
            await self._storages.current.store(brought.records, brought.messages)
        try:
            if brought.events:
                await asend(runtime_of(self._storages.app), [*brought.events.items()])
        except Unavailable as error:
            text = "the events were not sent: try again"
            if brought.stored:
                text = f"records and messages were stored, but {text}"
            raise unavailable(text, error_line(error)) from error
        unmatched = sum(isinstance(one.found, Unmatched) for one in brought.messages)
        return JSONResponse({"records": brought.stored, "events": len(brought.events), "unmatched": unmatched})


def _take(runtime: Runtime, entry: Any, found: _Found) -> None:
    """Parse an entry and add it to the content.

    Raises:
        UsageError: it is invalid.
    """
    if not isinstance(entry, dict):
        raise InvalidInput("not a JSON object: send one with `pipeline` and `tenant`, or an array of objects")
    # Programs send null for omitted fields; the payload of a message may be null.
    given = {name: value for name, value in entry.items() if value is not None or name == "payload"}
    if "payload" in given:
        found.messages.append(_message(runtime, given))
    elif given.keys() & {"source", "key", "document"}:
        found.records.append(_record(runtime, given))
    else:
        _check_fields("an event", given, ("pipeline", "tenant"))
        pipeline = runtime.pipelines[given["pipeline"]].name
        found.events[pipeline, _tenant(given)] = None


def _record(runtime: Runtime, given: Mapping[str, Any]) -> Incoming:
    _check_fields("a record", given, ("tenant", "key", "document"), ("source", "pipeline"))
    if ("source" in given) == ("pipeline" in given):
        raise InvalidInput("a record needs either a `source` or a `pipeline`")
    if "source" in given:
        source = check_source_name(given["source"])
        readers_of(runtime, source)
    else:
        source = runtime.pipelines[given["pipeline"]].source
    tenant = _tenant(given)
    key = check_key(tenant, text_of("key", given["key"]))
    document = given["document"]
    if not isinstance(document, dict):
        raise InvalidInput(f"tenant {tenant!r}, record {key!r}: the document is not a JSON object")
    return Incoming(source, None, tenant, key, None, exact_json_text(f"tenant {tenant!r}, record {key!r}", document))


def _message(runtime: Runtime, given: Mapping[str, Any]) -> Prepared:
    _check_fields("a message", given, ("pipeline", "payload"), ("message_id",))
    message_id = given.get("message_id")
    if message_id is not None:
        message_id = text_of("message_id", message_id)
    text = exact_json_text(f"pipeline {given['pipeline']!r}, message {message_id!r}", given["payload"])
    return prepare(runtime, given["pipeline"], given["payload"], message_id, text)


def _tenant(given: Mapping[str, Any]) -> str:
    return check_tenant(text_of("tenant", given["tenant"]))


def _check_fields(what: str, given: Mapping[str, Any], needed: Sequence[str], others: Sequence[str] = ()) -> None:
    """Raise InvalidInput if a field is missing or unknown."""
    if unknown := [name for name in given if name not in (*needed, *others)]:
        raise InvalidInput(
            f"{shown(unknown[0], LONGEST_SHOWN)} is not a field of {what}: use {', '.join((*needed, *others))}"
        )
    if missing := [name for name in needed if name not in given]:
        raise InvalidInput(f"{what} lacks {', '.join(missing)}")
