"""The dashboard as an ASGI app."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import anyio.to_thread
from celery import Celery
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from taskbridge.errors import ConfigurationError, TaskBridgeError, UnknownPipeline, UsageError
from taskbridge.settings import Settings, check_password
from taskbridge.web.pages.access import Access, Allow
from taskbridge.web.pages.acting import ACTIONS, MESSAGES, Target, act
from taskbridge.web.pages.reading import Reading
from taskbridge.web.pages.rendering import TEMPLATES

__all__ = ["dashboard"]

log = logging.getLogger(__name__)

THREADS: Final = 4
"""How many pages are read at once; others wait."""
LONGEST_FORM: Final = 65_536
MOST_FIELDS: Final = 20
FORM_SECONDS: Final = 10.0
DONE: Final = "taskbridge_done"
"""The cookie that says which message the next page shows: a key of `MESSAGES`."""
DONE_SECONDS: Final = 60
STATIC: Final = Path(__file__).parent / "static"

NAVIGATION: Final = ("", "tenants", "record", "failing", "runs")
"""The paths of the pages that every page links to; the first one is the page Now."""
PAGES: Final = (*NAVIGATION, "tenant")


def dashboard(
    app: Celery | None = None,
    *,
    password: str | None = None,
    allow: Allow | None = None,
    actions: bool = False,
    show_documents: bool = False,
    hosts: Sequence[str] = (),
) -> Starlette:
    """Return the dashboard, an ASGI app. You can mount it under any path.

    Without a password and without `allow`, only programs on this machine have access.

    Args:
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        password: the password for HTTP Basic, with any user name; None: TASKBRIDGE_DASHBOARD_PASSWORD.
        allow: your own check instead of a password. It receives each request and returns the user's name, or None to
            refuse the request. It may be a coroutine function. A plain function is called in a thread.
        actions: whether users can pause, resume, notify, retry and discard.
        show_documents: whether the page of a record shows its document.
        hosts: the accepted host names. If empty, any host name is accepted with a password or `allow`. Without both,
            only this machine's names are accepted.

    Raises:
        ConfigurationError: the password is too short.
    """
    secret = Settings.read().dashboard_password if password is None else password
    if password is not None:
        check_password(password)
    if isinstance(hosts, str):
        raise ConfigurationError("`hosts` is a string: pass a list of host names")
    site = _Site(Reading(app, show_documents=show_documents), actions=actions)
    made = Starlette(
        routes=[
            *(Route(f"/{path}", site.page(path), methods=["GET"]) for path in PAGES),
            Route("/do/{action}", site.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Access, password=secret, allow=allow, hosts=hosts)],
        exception_handlers=dict.fromkeys(
            (HTTPException, TaskBridgeError, TimeoutError, ClientDisconnect), site.error_page
        ),
    )
    # A redirect would go to the host that the request names.
    made.router.redirect_slashes = False
    return made


class _Site:
    """The pages of one dashboard."""

    def __init__(self, reading: Reading, *, actions: bool) -> None:
        self._reading = reading
        self._actions = actions
        # Starlette's own threads are also those of the application that mounts this.
        self._threads = anyio.CapacityLimiter(THREADS)

    def page(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a page."""
        name = path or "now"
        read = getattr(self._reading, name)

        def answer(request: Request) -> Response:
            message = MESSAGES.get(request.cookies.get(DONE, ""))
            values = self._reading.values(read, request.query_params)
            values |= {"title": name.capitalize(), "here": path, "message": message}
            response = HTMLResponse(self._render(f"{name}.html", request, values))
            if DONE in request.cookies:
                response.delete_cookie(DONE, _root(request) or "/")
            return response

        async def in_thread(request: Request) -> Response:
            return await anyio.to_thread.run_sync(answer, request, limiter=self._threads)

        return in_thread

    async def act(self, request: Request) -> Response:
        """Perform the action of a form, and redirect to its page."""
        action = request.path_params["action"]
        if action not in ACTIONS:
            raise HTTPException(404)
        if not self._actions:
            raise HTTPException(
                403,
                "actions are not allowed: use `taskbridge dashboard --allow-actions`, or pass `actions=True` to "
                "`taskbridge.web.dashboard`",
            )
        form = await _form(request)
        target, user = Target.of(form), str(request.state.user)
        done = await run_in_threadpool(act, self._reading.runtime, action, target, user)
        log.info("dashboard: %s of %s", action, target.pipeline)
        root = _root(request)
        # The page that the form was on: only the dashboard's own pages can send forms.
        response = RedirectResponse(request.headers.get("referer", f"{root}/"), 303)
        response.set_cookie(DONE, done, DONE_SECONDS, path=root or "/", httponly=True, samesite="strict")
        return response

    def error_page(self, request: Request, error: Exception) -> Response:
        """Respond with an error page."""
        status, message = _status_of(error)
        values = {"title": "Error", "here": None, "message": message, "status_code": status}
        headers = {"Retry-After": "2"} if status == 503 else getattr(error, "headers", None)
        return HTMLResponse(self._render("failed.html", request, values), status, headers)

    def _render(self, template: str, request: Request, values: Mapping[str, Any]) -> str:
        def link(to: str = "", /, **parameters: Any) -> str:
            given = {name: value for name, value in parameters.items() if value not in (None, "", False)}
            return f"{_root(request)}/{to}{'?' if given else ''}{urlencode(given)}"

        common = {"link": link, "pages": NAVIGATION, "actions": self._actions, "user": request.state.user}
        return TEMPLATES.get_template(template).render({**common, "query": request.query_params, **values})


def _status_of(error: Exception) -> tuple[int, str]:
    """Return the status and the message for an error."""
    match error:
        case HTTPException():
            return error.status_code, error.detail
        case UnknownPipeline():
            return 404, str(error)
        case UsageError():
            return 400, str(error)
        case ClientDisconnect():
            return 400, "the form was not received"
        case TimeoutError():
            return 503, "the request timed out: a server is slow or overloaded"
        case _:
            return 503, str(error)


def _root(request: Request) -> str:
    """Return the path under which the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Starlette's own parser needs another package.

    Raises:
        UsageError: it is too long, or not a form.
        TimeoutError: it was not received in time.
    """
    body = b""
    async with asyncio.timeout(FORM_SECONDS):
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                raise UsageError(f"the form is longer than {LONGEST_FORM:,} bytes")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError:
        raise UsageError("the request is not a form") from None
