"""The fixtures of the tests, for those that hold the gate against the model."""

from tests.conftest import keys, redis_client, servers

__all__ = ["keys", "redis_client", "servers"]
