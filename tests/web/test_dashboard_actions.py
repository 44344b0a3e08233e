"""What people do by the dashboard is done, said, and written down with who did it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from httpx2 import Response

from taskbridge.process.runtime import runtime_of
from taskbridge.store import record_invoice
from tests.deployment import Deployment
from tests.quarantined import put_in_quarantine, states
from tests.web.visiting import Visitor, declare, visiting

PASSWORD = "correct horse battery"


@pytest.fixture
def ada(deployment: Deployment) -> Iterator[Visitor]:
    """A visitor who signs in with this name."""
    declare(deployment)
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
    live = ada.get("/live", pipeline="invoices", tenant="acme").json()["part"]
    assert "&lt;b&gt;the price list&lt;/b&gt;" in live, "an open page gets what has changed"
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
    assert "Discarded: 1 record of 1 tenant." in discarded.text
    assert states_by_key(deployment) == {"a": "discarded", "b": "quarantined"}
    retried = ada.do(ada.get("/record", key="a", **where), "retry")
    assert "Retried: 1 record of 1 tenant." in retried.text
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
    assert "Retried: 2 records of 2 tenants." in ada.client.get(answer.url.join(answer.headers["location"])).text
    after = states_by_key(deployment)
    assert {after["b"], after["d"]} == {"quarantined"}
    assert "quarantined" not in {after["a"], after["c"]}
    assert sorted(deployment.gate.active("invoices")) == ["acme", "zeta"]
    assert audited(deployment)[0][:5] == ("ada", "retry", "invoices", None, None)


def test_an_action_that_cannot_be_written_down_is_not_done(ada: Visitor, deployment: Deployment) -> None:
    record_invoice(deployment.engine, "acme", "in-1", {})
    page = tenant_page(ada)
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE taskbridge.audit RENAME TO gone")
    assert ada.send("pause", ada.form(page.text, "pause")).status_code == 503
    assert deployment.rows("SELECT 1 FROM taskbridge.pauses") == []


def test_what_is_said_after_an_action_cannot_be_chosen_by_a_link(ada: Visitor) -> None:
    for text in ("retried.5.2", "paused", "evil.1.1", "retried.<b>.1", "retried.5.2x", "...."):
        page = ada.client.get("/", params={"taskbridge_done": text, "message": text})
        assert 'class="said"' not in page.text
        if text != "retried.5.2":
            assert 'class="said"' not in ada.client.get("/", headers={"cookie": f"taskbridge_done={text}"}).text
