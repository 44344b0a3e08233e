"""TaskBridge goes along where Django gives a database another name, as it does in tests, and leaves no session behind.

A test's database is made while the process runs, copied for each process of `manage.py test --parallel`, and dropped.
Whoever had settings or sessions before would write into the project's own database. Postgres neither copies nor drops
a database to which somebody is connected.

Each has a key prefix of its own. What is in Redis under it lives as long as the database: an earlier test run may have
been killed.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

import redis
from django.db import connections

from taskbridge.django.configuration import alias_of_handlers, prefix_of_a_test
from taskbridge.errors import TaskBridgeError
from taskbridge.gate import hurry
from taskbridge.process.light_runtime import redis_of
from taskbridge.process.runtime import reread
from taskbridge.settings import Settings

__all__ = ["follow"]

log = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""So long Redis has to delete what a test's database left in it."""
REST: Final = 60.0
"""For so many seconds a Redis that did not answer in time is not asked again."""
_silent_until: Final = dict[str, float]()
"""Until when (`time.monotonic`) the Redis of a URL is left alone."""


def follow() -> None:
    """Go along with the database of handlers. The others are left alone: the driver of one may not be installed."""
    alias = alias_of_handlers()
    if alias is not None and alias in connections:
        creation: Any = connections[alias].creation
        kind: Any = type(creation)
        creation.__class__ = _followed(kind)


class Followed:
    """What makes and drops a database of tests; `_followed` mixes it in."""

    connection: Any

    def create_test_db(self, *arguments: Any, **options: Any) -> Any:
        """Make it. Migrations may use it, and it is copied next."""
        reread()
        try:
            return super().create_test_db(*arguments, **options)  # type: ignore[misc]
        finally:
            reread()
            self._begin()

    def setup_worker_connection(self, *arguments: Any, **options: Any) -> Any:
        """Take the copy that is for this process."""
        reread()
        try:
            return super().setup_worker_connection(*arguments, **options)  # type: ignore[misc]
        finally:
            self._begin()

    def destroy_test_db(
        self,
        old_database_name: str | None = None,
        verbosity: int = 1,
        keepdb: bool = False,
        suffix: str | None = None,
    ) -> Any:
        """Drop it or a copy, and take the project's own again."""
        reread()
        of: Any = super()
        here = self.connection.settings_dict if suffix is None else of.get_test_db_clone_settings(suffix)
        _forget(prefix_of_a_test(self.connection.alias, here["NAME"]))
        try:
            return of.destroy_test_db(old_database_name, verbosity, keepdb, suffix)
        finally:
            _renew_apps()

    def _begin(self) -> None:
        _forget(prefix_of_a_test(self.connection.alias, self.connection.settings_dict["NAME"]))
        _renew_apps()


def _forget(prefix: str) -> None:
    """Delete what is under the prefix of a test's database, if Redis is there: that of the gate, and of the broker."""
    with suppress(TaskBridgeError):
        settings = Settings.read()
        for url in dict.fromkeys((settings.redis_url, settings.broker)):
            is_redis = url.startswith(("redis://", "rediss://"))
            if is_redis and _silent_until.get(url, 0.0) <= time.monotonic():
                _forget_there(replace(settings, redis_url=url), prefix)


def _forget_there(settings: Settings, prefix: str) -> None:
    from taskbridge.testing.deploying import delete_keys  # noqa: PLC0415 - for tests alone

    client = redis_of(settings, SECONDS)
    try:
        with hurry(SECONDS):
            delete_keys(client, prefix)
    except redis.TimeoutError:
        # Somebody waits for each database of the tests. Where Redis is silent, they wait once.
        _silent_until[settings.redis_url] = time.monotonic() + REST
    except redis.RedisError:
        log.debug("what an earlier test left in Redis is not deleted", exc_info=True)
    finally:
        client.close()


def _renew_apps() -> None:
    """Let the apps send to the queues of the prefix that is in force now."""
    from taskbridge.integration.installation import renew_all  # noqa: PLC0415 - for tests alone

    renew_all()


@cache
def _followed(of: type) -> type:
    """Return the class of a project's backend with `Followed`."""
    return type(f"Followed{of.__name__}", (Followed, of), {"__module__": of.__module__})
