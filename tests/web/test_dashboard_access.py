"""Who may not sees nothing of the dashboard, and what people do by it is done, said and written down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import pytest
from httpx2 import Response
from starlette.requests import Request
from starlette.responses import RedirectResponse

from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from taskbridge.web import dashboard
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine, states
from tests.web.visiting import SAME_SITE, Visitor, declare, visiting

PASSWORD = "correct horse battery"
ELSEWHERE = ("192.0.2.7", 4711)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)


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


def test_without_a_password_only_this_machine_is_let_in_and_no_path_is_left_open(deployment: Deployment) -> None:
    app = dashboard(deployment.app)
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.8", 403), ("test", 403)):
        assert answered(app, (host, 1)) == status, host
    for path in ("/", "/tenants", "/static/dashboard.js", "/nowhere", "/do/pause"):
        assert answered(app, ELSEWHERE, path) == 403, path
        assert answered(dashboard(deployment.app, password=PASSWORD), path=path) == 401, path
    # What a proxy of this machine passes on is not of this machine.
    proxied = ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "X-Client-IP")
    for header in (*proxied, "CF-Connecting-IP", "True-Client-IP"):
        given: dict[str, Any] = {header: "127.0.0.1"}
        assert answered(app, **given) == 403, header


def test_a_name_that_leads_here_from_another_site_is_refused(deployment: Deployment) -> None:
    app = dashboard(deployment.app)
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8001", "10.0.0.8", ""):
        assert answered(app, host=host) == 403, host
    assert answered(dashboard(deployment.app, hosts=["board.internal"]), host="board.internal:8001") == 200
    basic = httpx2.BasicAuth("ada", PASSWORD)._auth_header
    named = dashboard(deployment.app, password=PASSWORD, hosts=["board.internal"])
    assert answered(named, host="board.internal", authorization=basic) == 200
    assert answered(named, host="evil.example", authorization=basic) == 403
    for host in ("localhost", "LOCALHOST:8001", "127.0.0.1:8001", "[::1]:8001", "[::1]"):
        assert answered(app, host=host) == 200, host


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
    for answer in (RedirectResponse("/login"), True, 1, ["ada"], "", None):
        refusing: Any = partial(lambda answer, _: answer, answer)
        assert answered(dashboard(deployment.app, allow=refusing), ELSEWHERE) == 403, answer


def test_every_answer_has_the_headers(deployment: Deployment) -> None:
    with visiting(deployment, actions=True) as visitor, visiting(deployment, password=PASSWORD) as refused:
        for path in ("/", "/tenants", "/nowhere", "/static/dashboard.css", "/tenants?pipeline=none"):
            for answer in (visitor.client.get(path), refused.client.get(path)):
                headers = answer.headers
                assert headers["content-security-policy"] == POLICY
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["x-frame-options"] == "DENY"
                assert headers["referrer-policy"] == "same-origin"
                is_file = answer.status_code == 200 and "static" in path
                assert headers["cache-control"] == ("no-cache" if is_file else "no-store")
                assert "set-cookie" not in headers


@pytest.fixture
def acting(deployment: Deployment) -> Iterator[Visitor]:
    record_invoice(deployment.engine, "acme", "in-1", {})
    with visiting(deployment, actions=True) as visitor:
        yield visitor


def test_what_another_site_sends_does_nothing(acting: Visitor, deployment: Deployment) -> None:
    page = acting.get("/tenant", pipeline="invoices", tenant="acme")
    form = acting.form(page.text, "pause")
    for headers in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "http://["},
        {"origin": "null"},
        {},
    ):
        answer = acting.client.post("do/pause", data=form, headers=headers)
        assert answer.status_code == 403, headers
    assert deployment.rows("SELECT FROM taskbridge.pauses") == deployment.rows("SELECT FROM taskbridge.audit") == []
    own = f"http://{acting.client.base_url.netloc.decode()}"
    for headers in ({"origin": own}, {"sec-fetch-site": "same-origin"}):
        answer = acting.client.post("do/pause", data=form, headers=headers)
        assert answer.status_code == 303, headers
    assert len(deployment.rows("SELECT FROM taskbridge.pauses")) == 1


def test_another_site_may_link_here_and_fetch_nothing(deployment: Deployment) -> None:
    app = dashboard(deployment.app)
    link: dict[str, Any] = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert answered(app, **link) == 200
    assert answered(app, **(link | {"sec_fetch_dest": "iframe"})) == 403
    assert answered(app, sec_fetch_site="cross-site", sec_fetch_mode="cors") == 403
    assert answered(app, path="/static/dashboard.js", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert answered(app, origin="https://evil.example") == 403


def test_actions_are_off_unless_they_are_allowed(deployment: Deployment) -> None:
    with visiting(deployment) as visitor:
        page = visitor.get("/tenant", pipeline="invoices", tenant="acme")
        assert '<form method="post"' not in page.text
        answer = visitor.send("pause", {"pipeline": "invoices", "tenant": "acme"})
        assert (answer.status_code, "--allow-actions" in answer.text) == (403, True)
    assert deployment.rows("SELECT FROM taskbridge.pauses") == []


def test_a_form_that_is_none_is_refused(acting: Visitor) -> None:
    form = acting.form(acting.get("/tenant", pipeline="invoices", tenant="acme").text, "pause")
    for content in (b"\xff=1", b"a=1&" * 30, b"x=" + b"y" * 70_000):
        assert acting.client.post("/do/pause", content=content, headers=SAME_SITE).status_code == 400
    assert acting.send("explode", form).status_code == 404
    assert acting.send("pause", form | {"pipeline": "none"}).status_code == 404
    assert acting.send("pause", form | {"tenant": " x"}).status_code == 400
    assert acting.send("retry", {"pipeline": "invoices"}).status_code == 400


@pytest.fixture
def ada(deployment: Deployment) -> Iterator[Visitor]:
    """A visitor who signs in with this name."""
    with visiting(deployment, password=PASSWORD, actions=True) as visitor:
        visitor.client.auth = ("ada", PASSWORD)
        yield visitor


def audited(deployment: Deployment) -> list[tuple[str | None, ...]]:
    statement = "SELECT who, action, pipeline, tenant, key, detail FROM taskbridge.audit ORDER BY id"
    return [tuple(row) for row in deployment.rows(statement)]


def tenant_page(visitor: Visitor) -> Response:
    return visitor.get("/tenant", pipeline="invoices", tenant="acme")


def test_a_tenant_is_paused_resumed_and_notified(ada: Visitor, deployment: Deployment) -> None:
    deployment.save("acme", "in-1", notify=False)
    page = ada.do(tenant_page(ada), "pause", reason="<b>the price list</b>")
    assert "&lt;b&gt;the price list&lt;/b&gt;" in page.text
    assert "Paused. Events are accepted" in page.text
    assert "Paused. Events are accepted" not in tenant_page(ada).text, "it is said once"
    assert "Resumed." in ada.do(tenant_page(ada), "resume").text
    assert deployment.gate.active("invoices") == ["acme"]
    assert "also handles this event" in ada.do(tenant_page(ada), "notify").text
    ada.do(ada.get("/"), "pause", pipeline="invoices", reason="")
    assert runtime_of(deployment.app).pauses.of("invoices").whole is not None
    ada.do(ada.get("/"), "resume")
    assert runtime_of(deployment.app).pauses.of("invoices").whole is None
    assert audited(deployment) == [
        ("ada", "pause", "invoices", "acme", None, "<b>the price list</b>"),
        ("ada", "resume", "invoices", "acme", None, None),
        ("ada", "notify", "invoices", "acme", None, None),
        ("ada", "pause", "invoices", None, None, None),
        ("ada", "resume", "invoices", None, None, None),
    ]


def quarantine(deployment: Deployment, **reasons: str) -> None:
    for key, reason in reasons.items():
        tenant = "acme" if key < "c" else "zeta"
        record_invoice(deployment.engine, tenant, key, {})
        put_in_quarantine(deployment.engine, tenant, key, reason=reason, cause="failed", attempts=3)


def states_by_key(deployment: Deployment) -> dict[str, str]:
    return {key: state for (_, key), state in states(deployment.engine).items()}


def test_one_record_is_retried_or_discarded(ada: Visitor, deployment: Deployment) -> None:
    quarantine(deployment, a="ValueError: no customer", b="ValueError: no customer")
    where = {"source": "invoices", "tenant": "acme", "pipeline": "invoices"}
    discarded = ada.do(ada.get("/record", key="a", **where), "discard")
    assert "Discarded." in discarded.text
    assert states_by_key(deployment) == {"a": "discarded", "b": "quarantined"}
    retried = ada.do(ada.get("/record", key="a", **where), "retry")
    assert "Retried: " in retried.text
    assert states_by_key(deployment)["a"] not in ("discarded", "quarantined")
    assert [row[1:5] for row in audited(deployment)] == [
        ("discard", "invoices", "acme", "a"),
        ("retry", "invoices", "acme", "a"),
    ]


def test_a_group_of_equal_errors_is_retried_and_no_other(ada: Visitor, deployment: Deployment) -> None:
    reason = "ValueError: no customer\r\nsee <the list>\n"
    quarantine(deployment, a=reason, b="ValueError: another", c=reason, d=f"{reason} of mine")
    page = ada.get("/failing")
    assert page.text.count("<button>Retry ") == 3
    (chosen,) = [one for one in page.text.split("<section") if "Retry 2 records" in one]
    # As browsers send line ends.
    form = {name: text.replace("\r", "").replace("\n", "\r\n") for name, text in ada.form(chosen, "retry").items()}
    answer = ada.send("retry", form)
    assert answer.status_code == 303, answer.text
    assert "Retried: " in ada.client.get(answer.url.join(answer.headers["location"])).text
    after = states_by_key(deployment)
    assert {after["b"], after["d"]} == {"quarantined"}
    assert "quarantined" not in {after["a"], after["c"]}
    assert sorted(deployment.gate.active("invoices")) == ["acme", "zeta"]
    assert audited(deployment)[0][:5] == ("ada", "retry", "invoices", None, None)


def test_an_action_that_cannot_be_written_down_is_not_done(ada: Visitor, deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "in-1", {})
    page = tenant_page(ada)
    deployment.execute("ALTER TABLE taskbridge.audit RENAME TO gone")
    assert ada.send("pause", ada.form(page.text, "pause")).status_code == 503
    assert deployment.rows("SELECT 1 FROM taskbridge.pauses") == []


def test_what_is_said_after_an_action_cannot_be_chosen_by_a_link(ada: Visitor) -> None:
    assert 'class="said"' not in ada.client.get("/", params={"taskbridge_done": "paused", "message": "paused"}).text
    assert 'class="said"' not in ada.client.get("/", headers={"cookie": "taskbridge_done=evil"}).text
