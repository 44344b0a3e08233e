"""ASGI apps that receive webhooks and events, delivery over HTTP, and the dashboard.

This package needs the extra `web`: `pip install 'celery-taskbridge[web]'`.
"""

from taskbridge.common.libraries import explained_imports

with explained_imports():
    from taskbridge.web.delivering import Refused, Undelivered, UnexpectedAnswer, deliver
    from taskbridge.web.pages.app import dashboard
    from taskbridge.web.posting import events
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
    "dashboard",
    "deliver",
    "events",
    "receiver",
]
