"""The app of TaskBridge, for a worker that answers no questions."""

from __future__ import annotations

from taskbridge.integration.app import app

__all__ = ["app"]

app.conf.worker_enable_remote_control = False
