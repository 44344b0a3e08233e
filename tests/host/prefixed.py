"""The app of TaskBridge, for a worker whose broker's keys have a prefix."""

from __future__ import annotations

from taskbridge.integration.app import app

__all__ = ["app"]

app.conf.broker_transport_options = {**app.conf.broker_transport_options, "global_keyprefix": "shop-"}
