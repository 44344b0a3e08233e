"""Servers that are too old are refused by name and version, with the remedy."""

from __future__ import annotations

import pytest
import redis
from sqlalchemy import Engine

from taskbridge import store
from taskbridge.errors import Unavailable
from taskbridge.gate import Gate, Keys


def test_a_postgres_that_is_too_old_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store.check_version(engine)
    monkeypatch.setattr("taskbridge.store.db.OLDEST_POSTGRES", 99)
    with pytest.raises(Unavailable, match=r"PostgreSQL \d+ is too old: upgrade it to 99 or newer"):
        store.check_version(engine)


def test_a_redis_that_is_too_old_is_refused(
    redis_client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = Gate(redis_client, keys, publish=lambda *_: None)
    face.check_version()
    monkeypatch.setattr("taskbridge.gate.inspector.OLDEST_REDIS", (99, 1))
    with pytest.raises(Unavailable, match=r"Redis [\d.]+ is too old: upgrade it to 99.1 or newer"):
        face.check_version()
