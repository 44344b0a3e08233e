"""Tenants at a gate of each test's own."""

from __future__ import annotations

import pytest
import redis

from taskbridge.gate import Keys
from tests.gate.crowd import Crowd


@pytest.fixture
def crowd(redis_client: redis.Redis, keys: Keys) -> Crowd:
    return Crowd(redis_client, keys)
