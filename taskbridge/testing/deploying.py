"""A deployment for a single test, with its own key prefix, which is cleaned up."""

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
from taskbridge.integration.installation import apply, reset
from taskbridge.process.runtime import Runtime, new_runtimes, runtime_of
from taskbridge.testing.clock import inject_clock

__all__ = ["delete_keys", "own_deployment"]


_KINDS: Final = frozenset(kind for script in SCRIPTS.values() for kind in (*script.keys, *script.keys_of_each)) - {
    "queue",
    "first",
    "next",
    "taken",
}
"""The kinds of keys that scripts use, except queues and those that expire within seconds."""


def delete_keys(runtime: Runtime) -> None:
    """Delete a test's keys and queues from Redis. Keys of idle tenants expire with their delays."""
    keys, left = runtime.keys, {runtime.keys.clock}
    for name in runtime.pipelines.names():
        active = runtime.gate.active(name)
        for kind in _KINDS:
            key, of_a_tenant = beginning(keys, kind, name)
            left.update([key + tenant for tenant in active] if of_a_tenant else [key])
    runtime.redis.delete(*left)
    with suppress(OSError, OperationalError):
        if runtime.publishes_in_gate or runtime.publisher.is_connected:
            runtime.publisher.delete_queues()


@contextmanager
def own_deployment(app: Celery, **variables: str) -> Iterator[Runtime]:
    """During the block, make this process use these variables and its own key prefix.

    The gate's clock is frozen, and only runs advance it. Runs wait for the test, even with Celery's
    `task_always_eager`. At the end, `delete_keys` deletes the keys, and the app's routes are restored.

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
                reset(app)
                apply(app)
                inject_clock(runtime)
            try:
                yield runtime
            finally:
                delete_keys(runtime)
    finally:
        app.conf.task_routes = routes
        reset(app)
