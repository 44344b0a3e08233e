"""Python blocks of the README, and those of the how-to pages that say `<!-- run -->`, do what the page says."""

from __future__ import annotations

import base64
import hmac
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from taskbridge.declaring.pipeline import DECLARED
from taskbridge.settings import Settings
from taskbridge.store import connect
from taskbridge.testing import drain, notified
from tests.docs.pages import blocks
from tests.store.adopting import rows, run

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"


@pytest.fixture
def own_tables(taskbridge_settings: Settings, declarations: None) -> Iterator[Engine]:  # noqa: ARG001 - the page declares
    """The database, with the tables that the page takes for granted."""
    # Other tests of this process may have imported an example that declares what the page does.
    DECLARED._declared.clear()
    engine = connect(taskbridge_settings.postgres_url)
    run(
        engine,
        "CREATE TABLE orders (id int PRIMARY KEY, customer text, amount numeric)",
        "CREATE TABLE totals (customer text PRIMARY KEY, amount numeric)",
    )
    yield engine
    engine.dispose()


def executed(page: str, /, **names: Any) -> dict[str, Any]:
    """Run the blocks of a page that say so; return its names."""
    names["__name__"] = "page"
    for block in blocks(HOW_TO / page):
        if block.kind == "run":
            exec(compile(block.text, page, "exec"), names)  # noqa: S102 - the page's own code
    return names


def test_rows_of_an_own_table_are_batched_and_have_their_effects_once(own_tables: Engine) -> None:
    page = executed("write-a-handler.md", **executed("your-own-table-and-handler.md"))
    for order, amount in enumerate(("1.50", "2.00", "3.25")):
        page["place_order"]("acme", order, amount)
    drain("acme")
    drain("acme")
    sent: list[object] = []

    async def send(_: str, document: object) -> None:
        sent.append(document)

    page["send"] = send
    drain("acme", "shipments")
    assert sent == [{"order": order} for order in range(3)]
    page["Base"].metadata.create_all(own_tables)
    drain("acme", "receipts")
    assert rows(own_tables, "SELECT customer, amount::text FROM totals") == [("acme", "6.75")]
    receipts = rows(own_tables, 'SELECT "order", customer FROM receipts ORDER BY 1')
    assert receipts == [(order, "acme") for order in range(3)]
    page["engine"].dispose()


def test_a_record_in_a_transaction_has_its_event_after_the_commit(own_tables: Engine) -> None:
    page = executed("your-transaction.md")
    assert notified() == {"acme": 1}
    assert rows(own_tables, "SELECT customer FROM orders") == [("acme",)]
    page["engine"].dispose()


def test_the_webhooks_of_the_page_are_stored(own_tables: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("STRIPE_WEBHOOK_SECRET", "SHOPIFY_WEBHOOK_SECRET", "CARRIER_WEBHOOK_SECRETS"):
        monkeypatch.setenv(provider, "old,new" if provider.endswith("S") else "secret")
    page = executed("receive-webhooks.md")

    def signed(secret: str, body: bytes) -> bytes:
        return hmac.digest(secret.encode(), body, "sha256")

    now = str(int(time.time()))
    payment = b'{"id": "evt_1", "created": 1790000000, "data": {"object": {"id": "pi_1", "customer": "acme"}}}'
    order = b'{"id": 820982911946154500, "customer": {"id": 7}, "updated_at": "2026-11-23T10:00:00-05:00"}'
    parcel = b'{"account": "acme", "parcel": "p1", "history": [{"at": "2026-11-23T10:00:00Z"}]}'
    of_stripe = signed("secret", f"{now}.".encode() + payment).hex()
    of_shopify = base64.b64encode(signed("secret", order)).decode()
    requests = {
        "payments": (payment, {"Stripe-Signature": f"t={now},v1={of_stripe}"}),
        "orders": (order, {"X-Shopify-Hmac-Sha256": of_shopify, "X-Shopify-Webhook-Id": "w1"}),
        "carrier": (parcel, {"X-Signature": signed("new", parcel).hex(), "X-Delivery": "d1"}),
    }
    with TestClient(page["shop"]) as client:
        for path, (body, headers) in requests.items():
            for new in (True, False):
                answer = client.post(f"/webhooks/{path}", content=body, headers=headers)
                assert (answer.status_code, answer.json()) == (200, {"new": new}), path
    assert rows(
        own_tables, "SELECT source, tenant, key, document ->> 'customer' FROM taskbridge.records ORDER BY 1"
    ) == [
        ("orders", "7", "820982911946154500", '{"id": 7}'),
        ("parcels", "acme", "p1", None),
        ("payments", "acme", "pi_1", "acme"),
    ]


def test_the_code_of_the_readme_delivers_what_it_says(own_tables: Engine) -> None:  # noqa: ARG001 - for the servers
    readme = (HOW_TO.parents[1] / "README.md").read_text(encoding="utf-8")
    sent: list[object] = []
    page: dict[str, Any] = {"__name__": "readme", "send": lambda document, _: sent.append(document)}
    (first,) = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)

    exec(compile(first, "README.md", "exec"), page)  # noqa: S102 - the page's own code
    drain("acme")

    assert sent == [{"total": "74.25"}]


def test_the_delay_by_rule_acts_at_once(own_tables: Engine) -> None:  # noqa: ARG001 - for the servers
    paged: list[tuple[str, list[object]]] = []
    executed("delay-by-rule.md", page=lambda tenant, documents: paged.append((tenant, documents)))
    drain("billing", "log-alerts")

    assert paged == [("billing", [{"level": "ERROR", "service": "billing"}])]
