"""The app of TaskBridge, for a worker in which what kombu does now and then comes every second."""

from __future__ import annotations

from kombu.transport import redis

from taskbridge.integration.app import app

__all__ = ["app"]

app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    "health_check_interval": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
redis.BINDING_SWEEP_INTERVAL = 1  # type: ignore[attr-defined]
