"""The shop's operations, called by its views."""

from __future__ import annotations

from django.db import transaction
from django.db.models import F
from shop.celery import bridge

from orders.models import Order

__all__ = ["cancel", "change", "place"]


def place(customer: str, item: str, amount: int) -> Order:
    """Place an order."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, item=item, amount=amount)
        bridge.notify_event.delay_on_commit(customer, "orders")
    return order


def change(number: int, amount: int) -> bool:
    """Change an order, if it exists. There is no event, so it is handled about 200 ms later."""
    return Order.objects.filter(pk=number).update(amount=amount, version=F("version") + 1) > 0


def cancel(number: int) -> bool:
    """Cancel an order, if it exists."""
    count, _ = Order.objects.filter(pk=number).delete()
    return count > 0
