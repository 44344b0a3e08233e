"""What serves the requests of one path: their bodies, limits, refusals, and the log lines about refusals."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from celery import Celery
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import Lifespan, Receive, Scope, Send

from taskbridge.common.seldom import Seldom
from taskbridge.common.texts import error_line, printable
from taskbridge.errors import TaskBridgeError, UsageError
from taskbridge.web.storing import Storage

__all__ = ["LONGEST_BODY", "SEND_AGAIN", "Endpoint", "Refusal", "Storages", "mountable", "own_app"]

log = logging.getLogger(__name__)

LONGEST_BODY: Final = 1_048_576
LONG_BODY: Final = 65_536
"""Bytes from which on a body is read in a thread: other requests would wait for it."""
BODY_WITHIN: Final = 30.0
"""Seconds in which a body must have come."""
MOST_HELD: Final = 128 * 1_048_576
"""Bytes of long bodies, for each path, that may be received or not yet answered at once."""
SEND_AGAIN: Final = {"Retry-After": "1"}

B = TypeVar("B")


class Storages:
    """The storage of each event loop in which an app runs; made when the first request comes."""

    def __init__(self, app: Celery | None) -> None:
        self._app = app
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Storage] = WeakKeyDictionary()

    @property
    def app(self) -> Celery:
        """The Celery app on which TaskBridge is installed."""
        return self._app or own_app()

    @property
    def here(self) -> Storage:
        """The storage of the running event loop."""
        loop = asyncio.get_running_loop()
        if (storage := self._of_loop.get(loop)) is None:
            storage = self._of_loop[loop] = Storage(self.app)
        return storage

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Open a session before the first request comes, and wait at the end for what was begun."""
        with suppress(Exception):  # as where Redis' URL is wrong: each request reports it
            await self.here.open()
        yield
        if storage := self._of_loop.pop(asyncio.get_running_loop(), None):
            await storage.close()


def own_app() -> Celery:
    """Return the package's own app."""
    from taskbridge import app  # noqa: PLC0415 - it reads the environment

    return app


class Refusal(JSONResponse):
    """An answer that is no 2xx: the sender gets `error`, and the log `why`.

    `index` says which entry of an array is meant.
    """

    def __init__(
        self,
        status: int,
        error: str,
        headers: dict[str, str] | None = None,
        *,
        why: str = "",
        index: int | None = None,
    ) -> None:
        content = {"error": error} if index is None else {"error": error, "index": index}
        super().__init__(content, status, headers)
        self.why = why or error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless the server has answered by itself."""
        try:
            await super().__call__(scope, receive, send)
        except Exception as error:
            # uvicorn answers a body that is framed wrongly, and raises if an answer comes before its next turn.
            log.debug("an answer with %d is not sent: %s", self.status_code, error_line(error))
            await asyncio.sleep(0)


class _NotRead(Exception):
    """The body is not read to its end; the argument is the answer."""


class Endpoint(ABC, Generic[B]):
    """What serves the requests of one path. `B` is what a request brings.

    Args:
        route: the path, for the log.
        longest_body: bytes of a body; a longer one is refused while it comes.
        storages: where what a request brings is stored.
    """

    def __init__(self, route: str, longest_body: int, storages: Storages) -> None:
        self._route = route
        self._longest = longest_body
        self._storages = storages
        self._held = 0
        """Bytes of the bodies that are received or not yet answered, of each what is beyond `LONG_BODY`."""
        self._refused = Seldom()
        """Refusals, by status."""
        self._failures = Seldom()
        """Faults that are not the sender's, by class."""

    async def begin(self, headers: dict[str, str]) -> Response | None:  # noqa: ARG002 - for those that look at them
        """Return the answer to a request whose body is not to be read; None: it is."""
        return None

    @abstractmethod
    def read(self, headers: dict[str, str], body: bytes) -> B | Response:
        """Return what a request brings, or the answer if that is nothing; a thread may call it."""

    @abstractmethod
    async def store(self, brought: B) -> Response:
        """Store what a request brings, and answer."""

    def refused(self, error: Exception, headers: dict[str, str]) -> Response:  # noqa: ARG002 - for those that look
        """Return the answer after an error: one of the sender's has its text, any other asks to send again."""
        return Refusal(400, str(error)) if isinstance(error, UsageError) else self.failed(error)

    def failed(self, error: Exception) -> Response:
        """Return the answer after a fault that is not the sender's."""
        if not isinstance(error, TaskBridgeError) and (count := self._failures.counted(type(error))):
            log.error("requests to %s that failed with this error: %d, the last", self._route, count, exc_info=error)
        return Refusal(503, "the request is not taken now: come again", SEND_AGAIN, why=error_line(error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI app; a function of Starlette's would cost more for each."""
        # Of a header that is there twice the first one counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        parts: list[bytes] = []
        try:
            answer = await self._answer(headers, receive, parts)
        except _NotRead as error:
            (answer,) = error.args
            if scope["http_version"] < "2":
                answer.headers["Connection"] = "close"
        except Exception as error:
            answer = self.refused(error, headers)
        finally:
            self._held -= max(0, sum(map(len, parts)) - LONG_BODY)
        if isinstance(answer, Refusal) and (count := self._refused.counted(answer.status_code)):
            why = printable(answer.why)
            log.warning(
                "requests to %s answered with %d: %d, the last: %s", self._route, answer.status_code, count, why
            )
        await answer(scope, receive, send)

    async def _answer(self, headers: dict[str, str], receive: Receive, parts: list[bytes]) -> Response:
        if (answer := await self.begin(headers)) is not None:
            raise _NotRead(answer)
        try:
            async with asyncio.timeout(BODY_WITHIN):
                await self._receive_body(headers, receive, parts)
        except TimeoutError:
            raise _NotRead(Refusal(408, f"the body did not come within {BODY_WITHIN:g} s")) from None
        body = b"".join(parts)
        read = await asyncio.to_thread(self.read, headers, body) if len(body) > LONG_BODY else self.read(headers, body)
        return read if isinstance(read, Response) else await self.store(read)

    def _too_long(self) -> _NotRead:
        return _NotRead(Refusal(413, f"the body is longer than {self._longest:,} bytes"))

    async def _receive_body(self, headers: dict[str, str], receive: Receive, parts: list[bytes]) -> None:
        """Receive the body in parts.

        Raises:
            _NotRead: it is too long, its sender has gone, or too many bytes are held.
        """
        declared = headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > self._longest):
            raise self._too_long()
        length, is_all = 0, False
        while not is_all:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _NotRead(Response(status_code=400))
            part, is_all = message.get("body", b""), not message.get("more_body", False)
            parts.append(part)
            self._held += max(0, length + len(part) - LONG_BODY) - max(0, length - LONG_BODY)
            length += len(part)
            if length > self._longest:
                raise self._too_long()
            # Who sends large bodies slowly must not keep out those that are short.
            if length > LONG_BODY and self._held > MOST_HELD:
                raise _NotRead(Refusal(503, "more requests came than can be read: come again in a second", SEND_AGAIN))


def mountable(routes: Sequence[BaseRoute], lifespan: Lifespan[Starlette]) -> Starlette:
    """Return an ASGI app with these routes; it can be mounted under any path."""
    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused})
    # A redirection would lead to the host that the request names.
    made.router.redirect_slashes = False
    return made


async def _refused(_: Request, error: Exception) -> Response:
    """Answer a request of another path or method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - for the type
    return Refusal(error.status_code, error.detail, dict(error.headers or {}))
