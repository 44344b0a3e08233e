"""An app whose process has a redis-py that kombu refuses: kombu goes by the number that redis-py tells of itself."""

from __future__ import annotations

import redis

from taskbridge.integration.app import app

__all__ = ["app"]

redis.VERSION, redis.__version__ = (3, 1, 0), "3.1.0"
