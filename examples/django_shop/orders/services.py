"""What the shop's views call."""

from __future__ import annotations

from django.db import transaction
from shop.celery import bridge

from orders.models import Order

__all__ = ["cancel", "change", "place"]


def place(customer: str, item: str, amount: int) -> Order:
    """Take an order."""
    with transaction.atomic():
        order = Order.objects.create(customer=customer, item=item, amount=amount)
        bridge.notify_event.delay_on_commit(customer, "orders")
    return order


def change(number: int, amount: int) -> None:
    """Change an order. Nobody notifies: it is seen a moment later."""
    Order.objects.filter(pk=number).update(amount=amount)


def cancel(number: int) -> None:
    """Cancel an order."""
    Order.objects.filter(pk=number).delete()
