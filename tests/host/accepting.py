"""A shop that accepts what the environment names and has the default serializer; as a program, a producer."""

from __future__ import annotations

import os

from celery import Celery

import taskbridge

app = Celery("accepting", broker=os.environ["SHOP_BROKER"])
app.conf.update(accept_content=os.environ["SHOP_ACCEPTS"].split(","), task_ignore_result=True)
bridge = taskbridge.install(app)

if __name__ == "__main__":
    bridge.record_invoice("acme", "1", {"number": "1"})
    bridge.notify_event.delay("acme")
    bridge.record_invoice("by-message", "1", {"number": "1"})
    bridge.notify_event.apply_async(("by-message",))
    app.tasks["taskbridge.record_event"].delay("log-alerts", {"level": "ERROR", "service": "by-record"}, "1")
