"""The webhook receiver, an ASGI app that responds with 2xx only once the record is durable."""

from __future__ import annotations

import time
from typing import Final

from celery import Celery
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from taskbridge.common import tracing
from taskbridge.common.texts import error_line
from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.store import Incoming
from taskbridge.web.endpoint import LONGEST_BODY, Endpoint, Refusal, Storages, mountable
from taskbridge.web.signatures import InvalidSignature
from taskbridge.web.webhook import VALUE_ERRORS, Request, Unfit, Webhook, check_distinct, parsed

__all__ = ["receiver"]

NEW: Final = JSONResponse({"new": True})
NOT_NEW: Final = JSONResponse({"new": False})


def receiver(*webhooks: Webhook, app: Celery | None = None, longest_body: int = LONGEST_BODY) -> Starlette:
    """Return an ASGI app that receives these webhooks. You can mount it under any path.

    docs/reference/webhooks.md lists the responses. Events are sent to Redis after the response. If Redis is
    unavailable, workers still find the record.

    Args:
        webhooks: the webhooks, each with its own path.
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        longest_body: the maximum size of a body in bytes.

    Raises:
        ConfigurationError: two webhooks have the same path.
    """
    check_distinct(webhooks)
    storages = Storages(app)
    routes = [Route(one.route, _OfWebhook(one, longest_body, storages), methods=["POST"]) for one in webhooks]
    made = mountable(routes, storages.lifespan)
    # For tests and tools that sign requests.
    made.state.webhooks = webhooks
    return made


class _OfWebhook(Endpoint[Incoming | Unfit]):
    """The endpoint of a webhook."""

    def __init__(self, webhook: Webhook, longest_body: int, storages: Storages) -> None:
        super().__init__(webhook.route, longest_body, storages)
        self._webhook = webhook

    def read(self, headers: dict[str, str], body: bytes) -> Incoming | Unfit | Response:
        """See `Endpoint`."""
        try:
            self._webhook.signature.verify(headers, body, time.time())
        except InvalidSignature as error:
            raise Refusal(401, str(error)) from None
        except VALUE_ERRORS as error:
            # Raised by a user's function. Its text may quote the request, so it is only logged.
            raise Refusal(401, "the request could not be verified", why=error_line(error)) from None
        payload = parsed(body)
        if (answer := self._webhook.signature.challenge(payload)) is not None:
            return PlainTextResponse(answer.encode(errors="replace"))
        brought = self._webhook.read(Request(headers, body, payload))
        if isinstance(brought, Incoming):
            return brought._replace(traceparent=tracing.of_request(headers.get("traceparent")))
        return JSONResponse({"ignored": True}) if brought is None else brought

    async def store(self, brought: Incoming | Unfit) -> Response:
        """See `Endpoint`."""
        if isinstance(brought, Unfit):
            await self._storages.current.keep(brought)
            return JSONResponse({"unmatched": brought.reason})
        try:
            is_new = await self._storages.current.receive(brought)
        except InvalidInput as error:
            if str(error).startswith(f"the source {brought.source} "):
                # The source is wrong, for example an adopted table, and the sender cannot change that.
                raise Unavailable(str(error)) from None
            raise
        return NEW if is_new else NOT_NEW
