"""In Django's tests TaskBridge uses the test's database, and a key prefix of the test's own.

Django renames a database while the process runs: it makes the test database, copies it for each process of `manage.py
test --parallel`, and drops it. Postgres neither copies nor drops a database while somebody is connected to it.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from multiprocessing.util import Finalize
from typing import Any, Final

import redis
from django.conf import settings
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created

from taskbridge.django.configuration import NAMES, POSTGRES, alias_of_handlers, alias_of_postgres, is_of_a_test, url_of
from taskbridge.errors import ConfigurationError, TaskBridgeError
from taskbridge.gate import hurry
from taskbridge.process.runtime import BEFORE_USE, reread, runtimes
from taskbridge.settings import Settings

__all__ = ["check_no_project_in_a_test", "follow", "variables_of_a_test"]

log = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""How long Redis may take to delete what tests left there."""
_PREFIX: Final = "TASKBRIDGE_KEY_PREFIX"
_OF_THE_PROJECT: Final[dict[str, set[str]]] = {POSTGRES: set(), _PREFIX: set()}
"""The values that the environment and Django's settings had when the project was loaded."""


class _Current:
    """The database that this process uses now."""

    name: object = None
    prefix = ""
    """The key prefix of a test's database: a new one each time, so that nothing that is left in Redis matters."""


def follow() -> None:
    """Go along with the database of handlers from now on."""
    for name, texts in _OF_THE_PROJECT.items():
        texts.update(str(text) for text in (os.environ.get(name), getattr(settings, name, None)) if text)
    alias = alias_of_postgres()
    if alias is not None:
        _Current.name = NAMES[alias]
        BEFORE_USE.append(_follow_name)
        connection_created.connect(_leave_databases)


def _leave_databases(connection: Any, **_: Any) -> None:
    """Close TaskBridge's sessions if Django connects to no database, as it does to make, copy or drop one."""
    if connection.alias == NO_DB_ALIAS:
        _delete_keys()
        reread()


def _follow_name() -> None:
    """Read the settings again if Django has renamed the database."""
    alias = alias_of_handlers()
    name = None if alias is None else connections.settings.get(alias, {}).get("NAME")
    if name == _Current.name:
        return
    _delete_keys()
    reread()
    _Current.name, _Current.prefix = name, f"test-{secrets.token_hex(6)}"
    from taskbridge.integration.installation import renew_all  # noqa: PLC0415 - imports Celery

    renew_all()
    # Unlike `atexit`, this is called too where a process of `--parallel` ends.
    Finalize(None, _delete_keys, exitpriority=1)


def _delete_keys() -> None:
    """Delete what the tests of this process left in Redis."""
    from taskbridge.testing.deploying import delete_keys  # noqa: PLC0415 - for tests alone

    for runtime in runtimes():
        has_used_redis = not {"redis", "event_redis"}.isdisjoint(vars(runtime))
        if runtime.settings.key_prefix == _Current.prefix and has_used_redis:
            try:
                with hurry(SECONDS):
                    delete_keys(runtime)
            except (redis.RedisError, TaskBridgeError):
                log.debug("what tests left in Redis is not deleted", exc_info=True)


def variables_of_a_test() -> dict[str, str]:
    """Return the URL of the database that Django has made for its tests, and a key prefix of its own; else nothing.

    The project's own may be in the environment: they are not for tests. What a test has set stays.
    """
    _follow_name()
    alias = alias_of_postgres()
    if alias is None or not is_of_a_test(alias):
        return {}
    own = {POSTGRES: url_of(alias), _PREFIX: _Current.prefix}
    return {name: text for name, text in own.items() if _is_of_the_project(name)}


def _is_of_the_project(name: str) -> bool:
    """Whether what a variable says now, if anything, is what it said when the project was loaded."""
    given = os.environ.get(name) or getattr(settings, name, None)
    return not given or str(given) in _OF_THE_PROJECT[name]


def check_no_project_in_a_test(configured: Settings) -> None:
    """See that a test for which Django has made no database writes neither into the project's own nor into its Redis.

    Django keeps its own connections from it in such a test.

    Raises:
        ConfigurationError: it would.
    """
    mail = sys.modules.get("django.core.mail")
    alias = alias_of_postgres()
    # Django's test environment, which pytest-django sets up too, has this.
    if alias is None or not hasattr(mail, "outbox") or is_of_a_test(alias):
        return
    if configured.postgres_url in {url_of(alias), *_OF_THE_PROJECT[POSTGRES]}:
        raise ConfigurationError(
            "this is a test for which Django has made no database, so records and events would be the project's own",
            f"take a TestCase or a TransactionTestCase with {alias!r} among its `databases`, or mark the test as "
            "`django_db`",
        )
