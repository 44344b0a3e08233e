"""Who may see the dashboard, from where, and with which headers it is answered."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import ipaddress
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from redis import Redis
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskbridge.common.texts import error_line, printable
from taskbridge.errors import Unavailable
from taskbridge.gate import Keys

__all__ = ["TOKEN", "Access", "Allow", "Guard", "is_local", "same_site", "token_for"]

log = logging.getLogger(__name__)

Allow = Callable[[Request], "str | Awaitable[str | None] | None"]
"""Returns the name of the user who sends a request, or None where it is not allowed."""

TOKEN: Final = "token"  # noqa: S105 - the name of a field
LOCAL_USER: Final = "local user"
WRONG_SECONDS: Final = 1.0
"""A wrong password is answered after so many seconds."""
MOST_WRONG: Final = 20
"""Wrong passwords that are waited for at once; more are refused with 429."""
LONGEST_NAME: Final = 100

_PROXIED: Final = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-forwarded")
"""Headers, or their beginnings, by which a proxy says that somebody else sends the request."""
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind} 'self'" for kind in ("script-src", "style-src", "img-src", "connect-src", "form-action")),
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access:
    """Who may see the dashboard.

    With `allow` that function decides, with a password whoever shows it by HTTP Basic, else only programs of this
    machine. `hosts` are the names in the header `Host` that are taken; without any, all are, but where only this
    machine may see it: there a page of another site could get at it by a name that leads here.
    """

    def __init__(self, password: str, allow: Allow | None, hosts: Sequence[str]) -> None:
        self._password = hashlib.sha256(password.encode()).digest() if password else None
        self._allow = allow
        self._hosts = frozenset(one.lower() for one in hosts)
        self._wrong = 0

    async def user(self, request: Request) -> str | Response:
        """Return the name of who sends a request, or the refusal."""
        is_open = self._allow is not None or self._password is not None
        host = _host_name(request.headers.get("host", ""))
        if not (host in self._hosts or (not is_open and _is_loopback_name(host)) or (is_open and not self._hosts)):
            return _refusal(
                403, "this host name is not known: use localhost, or name it in `hosts` of `taskbridge.web.dashboard`"
            )
        if self._allow is not None:
            return await self._allowed(self._allow, request)
        if self._password is not None:
            return await self._signed_in(self._password, request)
        if is_local(request.scope):
            return LOCAL_USER
        return _refusal(
            403,
            "only this machine may see the dashboard: set TASKBRIDGE_DASHBOARD_PASSWORD, or give `allow` to "
            "`taskbridge.web.dashboard`",
        )

    async def _allowed(self, allow: Allow, request: Request) -> str | Response:
        try:
            # The check may ask a database.
            answer = await asyncio.to_thread(allow, request)
            name = await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            log.error("the check of who may see the dashboard failed: %s", printable(error_line(error)))
            return _refusal(503, "it cannot be told now who may see the dashboard: come again")
        if not isinstance(name, str) or not name:
            return _refusal(403, "you may not see the dashboard: sign in where this application lets you")
        return _short(name)

    async def _signed_in(self, password: bytes, request: Request) -> str | Response:
        name, shown = _basic(request.headers.get("authorization", ""))
        if shown is not None and hmac.compare_digest(hashlib.sha256(shown.encode()).digest(), password):
            return _short(name) or "no name"
        if shown is not None:
            if self._wrong >= MOST_WRONG:
                return _refusal(429, "too many wrong passwords: come again in a second")
            self._wrong += 1
            try:
                await asyncio.sleep(WRONG_SECONDS)
            finally:
                self._wrong -= 1
        asking = {"WWW-Authenticate": 'Basic realm="TaskBridge", charset="UTF-8"'}
        return PlainTextResponse("the password is missing or wrong\n", 401, asking)


class Guard:
    """What stands before every page: it lets nobody in whom `Access` does not name, and adds the headers.

    The user's name is in `request.state.user`.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        if not same_site(request):
            answer: Response | str = _refusal(403, "the request comes from another site: open the dashboard itself")
        else:
            answer = await self._access.user(request)
        if isinstance(answer, Response):
            await answer(scope, receive, send_with_headers)
            return
        scope.setdefault("state", {})["user"] = answer
        await self._app(scope, receive, send_with_headers)


def is_local(scope: Scope) -> bool:
    """Whether a program of this machine sends the request itself.

    A proxy on this machine sends those of others, and says so in a header.
    """
    client = scope.get("client")
    if not client or any(name.decode("latin-1").lower().startswith(_PROXIED) for name, _ in scope["headers"]):
        return False
    return _is_loopback(client[0])


def same_site(request: Request) -> bool:
    """Whether a request may come from where it says: from a page of the dashboard, or from no page.

    A link of another site may lead to a page, but nothing there may fetch or send anything.
    """
    reads = request.method in ("GET", "HEAD")
    site = request.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        opened = request.headers.get("sec-fetch-mode") == "navigate" and (
            request.headers.get("sec-fetch-dest", "document") == "document"
        )
        return reads and (site == "none" or opened)
    origin = request.headers.get("origin")
    # A form's origin is `null` because no referrer is sent. Its token says then whose it is.
    if origin is None or (origin == "null" and not reads):
        return True
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    except ValueError:
        return False


def token_for(user: str, redis: Redis, keys: Keys) -> str:
    """Return the token that forms of a user carry.

    Only who has seen a page as this user can know it. A token that lies in a cookie could be chosen by the page of
    another name of the same domain. All processes that serve the dashboard share the secret in Redis.

    Raises:
        Unavailable: Redis does not keep the secret.
    """
    secret = redis.get(keys.dashboard)
    if secret is None:
        redis.set(keys.dashboard, secrets.token_hex(32), nx=True)
        secret = redis.get(keys.dashboard)
    if not secret:
        raise Unavailable("Redis lost the secret of the forms at once", "see whether its memory is full, and try again")
    return hmac.new(str(secret).encode(), user.encode(), hashlib.sha256).hexdigest()


def _refusal(status: int, said: str) -> Response:
    return PlainTextResponse(f"{said}\n", status)


def _short(name: str) -> str:
    return printable(name)[:LONGEST_NAME]


def _basic(header: str) -> tuple[str, str | None]:
    """Return name and password of HTTP Basic; (…, None): there is none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return "", None
    name, colon, password = text.partition(":")
    return name, password if colon else None


def _host_name(header: str) -> str:
    """Return the name of a header `Host` without its port."""
    if header.startswith("["):
        return header.partition("]")[0].removeprefix("[").lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


def _is_loopback_name(name: str) -> bool:
    return name == "localhost" or _is_loopback(name)


def _is_loopback(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
