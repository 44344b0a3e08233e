"""A receiver of webhooks, as an ASGI app. It needs the extra `web`: `pip install '.[web]'` in a checkout."""

from taskbridge.web.delivering import Refused, Undelivered, UnexpectedAnswer, deliver
from taskbridge.web.receiving import receiver
from taskbridge.web.signatures import (
    GitHub,
    Hmac,
    InvalidSignature,
    Scheme,
    Shopify,
    Slack,
    StandardWebhooks,
    Stripe,
    Verified,
)
from taskbridge.web.webhook import Request, Webhook

__all__ = [
    "GitHub",
    "Hmac",
    "InvalidSignature",
    "Refused",
    "Request",
    "Scheme",
    "Shopify",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Undelivered",
    "UnexpectedAnswer",
    "Verified",
    "Webhook",
    "deliver",
    "receiver",
]
