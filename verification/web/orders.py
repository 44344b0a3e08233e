"""A receiver of orders, and the pipeline that delivers them; tests kill what they need."""

from __future__ import annotations

import os

from taskbridge import pipeline
from taskbridge.web import StandardWebhooks, Webhook, deliver, receiver
from tests.web.secrets import SECRET

app = receiver(
    Webhook("orders", StandardWebhooks(SECRET), tenant="$.customer", key="$.order", version="$.version"),
)
send_orders = pipeline("orders", batch_size=50)(
    deliver(os.environ.get("TEST_ENDPOINT", "http://127.0.0.1:1/"), SECRET, allow_private=True, timeout=10)
)
