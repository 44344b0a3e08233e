"""A shop with a Celery app of its own, and TaskBridge on it. Its tasks take and return what JSON cannot hold."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

from celery import Celery, Task

import taskbridge

app = Celery("shop", set_as_current=False)
app.config_from_object("tests.host.shop_settings", namespace="SHOP")
bridge = taskbridge.install(app)
# Said late, when the app has been configured.
assert app.conf.task_default_queue == "shop"
app.conf.accept_content = os.environ.get("SHOP_ACCEPTS", "pickle").split(",")


def queue_of(task: Task[Any, Any]) -> str:
    """Return the queue from which the task's message came."""
    delivery: Any = task.request.delivery_info
    return str(delivery["routing_key"])


@app.task(name="shop.add", shared=False)
def add(one: Decimal, other: Decimal) -> Decimal:
    """Add two prices."""
    return one + other


@app.task(name="shop.total", shared=False)
def total(prices: list[Decimal]) -> Decimal:
    """Add all prices."""
    return sum(prices, Decimal(0))


@app.task(name="shop.order", shared=False, bind=True)
def order(self: Task[Any, Any]) -> str:
    """Say from which queue the message came."""
    return queue_of(self)


@app.task(name="shop.email", shared=False, bind=True)
def email(self: Task[Any, Any]) -> str:
    """Say from which queue the message came."""
    return queue_of(self)
