"""A deployment of one test: a key prefix of its own, of which nothing is left."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from unittest import mock

from celery import Celery
from kombu.exceptions import OperationalError

from taskbridge.common.server_errors import translated_errors
from taskbridge.gate.keys import beginning
from taskbridge.gate.scripts import SCRIPTS
from taskbridge.integration.installation import apply_config, reset_app
from taskbridge.process.runtime import Runtime, new_runtimes, runtime_of
from taskbridge.testing.clock import inject_clock

__all__ = ["delete_keys", "own_deployment"]


_KINDS: Final = frozenset(kind for script in SCRIPTS.values() for kind in (*script.keys, *script.keys_of_each)) - {
    "queue",
    "first",
    "next",
    "taken",
}
"""The kinds of keys that scripts use. What `take` keeps expires after seconds; the others are queues."""


def delete_keys(runtime: Runtime) -> None:
    """Delete what a test left in Redis, and its queues. What remains of idle tenants expires with their delays."""
    keys, left = runtime.keys, {runtime.keys.clock}
    for name in runtime.pipelines.names():
        active = runtime.gate.active(name)
        for kind in _KINDS:
            key, of_a_tenant = beginning(keys, kind, name)
            left.update([key + tenant for tenant in active] if of_a_tenant else [key])
    runtime.redis.delete(*left)
    with suppress(OSError, OperationalError):
        runtime.delete_queues()


@contextmanager
def own_deployment(app: Celery, **variables: str) -> Iterator[Runtime]:
    """Let this process work with these variables, and under a key prefix of its own, while the block lasts.

    The gate's clock stands still, and only runs move it. With Celery's `task_always_eager` too, runs wait for the test.
    At the end `delete_keys` deletes what is under that prefix, and the app has its routes back.

    Raises:
        Unavailable: a server does not answer.
    """
    prefix = f"test-{secrets.token_hex(6)}"
    routes = app.conf.task_routes
    try:
        with (
            mock.patch.dict(os.environ, {**variables, "TASKBRIDGE_KEY_PREFIX": prefix}),
            mock.patch.object(Runtime, "runs_by_hand", True),
            new_runtimes(),
        ):
            with translated_errors():
                runtime = runtime_of(app)
                reset_app(app)
                apply_config(app)
                inject_clock(runtime)
            try:
                yield runtime
            finally:
                delete_keys(runtime)
    finally:
        app.conf.task_routes = routes
        reset_app(app)
