"""Access control for the dashboard, and the headers of every response."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskbridge.common.texts import error_line, printable

__all__ = ["Access", "Allow"]

log = logging.getLogger(__name__)

Allow = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the user who sent a request, or None to refuse it."""

LOCAL_USER: Final = "local user"
WRONG_SECONDS: Final = 1.0
"""After how many seconds a wrong password is answered."""
MOST_WRONG: Final = 20
"""How many wrong passwords are delayed at once; more are refused with 429."""
LONGEST_NAME: Final = 100

_PROXIED: Final = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-forwarded")
"""Prefixes of headers that a proxy adds to the requests of others."""
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With `no-referrer`, browsers send forms with the origin `null`, even to the same site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access:
    """Middleware that decides who may use the dashboard, and adds headers. The user's name is in `request.state.user`.

    `allow` decides if it is given, otherwise the password (HTTP Basic). Without either, only programs on this machine
    have access. `hosts` are the accepted values of the header `Host`. If empty, any host is accepted with `allow` or a
    password, but only this machine's names without: otherwise another site could reach the dashboard through a name
    that resolves to this machine.
    """

    def __init__(self, app: ASGIApp, password: str, allow: Allow | None, hosts: Sequence[str]) -> None:
        self._app = app
        self._password = hashlib.sha256(password.encode()).digest() if password else None
        self._allow = allow
        self._hosts = frozenset(host.lower() for host in hosts)
        self._wrong = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Only static files have an ETag.
                headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
            await send(message)

        request = Request(scope, receive)
        answer = await self._user(request)
        if isinstance(answer, Response):
            await answer(scope, receive, send_with_headers)
            return
        scope.setdefault("state", {})["user"] = answer
        await self._app(scope, receive, send_with_headers)

    async def _user(self, request: Request) -> str | Response:
        """Return the name of the user who sent a request, or an error response."""
        if not _is_own_request(request):
            return _refusal(403, "the request comes from another site: open the dashboard directly")
        host = _host_name(request.headers.get("host", ""))
        is_open = self._allow is not None or self._password is not None
        is_usual = not self._hosts if is_open else host == "localhost" or _is_loopback(host)
        if not (is_usual or host in self._hosts):
            return _refusal(403, "unknown host name: use localhost, or add it to `hosts` of `taskbridge.web.dashboard`")
        if self._allow is not None:
            return await self._allowed(self._allow, request)
        if self._password is not None:
            return await self._signed_in(self._password, request)
        if _is_local(request):
            return LOCAL_USER
        return _refusal(
            403,
            "only this machine has access to the dashboard: set TASKBRIDGE_DASHBOARD_PASSWORD, or pass `allow` to "
            "`taskbridge.web.dashboard`",
        )

    async def _allowed(self, allow: Allow, request: Request) -> str | Response:
        try:
            # In a thread, because the function may query a database.
            answer = await asyncio.to_thread(allow, request)
            name = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            log.error("the dashboard's `allow` function failed: %s", printable(error_line(error)))
            return _refusal(503, "access could not be checked: try again")
        if not isinstance(name, str) or not name:
            return _refusal(403, "you have no access to the dashboard: sign in to this application")
        return _short(name)

    async def _signed_in(self, password: bytes, request: Request) -> str | Response:
        name, given = _basic(request.headers.get("authorization", ""))
        if given is not None and hmac.compare_digest(hashlib.sha256(given.encode()).digest(), password):
            return _short(name) or "anonymous"
        if given is not None:
            if self._wrong >= MOST_WRONG:
                return _refusal(429, "too many wrong passwords: try again in a second")
            self._wrong += 1
            try:
                await asyncio.sleep(WRONG_SECONDS)
            finally:
                self._wrong -= 1
        return _refusal(
            401, "the password is missing or wrong", {"WWW-Authenticate": 'Basic realm="TaskBridge", charset="UTF-8"'}
        )


def _is_local(request: Request) -> bool:
    """Whether the request comes from a program on this machine, and not through a proxy on this machine."""
    is_proxied = any(name.startswith(_PROXIED) for name in request.headers)
    return request.client is not None and not is_proxied and _is_loopback(request.client.host)


def _is_own_request(request: Request) -> bool:
    """Whether a request comes from a page of the dashboard. A read-only one may also be typed in or come from a link.

    Browsers report this in `Sec-Fetch-Site`, which they only send over HTTPS and to this machine, and in the `Origin`
    of every form (https://developer.mozilla.org/en-US/docs/Web/HTTP/Guides/Fetch_metadata), so forms need no token.
    """
    only_reads = request.method in ("GET", "HEAD")
    headers = request.headers
    if (site := headers.get("sec-fetch-site")) is not None:
        is_opened = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return site == "same-origin" or (only_reads and (site == "none" or is_opened))
    if (origin := headers.get("origin")) is None:
        return only_reads
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{message}\n", status, headers)


def _short(name: str) -> str:
    return printable(name)[:LONGEST_NAME]


def _basic(header: str) -> tuple[str, str | None]:
    """Return the name and password of HTTP Basic; the password is None if it is missing."""
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode() if scheme.lower() == "basic" else ""
    except ValueError:
        return "", None
    name, colon, password = text.partition(":")
    return name, password if colon else None


def _host_name(header: str) -> str:
    """Return the host in a header `Host`, without the port."""
    if header.startswith("["):
        return header.partition("]")[0].removeprefix("[").lower()
    return header.partition(":")[0].lower()


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
