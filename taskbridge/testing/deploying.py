"""A deployment of one test: a key prefix of its own, of which nothing is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from celery import Celery
from redis import Redis

from taskbridge.common.server_errors import translated_errors
from taskbridge.integration.installation import fit, renew
from taskbridge.process.runtime import Runtime, afresh, runtime_of
from taskbridge.testing.clock import inject_clock

__all__ = ["delete_keys", "own_deployment"]


def delete_keys(redis: Redis, prefix: str) -> None:
    """Delete all keys that name the prefix: queues have it in the middle of their names."""
    if left := list(redis.scan_iter(f"*{prefix}*", count=1_000)):
        redis.delete(*left)


@contextmanager
def own_deployment(app: Celery, **variables: str) -> Iterator[Runtime]:
    """Let this process work with these variables, and under a key prefix of its own, while the block lasts.

    The gate's clock stands still, and only runs move it. With Celery's `task_always_eager` too, runs wait for the test.
    At the end all keys in Redis that name the prefix are deleted, whichever app made them, and the app has its routes
    back.

    Raises:
        Unavailable: a server does not answer.
    """
    prefix = f"test-{secrets.token_hex(6)}"
    routes = app.conf.task_routes
    try:
        with (
            mock.patch.dict(os.environ, {**variables, "TASKBRIDGE_KEY_PREFIX": prefix}),
            mock.patch.object(Runtime, "runs_by_hand", True),
            afresh(),
        ):
            with translated_errors():
                runtime = runtime_of(app)
                renew(app)
                fit(app)
                inject_clock(runtime)
            try:
                yield runtime
            finally:
                delete_keys(runtime.redis, prefix)
    finally:
        app.conf.task_routes = routes
        renew(app)
