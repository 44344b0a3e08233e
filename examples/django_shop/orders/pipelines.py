"""The pipeline that sends orders to the warehouse."""

from __future__ import annotations

import json
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from django.conf import settings
from django.db.models import F

from orders.models import Shipment
from taskbridge import Batch, Record, RetryAfter, pipeline

__all__ = ["send_orders"]


@pipeline("orders", rate_limit="50/s", downstream_errors=(HTTPError,))
def send_orders(batch: Batch) -> RetryAfter | None:
    """Send a customer's orders, oldest change first, and record what was sent.

    All calls come first, because the first write opens a transaction, which holds locks until the batch commits. If the
    warehouse asks to wait or fails, the orders that it has accepted are recorded and not sent again. An order that
    fails comes first in the next batch, and only raises there, so that the failure counts for that order.
    """
    taken: list[Record] = []
    wait: RetryAfter | None = None
    for order in batch:
        try:
            if is_taken(batch, order):
                taken.append(order)
        except RetryAfter as retry:
            wait = retry
            break
        except OSError:
            if not taken:
                raise
            wait = RetryAfter(0)
            break
    for order in taken:
        batch.handled(order)
        amount = 0 if order.deleted else order.document["amount"]
        shipment, _ = Shipment.objects.get_or_create(
            customer=batch.tenant, order=order.external_id, defaults={"amount": amount}
        )
        Shipment.objects.filter(pk=shipment.pk).update(amount=amount, times_sent=F("times_sent") + 1)
    return wait


def is_taken(batch: Batch, order: Record) -> bool:
    """Send an order; return whether the warehouse accepted it, and reject it otherwise."""
    if order.tenant in {".", ".."}:
        # Even if encoded, it would change the path.
        batch.reject(order, "this customer cannot be part of a path")
        return False
    try:
        send(order)
    except HTTPError as error:
        if error.code == HTTPStatus.TOO_MANY_REQUESTS:
            raise RetryAfter(error.headers["Retry-After"], scope="pipeline") from error
        if error.code != HTTPStatus.UNPROCESSABLE_ENTITY:
            raise
        batch.reject(order, str(error))
        return False
    return True


def send(order: Record) -> None:
    """Send the current state of an order to the warehouse."""
    customer, number = quote(order.tenant, safe=""), quote(order.external_id, safe="")
    request = Request(  # noqa: S310 - the project's own setting
        f"{settings.WAREHOUSE_URL}/customers/{customer}/orders/{number}",
        json.dumps(dict(order.document)).encode(),
        {"Idempotency-Key": order.idempotency_key},
        method="DELETE" if order.deleted else "PUT",
    )
    with urlopen(request, timeout=10):  # noqa: S310 - as above
        pass
