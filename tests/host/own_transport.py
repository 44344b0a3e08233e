"""The app of TaskBridge, for a worker that keeps kombu's transport."""

from __future__ import annotations

from taskbridge.integration.app import app

__all__ = ["app"]

app.conf.broker_transport_options = {**app.conf.broker_transport_options, "ack_emulation": False}
