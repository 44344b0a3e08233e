"""The dashboard as an ASGI app."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

from celery import Celery
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import ConfigurationError, TaskBridgeError, Unavailable, UnknownPipeline, UsageError
from taskbridge.settings import Settings, check_password
from taskbridge.web.pages.access import TOKEN, Access, Allow, Guard, token_for
from taskbridge.web.pages.acting import ACTIONS, SAID, Asked, Did, act
from taskbridge.web.pages.live import LOOK_SECONDS, STREAM_SECONDS, Live, Subject
from taskbridge.web.pages.reading import NotFound, Reading, Values
from taskbridge.web.pages.showing import FILES, Showing, number

__all__ = ["dashboard"]

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS: Final = 4
MOST_WAITING: Final = 64
"""Pages and actions under way at once; more are told to come again."""
LONGEST_FORM: Final = 65_536
MOST_FIELDS: Final = 20
FORM_WITHIN: Final = 10.0
PAGE_SECONDS: Final = 20.0
"""Who asks for a page is told to come again after so long: each look is bounded, and may wait for others."""
TOLD: Final = "taskbridge_told"
"""The cookie about what was done before the page."""
TOLD_SECONDS: Final = 60
A_DAY: Final = {"Cache-Control": "private, max-age=86400, immutable"}

PAGES: Final = {
    "": ("Now", "now"),
    "tenants": ("Tenants", "tenants"),
    "record": ("Record", "record"),
    "failing": ("Failing", "failing"),
    "runs": ("Runs", "runs"),
}
"""The pages of the navigation: path, title, and the name of the template and of what reads it."""
OTHERS: Final = {"tenant": ("Tenant", "tenant")}


class Busy(Exception):
    """Too many pages are asked for at once."""


class Slow(Exception):
    """A page did not come in time."""


def dashboard(
    app: Celery | None = None,
    *,
    password: str | None = None,
    allow: Allow | None = None,
    actions: bool = False,
    show_documents: bool = False,
    hosts: Sequence[str] = (),
) -> Starlette:
    """Return the dashboard, an ASGI app that can be mounted under any path.

    Without a password and without `allow` only programs of this machine may see it.

    Args:
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        password: what is asked for by HTTP Basic, with any user name; None: TASKBRIDGE_DASHBOARD_PASSWORD.
        allow: your own check instead: it is given each request, and returns the user's name, or None where the user may
            not see the dashboard. It may be a coroutine; else a thread calls it.
        actions: whether people may pause, resume, notify, retry and discard.
        show_documents: whether the page of a record has its document.
        hosts: the host names under which it is reached; none: any, but without password and `allow` only those of
            this machine.

    Raises:
        ConfigurationError: the password is too short.
    """
    word = Settings.read().dashboard_password if password is None else password
    if password is not None:
        check_password(password)
    if isinstance(hosts, str):
        raise ConfigurationError("`hosts` is one text: give a list of host names")
    site = _Site(Reading(app, show_documents=show_documents), actions=actions)
    pages = {**PAGES, **OTHERS}
    made = Starlette(
        routes=[
            *(Route(f"/{path}", site.page(path), methods=["GET"]) for path in pages),
            Route("/live", site.live, methods=["GET"]),
            Route("/static/{name}", _file, methods=["GET"]),
            Route("/do/{action}", site.act, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, access=Access(word, allow, hosts))],
        exception_handlers={HTTPException: site.not_there},
    )
    # A redirection would lead to the host that the request names.
    made.router.redirect_slashes = False
    made.state.site = site
    return made


class _Site:
    """The pages of one dashboard."""

    def __init__(self, reading: Reading, *, actions: bool) -> None:
        self._reading = reading
        self._actions = actions
        self._showing = Showing()
        self._threads = ThreadPoolExecutor(THREADS, "taskbridge-dashboard")
        self._under_way = 0
        self._live: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Live]] = WeakKeyDictionary()
        """By event loop and by the path under which the dashboard is mounted: links of a look have it."""

    def page(self, path: str) -> Callable[[Request], Any]:
        """Return what answers a page's requests."""
        title, name = {**PAGES, **OTHERS}[path]
        values: Callable[[QueryParams], Values] = getattr(self._reading, name)

        async def answer(request: Request) -> Response:
            asked = request.query_params
            told = request.cookies.get(TOLD)

            def make() -> str:
                shown = self._reading.ask(values, asked)
                shown |= {"title": title, "here": path, "asked": asked, "said": None, "warned": None, TOKEN: ""}
                if self._actions and shown["health"] is not None:
                    try:
                        shown[TOKEN] = token = self._token(request)
                        shown["said"] = _said(told, token) if told else None
                    except Unavailable as error:
                        # What is shown is as true without the forms.
                        shown["warned"] = f"Nothing can be done here now: {error}"
                return self._shown(f"{name}.html", request, shown)

            try:
                response = HTMLResponse(await self._in_thread(make, PAGE_SECONDS))
            except Exception as error:
                return await self._failed(request, error)
            if told is not None:
                # Said once.
                response.delete_cookie(TOLD, _root(request) or "/")
            return response

        return answer

    def _token(self, request: Request) -> str:
        runtime = self._reading.runtime
        with translated_errors():
            return token_for(str(request.state.user), runtime.redis, runtime.keys)

    async def live(self, request: Request) -> Response:
        """Send what changes on an open page: the first one, or a tenant's."""
        asked = request.query_params
        subject: Subject = (asked["pipeline"], asked["tenant"]) if {"pipeline", "tenant"} <= asked.keys() else None
        root = _root(request)
        loop = asyncio.get_running_loop()
        of_loop = self._live.setdefault(loop, {})
        live = of_loop.get(root)
        if live is None:
            live = of_loop[root] = Live(lambda one: self._in_thread(lambda: self._look(one, root)))
        try:
            if subject is not None:
                await self._in_thread(lambda: self._reading.check(*subject))
        except Exception as error:
            return _plain(error)
        if not live.has_room(subject):
            return PlainTextResponse("too many pages are open: this one does not change by itself\n", 503)
        headers = {"X-Accel-Buffering": "no"}
        return _Bounded(live.stream(subject), media_type="text/event-stream", headers=headers)

    def end(self) -> None:
        """End the streams of the event loop which runs."""
        for live in self._live.get(asyncio.get_running_loop(), {}).values():
            live.end()

    async def act(self, request: Request) -> Response:
        """Do something, and lead back to the page."""
        action = request.path_params["action"]
        try:
            if action not in ACTIONS:
                raise NotFound("there is no such action")
            if not self._actions:
                raise _Refused(
                    "actions are off: start `taskbridge dashboard --allow-actions`, or give `actions=True` to "
                    "`taskbridge.web.dashboard`"
                )
            form = await _form(request)
            token = await self._in_thread(lambda: self._token(request))
            if not hmac.compare_digest(token.encode(), form.get(TOKEN, "").encode()):
                raise _Refused("the form's token is missing or old: open the page again, and try once more")
            asked, user = Asked.read(form), str(request.state.user)
            did = await self._in_thread(lambda: act(self._reading.runtime, action, asked, user))
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return await self._failed(request, error)
        log.info("%s of %s by the dashboard", action, asked.pipeline)
        root = _root(request)
        response = RedirectResponse(f"{root}/{_back(form)}", 303)
        response.set_cookie(TOLD, _told(did, token), TOLD_SECONDS, path=root or "/", httponly=True, samesite="strict")
        return response

    async def not_there(self, request: Request, error: Exception) -> Response:
        """Answer a request of another path or method."""
        assert isinstance(error, HTTPException)  # noqa: S101 - for the type
        if error.status_code == 404:
            return await self._failed(request, NotFound("there is no such page"))
        return PlainTextResponse(f"{error.detail}\n", error.status_code, dict(error.headers or {}))

    def _look(self, subject: Subject, root: str) -> dict[str, str]:
        """Return the parts of a page that change."""
        name, read = ("now", self._reading.now_live) if subject is None else ("tenant", self._reading.tenant)
        asked = QueryParams({} if subject is None else {"pipeline": subject[0], "tenant": subject[1]})
        try:
            values = self._reading.ask(read, asked) | {"actions": self._actions}
        except TaskBridgeError as error:
            return {"status": self._showing.page("status.html", root, {"health": None, "why": str(error)})}
        return {
            "status": self._showing.page("status.html", root, values),
            "part": self._showing.page(f"{name}_live.html", root, values),
        }

    async def _in_thread(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Return what `work` returns; it may wait for a server. Who asks waits no longer than `seconds`.

        Raises:
            Busy: too much is under way.
            Slow: it did not come in time.
        """
        if self._under_way >= MOST_WAITING:
            raise Busy
        self._under_way += 1
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise Slow from None
        finally:
            self._under_way -= 1

    def _shown(self, template: str, request: Request, values: Values) -> str:
        common = {"pages": PAGES, "actions": self._actions, "user": request.state.user}
        return self._showing.page(template, _root(request), common | values)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Answer with a page that says what is wrong."""
        status, said = _meaning(error)
        health = None if status == 503 else self._reading.last_health
        values = {"title": "It does not work", "here": None, "said": said, "health": health, "status_code": status}
        asked = {"asked": QueryParams(), "pipeline": None}
        headers = {"Retry-After": "2"} if status == 503 else None
        return HTMLResponse(self._shown("failed.html", request, values | asked), status, headers)


class _Bounded(StreamingResponse):
    """A stream that ends when its page is closed, and for a viewer who opened it and does not read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - of ASGI
        """Send the stream until its end, or until the viewer is gone.

        Starlette notices neither by itself if the server implements ASGI 2.4 and drops what is sent to nobody.
        """
        sending = asyncio.ensure_future(self.stream_response(send))
        gone = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            async with asyncio.timeout(STREAM_SECONDS + LOOK_SECONDS):
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            log.info("a stream was given up: its viewer does not read")
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            # Its viewer counts until then.
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


class _Refused(Exception):
    """Somebody may not do this."""


def _meaning(error: Exception) -> tuple[int, str]:
    """Return the status and the sentence for an error."""
    match error:
        case _Refused():
            return 403, str(error)
        case NotFound() | UnknownPipeline():
            return 404, str(error)
        case UsageError():
            return 400, str(error)
        case Busy():
            return 503, "too many pages are asked for at once: come again in a moment"
        case Slow():
            return 503, "no answer came in time: a server is slow, or has too much to do; come again in a moment"
        case TaskBridgeError():
            return 503, str(error)
        case _:
            log.error("a page of the dashboard failed", exc_info=error)
            return 500, "the page failed: the log of this program has the error"


def _plain(error: Exception) -> Response:
    status, said = _meaning(error)
    return PlainTextResponse(f"{said}\n", status)


def _root(request: Request) -> str:
    """Return the path under which the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


async def _file(request: Request) -> Response:
    found = FILES.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    content, kind = found
    return Response(content, media_type=kind, headers=A_DAY)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        UsageError: it is too long, or no form.
    """
    body = b""
    try:
        async with asyncio.timeout(FORM_WITHIN):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST_FORM:
                    raise UsageError(f"the form is longer than {LONGEST_FORM:,} bytes: send less")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except TimeoutError:
        raise UsageError(f"the form did not come within {FORM_WITHIN:g} s: send it again") from None
    except ValueError:
        raise UsageError("it is no form: send the one of the page") from None


_BACK: Final = re.compile(r"(tenant|record|failing|tenants)?(\?[A-Za-z0-9%+&=._~*-]*)?")


def _back(form: dict[str, str]) -> str:
    """Return the path of the page from which a form came."""
    back = form.get("back", "")
    return back if _BACK.fullmatch(back) else ""


def _told(did: Did, token: str) -> str:
    """Return the cookie about what was done. Only who has the token can have made it."""
    text = f"{did.what}.{did.records}.{did.tenants}"
    return f"{text}.{hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()}"


def _said(told: str, token: str) -> str | None:
    """Return the sentence about what was done before this page; None: the cookie is not ours."""
    what, records, tenants = ([*told.split(".")[:3], "", ""])[:3]
    if what not in SAID or not (_is_count(records) and _is_count(tenants)):
        return None
    did = Did(what, int(records), int(tenants))
    if not hmac.compare_digest(told.encode(), _told(did, token).encode()):
        return None
    return SAID[what].format(count=_counted(did.records, "record"), tenants=_counted(did.tenants, "tenant"))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9


def _counted(count: int, what: str) -> str:
    return f"{number(count)} {what}{'' if count == 1 else 's'}"
