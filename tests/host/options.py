"""The app of TaskBridge, for a worker with other options of its broker, and timers of kombu that do not wait."""

from __future__ import annotations

import json
import os

from kombu.transport import redis

from taskbridge.integration.app import app

__all__ = ["app"]

app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    **json.loads(os.environ["TEST_BROKER_OPTIONS"]),
}
redis.BINDING_SWEEP_INTERVAL = 1  # type: ignore[attr-defined]
