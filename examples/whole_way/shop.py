"""A receiver of webhooks about orders, and a pipeline that delivers a customer's orders in batches."""

from __future__ import annotations

import os

from taskbridge import pipeline
from taskbridge.web import StandardWebhooks, Webhook, deliver, receiver

app = receiver(
    Webhook(
        "orders",
        StandardWebhooks(os.environ["SHOP_SECRET"]),
        tenant="$.customer",
        key="$.order",
        version="$.version",
    )
)

pipeline("orders", batch_size=100)(
    deliver(os.environ["DOWNSTREAM_URL"], os.environ["DOWNSTREAM_SECRET"], allow_private=True)
)
