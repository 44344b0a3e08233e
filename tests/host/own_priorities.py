"""The app of TaskBridge, for a worker whose broker has priorities and none of them is 0."""

from __future__ import annotations

from taskbridge.integration.app import app
from tests.host.priorities import OPTIONS

__all__ = ["app"]

app.conf.broker_transport_options = {**app.conf.broker_transport_options, **OPTIONS}
