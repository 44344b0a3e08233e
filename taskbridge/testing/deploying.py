"""A deployment of one test: a key prefix of its own, of which nothing is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from celery import Celery

from taskbridge.integration.installation import fit, renew
from taskbridge.process.runtime import Runtime, afresh, runtime_of
from taskbridge.process.translation import translated_errors
from taskbridge.testing.clock import inject_clock

__all__ = ["own_deployment"]


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
                # Queues have the prefix in the middle of their names.
                if left := list(runtime.redis.scan_iter(f"*{prefix}*")):
                    runtime.redis.delete(*left)
    finally:
        app.conf.task_routes = routes
        renew(app)
