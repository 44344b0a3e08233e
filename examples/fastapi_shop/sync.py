"""The shop's Celery app, and the pipeline that sends its orders to the warehouse."""

from __future__ import annotations

import os
from urllib.parse import quote

import httpx2
from celery import Celery

import taskbridge

__all__ = ["app", "bridge"]

app = Celery("shop", broker=os.environ.get("TASKBRIDGE_REDIS_URL"))
bridge = taskbridge.install(app)


@taskbridge.pipeline("orders", rate_limit="50/s", downstream_errors=(httpx2.TransportError, httpx2.HTTPStatusError))
def send_orders(batch: taskbridge.Batch) -> None:
    """Send one customer's orders, oldest change first."""
    customer = quote(batch.tenant, safe="")
    with httpx2.Client(base_url=os.environ["WAREHOUSE_URL"], timeout=10) as warehouse:
        for order in batch:
            if customer in {".", ".."}:
                # Even if encoded, it would change the path.
                batch.reject(order, "this customer cannot be part of a path")
                continue
            answer = warehouse.request(
                "DELETE" if order.deleted else "PUT",
                f"/customers/{customer}/orders/{quote(order.external_id, safe='')}",
                headers={"Idempotency-Key": order.idempotency_key},
                json=dict(order.document),
            )
            if answer.status_code == 429:
                raise taskbridge.RetryAfter(answer.headers.get("Retry-After"), scope="pipeline")
            if answer.status_code == 422:
                batch.reject(order, answer.text)
            else:
                answer.raise_for_status()
                batch.handled(order)
