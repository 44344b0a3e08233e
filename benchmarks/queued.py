"""What lies in a queue: run messages, read as Celery reads them."""

from __future__ import annotations

import base64
import json

from taskbridge.gate.message import RUN_TASK

__all__ = ["runs_in"]


def runs_in(text: str) -> list[tuple[str, str]]:
    """Return the (tenant, token) of each run of a message, as it lies in Redis."""
    message = json.loads(text)
    # A message that kombu published holds its body in base64; one that a script pushed, as it is.
    encoded = message["properties"].get("body_encoding") == "base64"
    arguments, _, _ = json.loads(base64.b64decode(message["body"]) if encoded else message["body"])
    runs = [arguments[1:]] if message["headers"]["task"] == RUN_TASK else arguments[1]
    return [(tenant, token) for tenant, token in runs]
