"""The shop, tested in Django's own classes: `manage.py test`."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from django.db import connection
from django.test import TestCase, TransactionTestCase
from shop.celery import app

from orders import services
from orders.models import Order, Shipment
from taskbridge.django.testing import deliver, deployed

BODY = "application/json"


class Warehouse(BaseHTTPRequestHandler):
    """Accepts orders, except those with an amount below 1; `told` has the accepted ones by path.

    All calls are answered with 500 while it is `failing`, and so are those with the `unlucky` amount.

    `in_transaction`: how many transactions were open in the database at each call.
    """

    told: ClassVar[dict[str, Any]] = {}
    in_transaction: ClassVar[list[int]] = []
    failing = False
    unlucky: ClassVar[int | None] = None

    def do_PUT(self) -> None:
        self.in_transaction.append(open_transactions())
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        amount = order["amount"] if order else 1
        status = 500 if self.failing or amount == self.unlucky else 422 if amount < 1 else 200
        if status == 200:
            self.told[self.path] = order
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_PUT

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def open_transactions() -> int:
    """Return how many sessions are idle in a transaction."""
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
        )
        (count,) = cursor.fetchone()
    return count


class WithWarehouse:
    """Runs a warehouse during each test."""

    def setUp(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Warehouse)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.enterContext(self.settings(WAREHOUSE_URL=f"http://127.0.0.1:{server.server_port}"))
        Warehouse.told.clear()
        Warehouse.in_transaction.clear()
        Warehouse.failing, Warehouse.unlucky = False, None


class InATransaction(WithWarehouse, TestCase):
    """Nothing is committed; `deliver` calls the handler with what the test has saved."""

    @classmethod
    def setUpTestData(cls) -> None:
        cls.early = Order.objects.create(customer="globex", item="bell", amount=3)

    def test_what_was_saved_is_sent_and_written_down(self) -> None:
        order = services.place("acme", "bicycle", 2)
        globex, acme = deliver("orders")
        self.assertEqual((globex.tenant, acme.tenant), ("globex", "acme"))
        self.assertEqual(
            acme[0].document, {"id": order.pk, "customer": "acme", "item": "bicycle", "amount": 2, "version": 1}
        )
        self.assertEqual(Warehouse.told[f"/customers/acme/orders/{order.pk}"]["amount"], 2)
        self.assertEqual(Shipment.objects.get(customer="acme").amount, 2)
        self.assertEqual(deliver("orders"), [])

    def test_the_last_version_is_sent_once_and_a_cancelled_order_is_taken_away(self) -> None:
        order = services.place("acme", "bicycle", 2)
        services.change(order.pk, 5)
        services.cancel(self.early.pk)
        deliver("orders")
        self.assertEqual(Shipment.objects.get(customer="acme").times_sent, 1)
        self.assertEqual(Warehouse.told[f"/customers/globex/orders/{self.early.pk}"], {})

    def test_a_rejected_order_does_not_stop_the_others(self) -> None:
        bad, good = services.place("acme", "bicycle", 0), services.place("acme", "bicycle", 1)
        acme = deliver("orders")[-1]
        self.assertEqual(list(acme.rejected), [str(bad.pk)])
        self.assertEqual(Shipment.objects.get(customer="acme").order, good.pk)

    def test_no_customer_s_name_leads_to_another_path(self) -> None:
        order, bad = services.place("acme/../victim?#", "bicycle", 1), services.place("..", "bicycle", 1)
        rejected = {batch.tenant: list(batch.rejected) for batch in deliver("orders")}
        self.assertEqual(rejected[".."], [str(bad.pk)])
        expected = {
            f"/customers/globex/orders/{self.early.pk}",
            f"/customers/acme%2F..%2Fvictim%3F%23/orders/{order.pk}",
        }
        self.assertEqual(set(Warehouse.told), expected)

    def test_after_an_error_the_same_is_delivered_again(self) -> None:
        Warehouse.failing = True
        with self.assertRaisesMessage(Exception, "500"):
            deliver("orders")
        self.assertEqual(Shipment.objects.count(), 0)
        Warehouse.failing = False
        self.assertEqual(len(deliver("orders")), 1)

    def test_what_was_sent_before_an_error_is_not_sent_again(self) -> None:
        first, _ = services.place("acme", "bicycle", 2), services.place("acme", "bell", 13)
        Warehouse.unlucky = 13
        deliver("orders")
        self.assertEqual([one.order for one in Shipment.objects.filter(customer="acme")], [first.pk])
        with self.assertRaisesMessage(Exception, "500"):
            deliver("orders")
        Warehouse.unlucky = None
        deliver("orders")
        self.assertEqual([one.times_sent for one in Shipment.objects.filter(customer="acme")], [1, 1])

    def test_what_customers_call(self) -> None:
        number = self.client.post("/customers/acme/orders", {"item": "bicycle", "amount": 2}, BODY).json()
        self.assertEqual(self.client.put(f"/orders/{number}", {"amount": 5}, BODY).status_code, 204)
        self.assertEqual(Order.objects.get(pk=number).version, 2)
        self.assertEqual(self.client.delete(f"/orders/{number}").status_code, 204)
        self.assertEqual(self.client.put(f"/orders/{number}", {"amount": 5}, BODY).status_code, 404)
        for wrong in ("none", {"item": "bicycle"}, {"item": "bicycle", "amount": "two"}):
            self.assertEqual(self.client.post("/customers/acme/orders", wrong, BODY).status_code, 400)

    def test_an_order_notifies_when_it_is_committed(self) -> None:
        with deployed(app) as here, self.captureOnCommitCallbacks(execute=True) as hooks:
            services.place("acme", "bicycle", 2)
            self.assertEqual(here.notified("orders"), {})
        self.assertEqual(len(hooks), 1)


class WithRuns(WithWarehouse, TransactionTestCase):
    """Everything is committed, and real runs are performed."""

    def test_notified_or_not_each_order_is_sent_and_a_failure_leaves_no_shipment(self) -> None:
        with deployed(app) as here:
            order = services.place("acme", "bicycle", 2)
            self.assertEqual(here.notified("orders"), {"acme": 1})
            Order.objects.create(customer="globex", item="bell", amount=1)
            Warehouse.failing = True
            with self.assertRaisesMessage(Exception, "500"):
                here.run_all()
            self.assertEqual(Shipment.objects.count(), 0)
            Warehouse.failing = False
            here.run_all()
            self.assertEqual({one.customer: one.times_sent for one in Shipment.objects.all()}, {"acme": 1, "globex": 1})
            services.change(order.pk, 7)
            self.assertEqual(here.run_all(), 1)
            self.assertEqual(Shipment.objects.get(customer="acme").amount, 7)

    def test_no_transaction_is_open_while_the_warehouse_is_called(self) -> None:
        with deployed(app) as here:
            for item in ("bicycle", "bell", "pump"):
                services.place("acme", item, 1)
            self.assertEqual(here.run_all(), 1)
        self.assertEqual(Shipment.objects.count(), 3)
        self.assertEqual(Warehouse.in_transaction, [0, 0, 0])
