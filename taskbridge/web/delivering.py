"""Delivery over HTTP: a handler that posts records to an endpoint, signed as Standard Webhooks."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote

import anyio
import httpcore2
from celery import Celery, current_task

from taskbridge.common import tracing
from taskbridge.common.texts import printable, shown
from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import runtime_of
from taskbridge.web.addresses import Network
from taskbridge.web.signatures import Secrets, StandardWebhooks

__all__ = ["Refused", "Undelivered", "UnexpectedAnswer", "deliver"]

LONGEST_ANSWER: Final = 1_048_576
LONGEST_REASON: Final = 1_024
"""How many bytes of a response become the reason of a rejection or a failure."""
OF_THE_CONTENT: Final = frozenset({400, 409, 413, 422})
"""Status codes that may be about a single record, or about their number: the batch is split in half."""
REFUSED_IN_A_ROW: Final = 3
"""If this many single records are refused and none has been accepted, the call fails: the endpoint may be at fault."""
PAUSED_AGAIN_AFTER: Final = 30.0
"""Seconds after which a run checks whether its tenant is still paused."""

_NAMESPACE: Final = uuid.UUID("0d6a1b0a-7b34-5b58-9a43-2f2c8f5c0a7e")

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Url = str | Callable[[str], str]
"""A URL, in which `{tenant}` is replaced by the percent-encoded tenant, or a function of the tenant."""
Secret = Secrets | Callable[[str], Secrets]
"""The signing secret `whsec_...`, or several during a rotation; or a function of the tenant that returns them."""


class Undelivered(ConnectionError):
    """The endpoint is unavailable: there was no connection, no response in time, or an error response."""


class Refused(Exception):
    """The endpoint refused some records of this call and accepted none. It may refuse everything."""


class UnexpectedAnswer(Exception):
    """The endpoint's response cannot be parsed, or names records that were not sent."""


def deliver(
    url: Url,
    secret: Secret,
    *,
    per: Literal["batch", "record"] = "batch",
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    connect_timeout: float = 5.0,
    allow_private: bool = False,
    app: Celery | None = None,
) -> Callable[[Batch], Awaitable[None]]:
    """Return a handler that posts records to an endpoint, with one request per batch or per record.

    The handler is a coroutine function: the requests of a process share one event loop.

    The body is `{"type": pipeline, "tenant": tenant, "data": [{"id", "revision", "deleted", "document"}, ...]}`. It is
    signed as Standard Webhooks. `webhook-id` is the same if the same revisions of the same records are sent again. If
    the program records traces, `traceparent` identifies the current span.

    docs/how-to/deliver-over-http.md describes the effect of each response.

    Args:
        url: an http or https URL, or a function that returns the URL for a tenant. In a URL, `{tenant}` is replaced by
            the percent-encoded tenant.
        secret: `whsec_...` with 24 to 64 bytes. During a rotation, pass several, which all sign. If the URL depends on
            the tenant, pass a function of the tenant. Otherwise the owner of one endpoint could forge requests to
            another.
        per: what one request contains: a batch or a record.
        headers: additional headers of each request.
        timeout: seconds for a whole request; less if the pipeline's soft time limit ends earlier.
        connect_timeout: how many of those seconds may be spent on connecting (name resolution included).
        allow_private: whether to allow addresses that are not public. A name is resolved once per connection, and the
            connection uses the address that was checked.
        app: the Celery app on which TaskBridge is installed; None: the worker's.

    Raises:
        ConfigurationError: a secret, a header or a timeout is not allowed, or endpoints of tenants share a secret.
    """
    if isinstance(url, str) and not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"the delivery URL must begin with http:// or https://, not {url!r}")
    if not (0 < connect_timeout <= timeout):
        raise ConfigurationError("the timeouts of `deliver` must satisfy 0 < connect_timeout <= timeout")
    _check_headers(headers or {})
    if not callable(secret):
        if _is_of_tenants(url):
            raise ConfigurationError(
                "the URL depends on the tenant but the secret does not, so the owner of one endpoint could forge "
                "requests to another: pass `secret` as a function of the tenant"
            )
        _scheme(secret)
    lower = {name.lower(): text for name, text in (headers or {}).items()}
    return _Deliver(url, secret, per == "batch", lower, timeout, connect_timeout, allow_private, app)


def _scheme(secret: Secrets) -> StandardWebhooks:
    scheme = StandardWebhooks(secret)
    scheme.check_for_sending()
    return scheme


def _is_of_tenants(url: Url) -> bool:
    return callable(url) or "{tenant}" in url


@dataclass(repr=False, eq=False)  # the repr would contain the secret
class _Deliver:
    """The handler."""

    url: Url
    secret: Secret
    is_whole: bool
    """Whether a request contains the whole batch."""
    headers: Mapping[str, str]
    timeout: float
    connect_timeout: float
    allow_private: bool
    app: Celery | None
    _pools: dict[asyncio.AbstractEventLoop, httpcore2.AsyncConnectionPool] = field(default_factory=dict, init=False)

    def __call__(self, batch: Batch) -> Awaitable[None]:
        """Return a coroutine that sends the batch. The user's functions are called before, outside of the loop."""
        url = self._url_of(batch.tenant)
        try:
            scheme = _scheme(self.secret(batch.tenant) if callable(self.secret) else self.secret)
        except ConfigurationError as error:
            raise ConfigurationError(f"tenant {batch.tenant!r}: {error}") from None
        return self._send(batch, url, scheme, self.app or getattr(current_task, "app", None))

    async def _send(self, batch: Batch, url: str, scheme: StandardWebhooks, app: Celery | None) -> None:
        left: list[Sequence[Record]] = [batch[:]] if self.is_whole else [[record] for record in batch]
        taken, refused = False, list[tuple[Record, str]]()
        while left and len(refused) < REFUSED_IN_A_ROW:
            records = left.pop(0)
            status, headers, body = await self._post(url, scheme, batch, records)
            if status == 410 and app is not None:
                reason = "its endpoint answered 410 (Gone)"
                await asyncio.to_thread(runtime_of(app).pauses.pause, batch.pipeline, batch.tenant, reason)
            if status not in OF_THE_CONTENT:
                self._judge(batch, records, status, headers, body)
                taken = True
            elif len(records) > 1:
                half = len(records) // 2
                left[:0] = [records[:half], records[half:]]
            else:
                refused.append((records[0], _summary(status, body)))
            # Only reject records once the endpoint is known to accept others.
            while taken and refused:
                batch.reject(*refused.pop())
        if refused:
            raise Refused(f"the endpoint accepted no record, and answered {refused[0][1]}")

    def _url_of(self, tenant: str) -> str:
        if callable(self.url):
            return self.url(tenant)
        return self.url.replace("{tenant}", quote(tenant, safe=""))

    async def _post(
        self, url: str, scheme: StandardWebhooks, batch: Batch, records: Sequence[Record]
    ) -> tuple[int, dict[str, str], bytes]:
        """Send records; return the status, headers and body of the response."""
        if not batch.owned:
            raise Undelivered("not sent: another run has taken over the tenant")
        target = _target(url, batch.tenant)
        data = ", ".join(map(_json_of, records))
        head = json.dumps({"type": batch.pipeline, "tenant": batch.tenant}, ensure_ascii=False)
        body = f'{head[:-1]}, "data": [{data}]}}'.encode()
        keys = "\n".join(one.idempotency_key for one in records)
        message_id = records[0].idempotency_key if len(records) == 1 else str(uuid.uuid5(_NAMESPACE, keys))
        fixed = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "taskbridge"}
        if (span := tracing.header()) is not None:
            fixed["traceparent"] = span
        sent = {**fixed, **self.headers, **scheme.sign(message_id, body, time.time())}
        # Less than what is left, so that this ends before the time limit of the handler.
        seconds = min(self.timeout, 0.95 * batch.seconds_left)
        parts, length = [], 0
        try:
            with anyio.fail_after(seconds):
                async with self._pool.stream(
                    "POST",
                    target,
                    headers=[*sent.items()],
                    content=body,
                    extensions={"timeout": {"connect": self.connect_timeout}},
                ) as answer:
                    async for part in answer.aiter_stream():
                        parts.append(part)
                        length += len(part)
                        if length > LONGEST_ANSWER:
                            break
        except TimeoutError as error:
            raise Undelivered(f"no response from the endpoint: the request took longer than {seconds:.3g} s") from error
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, OSError) as error:
            # An error about one of our headers would quote its value.
            text = "" if isinstance(error, httpcore2.LocalProtocolError) else f": {error}"
            raise Undelivered(
                f"no response from the endpoint: {type(error).__name__}{printable(text)[:LONGEST_REASON]}"
            ) from error
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        if 200 <= answer.status < 300 and (
            length > LONGEST_ANSWER or found.get("content-encoding", "identity") != "identity"
        ):
            raise UnexpectedAnswer(
                f"the response is compressed, or longer than {LONGEST_ANSWER:,} bytes: cannot tell which records were "
                "accepted"
            )
        return answer.status, found, b"".join(parts)[:LONGEST_ANSWER]

    @property
    def _pool(self) -> httpcore2.AsyncConnectionPool:
        """The pool of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = httpcore2.AsyncConnectionPool(
                ssl_context=ssl.create_default_context(),
                # No limit besides the number of threads: an unresponsive endpoint must not block others.
                max_connections=None,
                max_keepalive_connections=20,
                network_backend=Network(allow_private=self.allow_private),
                keepalive_expiry=30.0,
            )
        return self._pools[loop]

    def _judge(
        self, batch: Batch, records: Sequence[Record], status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        """Act on a response."""
        if 200 <= status < 300:
            for record, why in _failures(records, headers, body):
                batch.reject(record, why)
            for record in records:
                if record.external_id not in batch.rejected:
                    batch.handled(record)
        elif status == 429 or (status == 503 and "retry-after" in headers):
            raise RetryAfter(headers.get("retry-after"), "tenant" if _is_of_tenants(self.url) else "pipeline")
        elif status == 410:
            raise RetryAfter(PAUSED_AGAIN_AFTER)
        else:
            raise Undelivered(f"the endpoint answered {_summary(status, body)}")


def _json_of(record: Record) -> str:
    """Return a record as JSON; its document is the text from Postgres, so that numbers keep all digits."""
    named = {"id": record.external_id, "revision": record.revision, "deleted": record.deleted}
    document = record.document_text or json.dumps(dict(record.document), ensure_ascii=False)
    return f'{json.dumps(named, ensure_ascii=False)[:-1]}, "document": {document}}}'


def _target(url: str, tenant: str) -> httpcore2.URL:
    """Return a valid URL.

    Raises:
        Undelivered: it is invalid; the records can be sent once it is corrected. The message does not quote the URL,
            because it may contain a secret.
    """
    try:
        found = httpcore2.URL(url)
    except (TypeError, ValueError):
        found = None
    if found is None or found.scheme not in (b"http", b"https") or not found.host:
        raise Undelivered(
            f"not sent: the URL for tenant {tenant!r} is invalid. It must look like https://name/path, in ASCII "
            "(internationalized names as xn--...), with a port up to 65535 if any"
        )
    parts = found.target.partition(b"?")[0].lower().replace(b"%2e", b".").split(b"/")
    if b"." in parts or b".." in parts:
        raise Undelivered(
            f"not sent: the path of the URL for tenant {tenant!r} contains `.` or `..`, possibly encoded, which leads "
            "to another path. Create the URL by a function that encodes the tenant differently"
        )
    return found


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ConfigurationError(
                f"the header {shown(name)} is invalid: its name must be an HTTP token, and its value printable ASCII"
            )


def _summary(status: int, body: bytes) -> str:
    why = printable(" ".join(body[:LONGEST_REASON].decode(errors="replace").split()))
    return f"{status}: {why}" if why else f"{status}"


def _failures(records: Sequence[Record], headers: Mapping[str, str], body: bytes) -> list[tuple[Record, str]]:
    """Return the records that the endpoint did not accept, and why; none if the response is not a JSON object.

    Raises:
        UnexpectedAnswer: it names a record that was not sent, or without a reason; or it should be JSON but is not.
    """
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        if body.strip() and ("json" in headers.get("content-type", "") or body.lstrip().startswith(b"{")):
            raise UnexpectedAnswer("the response is not valid JSON: cannot tell which records were accepted") from None
        return []
    if not isinstance(answer, dict) or answer.get("failures") is None:
        return []
    sent = {one.external_id: one for one in records}
    found = []
    for one in answer["failures"] if isinstance(answer["failures"], list) else [None]:
        if not isinstance(one, dict) or sent.get(str(one.get("id"))) is None or not str(one.get("error") or "").strip():
            raise UnexpectedAnswer("`failures` in the response is not a list of sent records, each with an error")
        found.append((sent[str(one["id"])], str(one["error"])[:LONGEST_REASON]))
    return found
