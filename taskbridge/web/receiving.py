"""The receiver of webhooks, an ASGI app: a request is answered with 2xx once its record is durable, and not before."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

from celery import Celery
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from taskbridge.common import tracing
from taskbridge.common.texts import error_line, printable
from taskbridge.errors import TaskBridgeError, UsageError
from taskbridge.store import Incoming
from taskbridge.web.committing import GroupCommit, Overloaded
from taskbridge.web.signatures import InvalidSignature
from taskbridge.web.webhook import OF_THE_VALUES, Request, Unfit, Webhook, check_distinct, parsed

__all__ = ["LONGEST_BODY", "receiver"]

log = logging.getLogger(__name__)

LONGEST_BODY: Final = 1_048_576
LONG_BODY: Final = 65_536
"""Bytes from which on a body is read in a thread: other requests would wait for it."""
BODY_WITHIN: Final = 30.0
"""Seconds in which a body must have come."""
MOST_HELD: Final = 128 * 1_048_576
"""Bytes of bodies, for each webhook, that may be on their way at once; who sends more is told to come again."""
COME_AGAIN: Final = {"Retry-After": "1"}
NOTED_EVERY: Final = 60.0
"""Seconds between two lines in the log about refusals of a webhook with one status."""
FORM: Final = "application/x-www-form-urlencoded"


def receiver(*webhooks: Webhook, app: Celery | None = None, longest_body: int = LONGEST_BODY) -> Starlette:
    """Return an ASGI app that takes these webhooks; it can be mounted under any path.

    What it answers when is in docs/how-to/receive-webhooks.md.

    Redis is told after the answer. Where it is away, workers find the record all the same.

    Args:
        webhooks: what is taken, each at a path of its own.
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        longest_body: bytes of a body; a longer one is refused while it comes.

    Raises:
        ConfigurationError: two webhooks have one path.
    """
    check_distinct(webhooks)
    commits = _Commits(app)
    routes = [Route(one.route, _Endpoint(one, commits, longest_body).receive, methods=["POST"]) for one in webhooks]
    made = Starlette(routes=routes, lifespan=commits.lifespan)
    # A redirection would lead to the host that the request names.
    made.router.redirect_slashes = False
    # For `taskbridge webhook`, which signs as they say.
    made.state.webhooks = webhooks
    return made


class _Commits:
    """The group commit of each event loop in which the app runs; made when the first request comes."""

    def __init__(self, app: Celery | None) -> None:
        self._app = app
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, GroupCommit] = WeakKeyDictionary()

    @property
    def here(self) -> GroupCommit:
        loop = asyncio.get_running_loop()
        if (found := self._of_loop.get(loop)) is None:
            found = self._of_loop[loop] = GroupCommit(self._app or _own_app())
        return found

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        if found := self._of_loop.pop(asyncio.get_running_loop(), None):
            await found.close()


def _own_app() -> Celery:
    from taskbridge import app  # noqa: PLC0415 - it reads the environment

    return app


class _Endpoint:
    """What takes the requests of one webhook."""

    def __init__(self, webhook: Webhook, commits: _Commits, longest_body: int) -> None:
        self._webhook = webhook
        self._commits = commits
        self._longest = longest_body
        self._held = 0
        """Bytes of the bodies that are being received or read, of each what is beyond `LONG_BODY`."""
        self._refused: dict[int, tuple[int, float]] = {}
        """By status: refusals since the last line in the log, and when (`time.monotonic`) the next one may come."""

    async def receive(self, request: HttpRequest) -> Response:
        """Answer a request."""
        answer = await self._answered(request)
        if isinstance(answer, _Refusal):
            count, silent_until = self._refused.get(answer.status_code, (0, 0.0))
            count, now = count + 1, time.monotonic()
            if now >= silent_until:
                route, why = self._webhook.route, printable(answer.why)
                log.warning("requests to %s answered with %d: %d, the last: %s", route, answer.status_code, count, why)
                count, silent_until = 0, now + NOTED_EVERY
            self._refused[answer.status_code] = count, silent_until
        return answer

    async def _answered(self, request: HttpRequest) -> Response:
        parts: list[bytes] = []
        # Where the body is not read to its end.
        closing = {"Connection": "close"} if request.scope["http_version"] < "2" else {}
        try:
            async with asyncio.timeout(BODY_WITHIN):
                if not await self._has_taken(request, parts):
                    return _Refusal(413, f"the body is longer than {self._longest:,} bytes", closing)
            body = b"".join(parts)
            arguments = self._webhook, dict(request.headers), body
            read = await asyncio.to_thread(_read, *arguments) if len(body) > LONG_BODY else _read(*arguments)
            if isinstance(read, Incoming):
                read = read._replace(traceparent=tracing.of_request(request.headers.get("traceparent")))
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            return _Refusal(408, f"the body did not come within {BODY_WITHIN:g} s", closing)
        except Overloaded as error:
            return _Refusal(503, str(error), COME_AGAIN | closing)
        finally:
            self._held -= max(0, sum(map(len, parts)) - LONG_BODY)
        return read if isinstance(read, Response) else await _done(self._commits, read)

    async def _has_taken(self, request: HttpRequest, parts: list[bytes]) -> bool:
        """Receive the body in parts; return whether it is short enough."""
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and (len(declared) > 15 or int(declared) > self._longest):
            return False
        length = 0
        async for part in request.stream():
            parts.append(part)
            self._held += max(0, length + len(part) - LONG_BODY) - max(0, length - LONG_BODY)
            length += len(part)
            if length > self._longest:
                return False
            # Who sends large bodies slowly must not keep out those that are short.
            if length > LONG_BODY and self._held > MOST_HELD:
                raise Overloaded("more requests came than can be read: come again in a second")
        return True


def _read(webhook: Webhook, headers: dict[str, str], body: bytes) -> Incoming | Unfit | Response:
    """Return what a request brings, or the answer where it brings nothing that is to be stored."""
    try:
        webhook.signature.verify(headers, body, time.time())
        payload = parsed(body)
        if (answer := webhook.signature.challenge(payload)) is not None:
            return PlainTextResponse(answer.encode(errors="replace"))
        brought = webhook.read(Request(headers, body, payload))
        return JSONResponse({"ignored": True}) if brought is None else brought
    except InvalidSignature as error:
        return _Refusal(401, str(error))
    except UsageError as error:
        is_form = headers.get("content-type", "").startswith(FORM)
        return _Refusal(400, "the body is a form: choose application/json at the provider" if is_form else str(error))
    except OF_THE_VALUES as error:
        # Of a function that checks who sent it. Its text may quote the request, so the log alone has it.
        return _Refusal(401, "it cannot be told who sent the request", why=error_line(error))
    except Exception as error:
        return _failed(error)


async def _done(commits: _Commits, brought: Incoming | Unfit) -> Response:
    """Store what a request brings, and answer."""
    try:
        if isinstance(brought, Unfit):
            await commits.here.keep(brought)
            return JSONResponse({"unmatched": brought.reason})
        return JSONResponse({"new": await commits.here.store(brought)})
    except UsageError as error:
        return _Refusal(400, str(error))
    except Overloaded as error:
        return _Refusal(503, str(error), COME_AGAIN)
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Response:
    """Answer after a fault that is not the sender's."""
    if not isinstance(error, TaskBridgeError):
        log.error("a request failed", exc_info=error)
    return _Refusal(503, "the request is not taken now: come again", COME_AGAIN, why=error_line(error))


class _Refusal(JSONResponse):
    """An answer that is no 2xx: the sender is told `said`, and the log has `why`."""

    def __init__(self, status: int, said: str, headers: dict[str, str] | None = None, *, why: str = "") -> None:
        super().__init__({"error": said}, status, headers)
        self.why = why or said
