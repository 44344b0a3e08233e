"""The app of TaskBridge, for a worker whose broker has priorities and none of them is 0."""

from __future__ import annotations

from taskbridge.integration.app import app

__all__ = ["OPTIONS", "app"]

OPTIONS = {"priority_steps": [1, 5, 9], "queue_order_strategy": "priority"}

app.conf.broker_transport_options = {**app.conf.broker_transport_options, **OPTIONS}
