"""Every page of the dashboard answers, from what real workers left, and says so where a server is away."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

from taskbridge.errors import Unavailable
from taskbridge.integration.app import make_app
from taskbridge.store import record, record_invoice
from taskbridge.web import dashboard
from taskbridge.web.pages.reading import Reading
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine
from tests.store.adopting import run
from tests.web.serving import served
from tests.web.visiting import SAME_SITE, Visitor, declare, visiting

FIFTY = """
INSERT INTO taskbridge.sync_cursors (pipeline, tenant, failures, last_error, failed_at)
SELECT 'invoices', 't' || lpad(n::text, 2, '0'), 1, 'ValueError', now() FROM generate_series({first}, {last}) n;
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome)
SELECT 'invoices', 't50', lpad(n::text, 16, '0'), now(), now(), 'event', '', 1, 1, 1, 0, 'handled'
FROM generate_series({first}, {last}) n
"""
MARKUP = "<script>alert(1)</script>\"'&\u202e 100% /../علی\u200cپور"
PAGES = ("", "tenants", "tenants?sort=events+in+24+hours", "failing", "runs", "record", "record?q=acme")


@pytest.fixture
def visitor(deployment: Deployment) -> Iterator[Visitor]:
    declare(deployment, "invoices", "orders")
    with visiting(deployment) as one:
        yield one


def test_a_page_of_an_empty_deployment_is_no_error_and_what_is_not_there_is_said(visitor: Visitor) -> None:
    for path in PAGES:
        answer = visitor.get(f"/{path}")
        assert answer.status_code == 200, answer.text
        assert (answer.text.count("<h1"), answer.text.count(' aria-current="page"')) == (1, 1)
    for path, status, said in (
        ("/nowhere", 404, "Not Found"),
        ("/tenants?pipeline=none", 404, "none"),
        ("/record?source=invoices&tenant=acme&key=x&pipeline=invoices", 404, "there is no such record"),
        ("/record?source=none%20such&tenant=acme&key=x", 400, "source"),
        ("/tenant?pipeline=invoices&tenant=%0a", 400, "tenant"),
        ("/runs?before=yesterday", 400, "is invalid"),
        ("/runs?before=0001-01-01T00:00:00", 400, "is invalid"),
        ("/record?q=%00x", 200, "Nothing found"),
        ("/tenants?sort=none&pipeline=", 200, "There are no such tenants"),
        ("/static/../app.py", 404, "Not Found"),
    ):
        answer = visitor.get(path)
        assert (answer.status_code, said in answer.text) == (status, True), (path, answer.text)
    assert visitor.client.post("/tenants", headers=SAME_SITE).status_code == 405
    assert visitor.client.get("/do/pause").status_code == 405


def test_names_and_errors_with_markup_are_text(visitor: Visitor, deployment: Deployment) -> None:
    record_invoice(deployment.engine, MARKUP, "in-1", {})
    put_in_quarantine(deployment.engine, MARKUP, "in-1", reason=f"ValueError: {MARKUP}", cause="failed", attempts=3)
    pages = [visitor.get(f"/{path}").text for path in (*PAGES, "tenants?sort=oldest", "tenants?failing=1")]
    pages += [
        visitor.get("/record", q=MARKUP).text,
        visitor.get("/tenant", pipeline="invoices", tenant=MARKUP).text,
        visitor.get("/record", source="invoices", tenant=MARKUP, key="in-1", pipeline="invoices").text,
        visitor.get("/tenants", pipeline=MARKUP).text,
        visitor.get("/runs", pipeline="invoices", tenant=MARKUP).text,
    ]
    assert sum("&lt;script&gt;alert(1)" in page for page in pages) >= 7
    assert not [page for page in pages if "<script>" in page or "alert(1)</script>" in page]
    assert not [page for page in pages if re.search(r"<[^>]+\s(style|on\w+)\s*=", page)], "the policy would forbid it"
    assert not [page for page in pages if re.search(r"<[^>]+=&#", page)], "an attribute whose quotes became text"
    assert any('<div class="warn"><dt>in quarantine' in page for page in pages)
    # Characters that turn the line make no name look like another; what was searched for is as it was.
    assert all("\u202e" not in re.sub(r' value="[^"]*"', "", page) for page in pages)
    assert "Nothing found" not in pages[len(PAGES) + 2]


def test_a_document_is_shown_only_where_that_is_allowed(visitor: Visitor, deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "in-1", {"secret": "of a document"})
    where = {"source": "invoices", "tenant": "acme", "key": "in-1", "pipeline": "invoices"}
    hidden = visitor.get("/record", **where).text
    assert "of a document" not in hidden
    assert "Documents are hidden" in hidden
    with visiting(deployment, show_documents=True) as other:
        assert "of a document" in other.get("/record", **where).text


def in_starlette(board: Any) -> Any:
    return Starlette(routes=[Mount("/ops/board", board)])


def beside_django(board: Any) -> Any:
    """As the page of docs has it: what is not the dashboard's goes to Django's ASGI app."""
    pytest.importorskip("django")
    importlib.import_module("tests.django.settled")
    django = importlib.import_module("django.core.asgi").get_asgi_application()
    return Starlette(routes=[Mount("/ops/board", board), Mount("/", django)])


urlpatterns: list[Any] = []


@pytest.mark.parametrize("mounted", [in_starlette, beside_django])
def test_every_link_of_a_mounted_dashboard_stays_under_its_prefix(
    deployment: Deployment, mounted: Callable[[Any], Any]
) -> None:
    declare(deployment)
    record_invoice(deployment.engine, "acme", "in-1", {})
    app = mounted(dashboard(deployment.app, actions=True))
    with served(app) as url, Visitor(f"{url}/ops/board") as visitor:
        for path in (*PAGES, "tenant?pipeline=invoices&tenant=acme"):
            answer = visitor.get(f"/{path}")
            assert answer.status_code == 200, answer.text
            links = re.findall(r'(?:href|src|action)="([^"]*)"', answer.text)
            assert len(links) > 8
            assert not [link for link in links if not link.startswith(("/ops/board/", "#main"))], path
        assert visitor.get("/static/dashboard.css").headers["content-type"].startswith("text/css")
        paused = visitor.do(visitor.get("/tenant", pipeline="invoices", tenant="acme"), "pause")
        assert "/ops/board/tenant?" in str(paused.url)
        assert "Paused." in paused.text


def test_a_page_does_not_wait_for_a_lock(deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "in-1", {})
    with visiting(deployment) as visitor, deployment.engine.connect() as holding:
        holding.exec_driver_sql("LOCK TABLE taskbridge.records, taskbridge.quarantine IN ACCESS EXCLUSIVE MODE")
        answer = visitor.get("/failing")
        assert (answer.status_code, "Postgres ended the statement" in answer.text) == (503, True), answer.text


@pytest.mark.parametrize("which", ["postgres_url", "redis_url"])
def test_a_server_that_is_away_is_said_on_the_page(deployment: Deployment, which: str) -> None:
    away = "postgresql://127.0.0.1:1/nowhere" if which == "postgres_url" else "redis://127.0.0.1:1/0"
    changed: dict[str, Any] = {which: away}
    app = make_app(replace(deployment.settings, **changed)).app
    with served(dashboard(app)) as url, Visitor(url) as visitor:
        of_both = ("failing", "runs", "record?q=x") if which == "redis_url" else ()
        for path in of_both:
            answer = visitor.get(f"/{path}")
            assert answer.status_code == 200, "it needs Postgres alone"
            assert re.search("unknown.*a server is unavailable", answer.text)
        for path in {"", "tenants", "failing", "tenant?pipeline=invoices&tenant=acme"} - {*of_both}:
            answer = visitor.get(f"/{path}")
            assert answer.status_code == 503, path
            assert "cannot be reached" in answer.text
            assert "Traceback" not in answer.text
            assert 'href="/tenants"' in answer.text, "the navigation is there all the same"
            assert "Content-Security-Policy" in answer.headers


def test_there_is_a_next_page_only_if_it_has_rows(visitor: Visitor, deployment: Deployment) -> None:
    def next_pages() -> list[str]:
        paths = ("/tenants", "/tenants?failing=1", "/runs", "/runs?pipeline=invoices", "/runs?tenant=t50")
        return [path for path in paths if 'rel="next"' in visitor.get(path).text]

    run(deployment.engine, FIFTY.format(first=1, last=50))
    assert next_pages() == []
    run(deployment.engine, FIFTY.format(first=51, last=51))
    assert next_pages() == ["/tenants", "/tenants?failing=1", "/runs", "/runs?pipeline=invoices", "/runs?tenant=t50"]
    (path,) = re.findall(r'rel="next" href="([^"]+)"', visitor.get("/tenants").text)
    assert 'href="/tenant?pipeline=invoices&amp;tenant=t51"' in visitor.client.get(path.replace("&amp;", "&")).text


def test_a_page_names_the_pipelines_that_it_did_not_look_at_and_denies_nothing_of_them(deployment: Deployment) -> None:
    said = "pipelines that are not declared in TASKBRIDGE_PIPELINES are left out: mail"
    all_well = "Nothing is failing, and nothing is in quarantine."
    declare(deployment, "mail", "sms")
    record(deployment.engine, "mail", "acme", "ML-a", {})
    put_in_quarantine(deployment.engine, "acme", "ML-a", pipeline="mail", reason="ValueError: bad")
    run(deployment.engine, "INSERT INTO taskbridge.sync_cursors (pipeline, tenant) VALUES ('mail', 'acme')")
    declare(deployment, "sms")
    with visiting(deployment) as visitor:
        assert said in visitor.get("/").text
        paths = ("/failing", "/failing?pipeline=sms", "/tenants", "/tenants?sort=events+in+24+hours")
        for path in paths:
            page = visitor.get(path).text
            assert page.count(f'<p class="said warned"><bdi>{said}') == 1, path
            assert all_well not in page
        for text in ("ML-a", "acme"):
            page = visitor.get("/record", q=text).text
            assert "Nothing found" not in page
            assert "pipeline=mail" not in page, "there is no page of it here"
        declare(deployment, "mail", "sms")
        for path in paths:
            assert "are left out" not in visitor.get(path).text.partition("<main")[2], path
        assert "ValueError: bad" in visitor.get("/failing").text
        assert all_well in visitor.get("/failing?pipeline=sms").text


A_NIGHT = """
INSERT INTO taskbridge.run_minutes (pipeline, minute, runs, failed, events, bursts, records, rejected, run_ms,
                                    first_event_ms_sum, first_event_counts)
SELECT 'orders', m, 7, 1, 60, 3, 60, 0, 240, 60, ARRAY[0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0]
FROM generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 minute') m
"""


def test_what_happened_last_night_is_seen(visitor: Visitor, deployment: Deployment) -> None:
    run(deployment.engine, A_NIGHT)
    page = visitor.get("/").text
    assert re.search(r'<svg[^>]* aria-label="[^"]*[1-9][\d,]* events[^"]*[1-9][\d,]* runs', page), page
    for name in ("events", "runs", "failed"):
        assert page.count(f'<rect class="k-{name}"') > 90
    assert page.partition("Show as a table")[2].count("<tr") > 90


def test_pages_that_wait_for_a_server_hold_few_of_the_application_s_threads(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, go = threading.Semaphore(0), threading.Event()

    async def allow(_: object) -> str:
        arrived.release()
        return "somebody"

    def wait(*_: object) -> dict[str, Any]:
        go.wait(30)
        raise Unavailable("the test has waited")

    monkeypatch.setattr(Reading, "values", wait)
    app = Starlette(
        routes=[Route("/own", lambda _: Response("own")), Mount("/ops", dashboard(deployment.app, allow=allow))]
    )
    with served(app) as url, ThreadPoolExecutor(45) as visitors, Visitor(url) as visitor:
        try:
            pages = [visitors.submit(httpx2.get, f"{url}/ops/tenants", timeout=60) for _ in range(45)]
            assert all(arrived.acquire(timeout=20) for _ in pages)
            assert visitor.client.get("/own", timeout=5).text == "own"
        finally:
            go.set()
        assert {page.result().status_code for page in pages} == {503}
