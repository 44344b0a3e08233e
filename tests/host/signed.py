"""A shop whose app takes signed messages alone, and TaskBridge on it; as a program, one of its producers."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

import taskbridge

KEYS = Path(os.environ["SHOP_KEYS"])

app = Celery("signed", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    task_serializer="auth",
    result_serializer="auth",
    event_serializer="auth",
    accept_content=["auth"],
    task_ignore_result=True,
    security_key=str(KEYS / "key.pem"),
    security_certificate=str(KEYS / "certificate.pem"),
    security_cert_store=str(KEYS / "certificate.pem"),
)
if os.environ["SHOP_INSTALLS"] == "first":
    bridge = taskbridge.install(app)
    app.setup_security()
else:
    app.setup_security()
    bridge = taskbridge.install(app)


@app.task(name="signed.pay", shared=False)
def pay(whom: str) -> None:
    """Write down that it was called."""
    (KEYS / f"paid-{whom}").touch()


if __name__ == "__main__":
    pay.delay("signed")
    bridge.record_invoice("acme", "1", {"number": "1"})
    bridge.notify_event.delay("acme")
    bridge.notify_event.apply_async(("by-message",))
