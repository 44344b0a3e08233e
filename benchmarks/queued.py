"""What lies in a queue: run messages, read as Celery reads them."""

from __future__ import annotations

import base64
import json

__all__ = ["run_in"]


def run_in(text: str) -> tuple[str, str]:
    """Return the tenant and the token of a run's message, as it lies in Redis."""
    message = json.loads(text)
    # A message that kombu published holds its body in base64; one that a script pushed, as it is.
    encoded = message["properties"].get("body_encoding") == "base64"
    (_, tenant, token), _, _ = json.loads(base64.b64decode(message["body"]) if encoded else message["body"])
    return tenant, token
