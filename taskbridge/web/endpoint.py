"""The base of our endpoints: body limits, error responses, and log lines about them."""

from __future__ import annotations

import asyncio
import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import Lifespan, Receive, Scope, Send

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.texts import counted, error_line, printable
from taskbridge.errors import TaskBridgeError, UsageError
from taskbridge.web.storing import Storage

__all__ = ["LONGEST_BODY", "Endpoint", "Refusal", "Storages", "mountable", "own_app", "unavailable"]

log = logging.getLogger(__name__)

LONGEST_BODY: Final = 1_048_576
LONG_BODY: Final = 65_536
"""Longer bodies are decoded in a thread, so that other requests do not wait."""
BODY_SECONDS: Final = 30.0
"""The time limit for receiving a body."""
MOST_HELD: Final = 128 * 1_048_576
"""If an endpoint holds this many bytes of bodies, it accepts no further long ones."""

B = TypeVar("B")


class Storages:
    """The storage of each event loop in which an app runs, created by the first request."""

    def __init__(self, app: Celery | None) -> None:
        self._app = app
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Storage] = WeakKeyDictionary()

    @property
    def app(self) -> Celery:
        """The Celery app on which TaskBridge is installed."""
        return self._app or own_app()

    @property
    def current(self) -> Storage:
        """The storage of the running event loop."""
        loop = asyncio.get_running_loop()
        if (storage := self._of_loop.get(loop)) is None:
            storage = self._of_loop[loop] = Storage(self.app)
        return storage

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Open a session before the first request, and complete unfinished work at shutdown."""
        with suppress(Exception):  # each request reports it, such as a wrong Redis URL
            await self.current.open()
        # A full collection of all that the imports have left would stop the event loop for about 100 ms.
        gc.collect()
        gc.freeze()
        yield
        if storage := self._of_loop.pop(asyncio.get_running_loop(), None):
            await storage.close()


def own_app() -> Celery:
    """Return the package's own Celery app."""
    from taskbridge import app  # noqa: PLC0415 - it reads the environment

    return app


class Refusal(Exception):
    """An error response: the sender gets `error`, and the log gets `why`; `index` is the invalid entry of an array."""

    def __init__(
        self,
        status: int,
        error: str,
        headers: Mapping[str, str] | None = None,
        *,
        why: str = "",
        index: int | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.headers = dict(headers or {})
        self.why = why or error
        self.content = {"error": error} if index is None else {"error": error, "index": index}


class _Answer(JSONResponse):
    """A response to a request whose body may not have been received completely."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless the server itself has already responded."""
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            # uvicorn responds to an invalid body itself, and raises if we respond, too.
            log.debug("a response with status %d was not sent: %s", self.status_code, error_line(error))
            await asyncio.sleep(0)


def unavailable(error: str, why: str = "") -> Refusal:
    """Return a response that asks the sender to try again."""
    return Refusal(503, error, {"Retry-After": "1"}, why=why)


class Endpoint(ABC, Generic[B]):
    """An ASGI app for one path. `B` is the parsed content of a request.

    Args:
        route: the path, for the log.
        longest_body: the maximum size of a body in bytes.
        storages: stores the content of requests.
    """

    def __init__(self, route: str, longest_body: int, storages: Storages) -> None:
        self._route = route
        self._longest = longest_body
        self._storages = storages
        self._held = 0
        """The total size of the bodies of current requests."""
        self._refused = LogThrottle()
        """Error responses, by status."""
        self._failures = LogThrottle()
        """Errors that are not the sender's fault, by class."""

    async def begin(self, headers: dict[str, str]) -> None:
        """Raise an error to refuse a request without reading its body."""

    @abstractmethod
    def read(self, headers: dict[str, str], body: bytes) -> B | Response:
        """Return the content of a request, or a response if there is nothing to store. May run in a thread."""

    @abstractmethod
    async def store(self, brought: B) -> Response:
        """Store the content of a request, and return the response."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. A plain ASGI app is faster than a Starlette endpoint."""
        # The first of several headers with the same name counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        is_read = False
        try:
            await self.begin(headers)
            async with self._body(Request(scope, receive)) as body:
                is_read = True
                is_long = len(body) > LONG_BODY
                read = await asyncio.to_thread(self.read, headers, body) if is_long else self.read(headers, body)
                answer = read if isinstance(read, Response) else await self.store(read)
        except Exception as error:
            refusal = self._refusal(error)
            if not is_read and scope["http_version"] < "2":
                refusal.headers["Connection"] = "close"
            answer = _Answer(refusal.content, refusal.status, refusal.headers)
        await answer(scope, receive, send)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """Receive a body, which counts towards `MOST_HELD` until the end of the block."""
        parts, length = list[bytes](), 0
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for part in request.stream():
                        parts.append(part)
                        length += len(part)
                        self._held += len(part)
                        self._check(length)
            except TimeoutError:
                raise Refusal(408, f"the body was not received within {BODY_SECONDS:g} s") from None
            yield b"".join(parts)
        finally:
            self._held -= length

    def _check(self, length: int) -> None:
        if length > self._longest:
            raise Refusal(413, f"the body is longer than {self._longest:,} bytes")
        # Long and slow bodies must not keep out short ones.
        if length > LONG_BODY and self._held > MOST_HELD:
            raise unavailable("too many requests: try again in a second")

    def _refusal(self, error: Exception) -> Refusal:
        """Return the response for an error, and log it."""
        match error:
            case Refusal():
                refusal = error
            case UsageError():
                refusal = Refusal(400, str(error))
            case ClientDisconnect():
                refusal = Refusal(400, "the sender disconnected")
            case _:
                if not isinstance(error, TaskBridgeError) and (count := self._failures.counted(type(error))):
                    text = "%s to %s failed with this error, the last"
                    log.error(text, counted(count, "request"), self._route, exc_info=error)
                refusal = unavailable("the request cannot be accepted now: try again", error_line(error))
        if count := self._refused.counted(refusal.status):
            text = "%s to %s answered with %d, the last: %s"
            log.warning(text, counted(count, "request"), self._route, refusal.status, printable(refusal.why))
        return refusal


def mountable(routes: Sequence[BaseRoute], lifespan: Lifespan[Starlette]) -> Starlette:
    """Return an ASGI app with these routes, which can be mounted under any path."""
    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _not_found})
    # A redirect would go to the host that the request names.
    made.router.redirect_slashes = False
    return made


async def _not_found(_: Request, error: Exception) -> Response:
    """Handle a request for another path or method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type
    return _Answer({"error": error.detail}, error.status_code, error.headers)
