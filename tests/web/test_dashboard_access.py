"""Nobody sees the dashboard who may not, and no page of another site gets anything from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse

from taskbridge.errors import ConfigurationError
from taskbridge.gate.wire import PEOPLES_TIMEOUT, TIMEOUT
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from taskbridge.web import dashboard
from taskbridge.web.pages.reading import Reading
from tests.deployment import Deployment
from tests.web.serving import served
from tests.web.visiting import Visitor, declare, visiting

PASSWORD = "correct horse battery"
ELSEWHERE = ("192.0.2.7", 4711)


@pytest.fixture(autouse=True)
def declared(deployment: Deployment) -> None:
    declare(deployment)


async def asked(
    app: object, client: tuple[str, int] | None, path: str = "/", method: str = "GET", **headers: str
) -> httpx2.Response:
    """The answer to a request that comes from an address."""
    transport = httpx2.ASGITransport(app=app, client=client or ELSEWHERE)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8001") as session:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await session.request(method, path, headers=named)


def answered(app: object, client: tuple[str, int] = ("127.0.0.1", 1), path: str = "/", **headers: Any) -> int:
    return asyncio.run(asked(app, client, path, **headers)).status_code


def test_without_a_password_only_this_machine_is_let_in(deployment: Deployment) -> None:
    app = dashboard(deployment.app)
    assert answered(app) == 200
    assert answered(app, ("::1", 1)) == 200
    assert answered(app, ("::ffff:127.0.0.1", 1)) == 200
    assert answered(app, ELSEWHERE) == 403
    assert answered(app, ("10.0.0.8", 1)) == 403
    assert answered(app, ("testclient", 1)) == 403


@pytest.mark.parametrize("path", ["/", "/tenants", "/live", "/static/dashboard.js", "/nowhere", "/do/pause"])
def test_no_path_is_left_open(deployment: Deployment, path: str) -> None:
    assert answered(dashboard(deployment.app), ELSEWHERE, path) == 403
    assert answered(dashboard(deployment.app, password=PASSWORD), path=path) == 401


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For",
        "Forwarded",
        "X-Real-IP",
        "X-Forwarded-Host",
        "Via",
        "CF-Connecting-IP",
        "True-Client-IP",
        "X-Client-IP",
    ],
)
def test_what_a_proxy_of_this_machine_passes_on_is_not_of_this_machine(deployment: Deployment, header: str) -> None:
    proxied: dict[str, Any] = {header: "127.0.0.1"}
    assert answered(dashboard(deployment.app), **proxied) == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8001", "10.0.0.8", ""]
)
def test_a_name_that_leads_here_from_another_site_is_refused(deployment: Deployment, host: str) -> None:
    app = dashboard(deployment.app)
    assert answered(app, host=host) == 403
    assert answered(dashboard(deployment.app, hosts=["board.internal"]), host="board.internal:8001") == 200
    for good in ("localhost", "LOCALHOST:8001", "127.0.0.1:8001", "[::1]:8001", "[::1]"):
        assert answered(app, host=good) == 200, good


def test_names_that_are_given_are_the_only_ones_beside_a_password(deployment: Deployment) -> None:
    app = dashboard(deployment.app, password=PASSWORD, hosts=["board.internal"])
    basic = httpx2.BasicAuth("ada", PASSWORD)._auth_header
    assert answered(app, host="board.internal", authorization=basic) == 200
    assert answered(app, host="evil.example", authorization=basic) == 403
    assert answered(dashboard(deployment.app, password=PASSWORD), ELSEWHERE, host="any", authorization=basic) == 200


def test_a_password_lets_in_who_shows_it_and_nobody_else(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbridge.web.pages.access.WRONG_SECONDS", 0.05)
    with visiting(deployment, password=PASSWORD) as visitor:
        refused = visitor.get("/")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert "acme" not in refused.text
        for name, password in (("ada", PASSWORD[:-1]), ("ada", ""), (PASSWORD, "x")):
            assert visitor.client.get("/", auth=(name, password)).status_code == 401
        for header in ("Basic", "Basic !!!", "Basic YQ==", "Bearer x", "Basic /////w=="):
            assert visitor.client.get("/", headers={"authorization": header}).status_code == 401, header
        page = visitor.client.get("/", auth=("ada", PASSWORD))
        assert page.status_code == 200
        assert "signed in as <bdi>ada</bdi>" in page.text


@pytest.mark.parametrize("answer", [RedirectResponse("/login"), True, 1, ["ada"], "", None])
def test_only_a_name_lets_somebody_in(deployment: Deployment, answer: Any) -> None:
    assert answered(dashboard(deployment.app, allow=lambda _: answer), ELSEWHERE) == 403


def test_a_wrong_password_is_answered_slowly_and_many_are_refused(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskbridge.web.pages.access.MOST_WRONG", 1)
    monkeypatch.setattr("taskbridge.web.pages.access.WRONG_SECONDS", 0.5)
    with visiting(deployment, password=PASSWORD) as visitor:
        began = time.monotonic()
        with ThreadPoolExecutor(3) as many:
            codes = list(many.map(lambda _: visitor.client.get("/", auth=("x", "wrong")).status_code, range(3)))
        assert sorted(codes) == [401, 429, 429]
        assert time.monotonic() - began >= 0.5
        assert visitor.client.get("/", auth=("ada", PASSWORD)).status_code == 200, "the right one is never held up"


def test_a_password_that_is_too_short_is_refused_and_not_shown(deployment: Deployment) -> None:
    with pytest.raises(ConfigurationError, match="use 12 to 200 characters") as raised:
        dashboard(deployment.app, password="short pass")
    assert "short pass" not in str(raised.value)


def test_the_application_s_own_check_decides(deployment: Deployment) -> None:
    def check(request: Request) -> str | None:
        if request.headers.get("x-user") == "broken":
            raise RuntimeError("no database")
        return request.headers.get("x-user")

    async def acheck(request: Request) -> str | None:
        return check(request)

    for allow in (check, acheck):
        app = dashboard(deployment.app, allow=allow)
        assert answered(app) == 403, "also on this machine"
        assert answered(app, x_user="ada") == 200
        assert answered(app, x_user="") == 403
        assert answered(app, ELSEWHERE, host="any.example", x_user="ada") == 200
        assert answered(app, x_user="broken") == 503


@pytest.mark.parametrize("path", ["/", "/tenants", "/nowhere", "/static/dashboard.css", "/tenants?pipeline=none"])
def test_every_answer_has_the_headers(deployment: Deployment, path: str) -> None:
    with visiting(deployment, actions=True) as visitor, visiting(deployment, password=PASSWORD) as refused:
        for answer in (visitor.client.get(path), refused.client.get(path)):
            headers = answer.headers
            policy = headers["content-security-policy"].split("; ")
            assert policy[0] == "default-src 'none'"
            assert set(policy[1:]) == {
                "script-src 'self'",
                "style-src 'self'",
                "img-src 'self'",
                "connect-src 'self'",
                "form-action 'self'",
                "frame-ancestors 'none'",
                "base-uri 'none'",
            }
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == (
                "private, max-age=86400, immutable" if answer.status_code == 200 and "static" in path else "no-store"
            )
            assert "set-cookie" not in headers


@pytest.fixture
def acting(deployment: Deployment) -> Iterator[Visitor]:
    record_invoice(deployment.engine, "acme", "in-1", {})
    with visiting(deployment, actions=True) as visitor:
        yield visitor


def paused(deployment: Deployment) -> int:
    return int(deployment.rows("SELECT count(*) FROM taskbridge.pauses")[0][0])


def test_what_another_site_sends_does_nothing(acting: Visitor, deployment: Deployment) -> None:
    page = acting.get("/tenant", pipeline="invoices", tenant="acme")
    form = acting.form(page.text, "pause")
    for headers in (
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "http://["},
        {"origin": "https://evil.example", "sec_fetch_site": "same-origin"},
    ):
        assert acting.send("pause", form, **headers).status_code == 403, headers
    assert acting.send("pause", form | {"token": "x" * 43}).status_code == 403
    assert acting.send("pause", form | {"token": ""}).status_code == 403
    # given a cookie that a page of another name of the domain has set, and the origin of a form without a referrer
    acting.client.cookies.set("taskbridge_dashboard", "x" * 64)
    assert acting.send("pause", form | {"token": "x" * 64}, origin="null").status_code == 403
    assert paused(deployment) == 0
    assert deployment.rows("SELECT 1 FROM taskbridge.audit") == []
    own = f"http://{acting.client.base_url.netloc.decode()}"
    assert acting.send("pause", form, origin=own).status_code == 303
    assert acting.send("pause", form, origin="null").status_code == 303, "as browsers send it without a referrer"
    assert paused(deployment) == 1


def test_another_site_may_link_here_and_fetch_nothing(deployment: Deployment) -> None:
    app = dashboard(deployment.app)
    link: dict[str, Any] = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert answered(app, **link) == 200
    assert answered(app, **(link | {"sec_fetch_dest": "iframe"})) == 403
    assert answered(app, path="/live", sec_fetch_site="cross-site", sec_fetch_mode="cors") == 403
    assert answered(app, path="/static/dashboard.js", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert answered(app, origin="https://evil.example") == 403


def test_pages_are_shown_without_forms_where_redis_keeps_no_secret(deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "in-1", {})
    # given a Redis that takes no writes, as one that is full
    runtime = runtime_of(deployment.app)
    runtime.redis.acl_setuser("reader", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-set"])
    address = urlsplit(deployment.settings.redis_url)
    reader = address._replace(netloc=f"reader:word@{address.hostname}:{address.port}").geturl()
    try:
        app = make_app(replace(deployment.settings, redis_url=reader)).app
        with served(dashboard(app, actions=True)) as url, Visitor(url) as visitor:
            page = visitor.get("/tenant", pipeline="invoices", tenant="acme")
            assert (page.status_code, '<form method="post"' in page.text) == (200, False)
            assert "Nothing can be done here now: Redis refuses the command" in page.text
            assert visitor.send("pause", {"token": "x", "pipeline": "invoices", "tenant": "acme"}).status_code == 503
    finally:
        runtime.redis.acl_deluser("reader")
    with visiting(deployment, actions=True) as visitor:
        form = visitor.form(visitor.get("/tenant", pipeline="invoices", tenant="acme").text, "pause")
        assert visitor.send("pause", form).status_code == 303


def test_who_looks_waits_for_redis_no_longer_than_a_person(deployment: Deployment) -> None:
    ours = runtime_of(deployment.app)
    assert ours.redis.connection_pool.connection_kwargs["socket_timeout"] == TIMEOUT
    people = Reading(deployment.app, show_documents=False).runtime
    assert people.redis.connection_pool.connection_kwargs["socket_timeout"] == PEOPLES_TIMEOUT


def test_actions_are_off_unless_they_are_allowed(deployment: Deployment) -> None:
    with visiting(deployment) as visitor:
        page = visitor.get("/tenant", pipeline="invoices", tenant="acme")
        assert '<form method="post"' not in page.text
        form = {"token": "x" * 43, "pipeline": "invoices", "tenant": "acme"}
        answer = visitor.send("pause", form)
        assert (answer.status_code, "--allow-actions" in answer.text) == (403, True)
    assert paused(deployment) == 0


def test_a_form_that_is_none_is_refused(acting: Visitor) -> None:
    form = acting.form(acting.get("/tenant", pipeline="invoices", tenant="acme").text, "pause")
    for content in (b"\xff=1", b"a=1&" * 30, b"x=" + b"y" * 70_000):
        assert acting.client.post("/do/pause", content=content).status_code in (400, 403)
    assert acting.send("explode", form).status_code == 404
    assert acting.send("pause", form | {"pipeline": "none"}).status_code == 404
    assert acting.send("pause", form | {"tenant": " x"}).status_code == 400
    assert acting.send("pause", form | {"reason": "x" * 3_000}).status_code == 400
    assert acting.send("retry", {"token": form["token"], "pipeline": "invoices"}).status_code == 400
    for back in ("https://evil.example", "//evil.example", "../x", "javascript:alert(1)", "tenant?a=b\r\nX-Y: z"):
        answer = acting.send("notify", form | {"back": back})
        assert answer.headers["location"] == "/", back


def test_it_is_served_on_this_machine_alone_without_a_password(deployment: Deployment) -> None:
    with served(dashboard(deployment.app)) as url:
        socket_host = url.removeprefix("http://")
        assert httpx2.get(f"http://{socket_host}/").status_code == 200
