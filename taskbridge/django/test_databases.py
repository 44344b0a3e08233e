"""In Django's tests, TaskBridge uses the test database and its own key prefix.

Django renames databases while the process is running: it creates the test database, copies it for each process of
`manage.py test --parallel`, and drops it. Postgres cannot copy or drop a database with open sessions.
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
from taskbridge.gate import deadline
from taskbridge.process.runtime import BEFORE_USE, reset_runtimes, runtimes
from taskbridge.settings import Settings

__all__ = ["check_no_project_in_a_test", "follow", "variables_of_a_test"]

log = logging.getLogger(__name__)

SECONDS: Final = 5.0
"""How long deleting the keys of a test may take."""
_PREFIX: Final = "TASKBRIDGE_KEY_PREFIX"
_OF_THE_PROJECT: Final[dict[str, set[str]]] = {POSTGRES: set(), _PREFIX: set()}
"""The values in the environment and in Django's settings when the project was loaded."""


class _Current:
    """The database that this process currently uses."""

    name: object = None
    prefix = ""
    """The key prefix for a test database, always a new one, so that old keys in Redis do not matter."""


def follow() -> None:
    """Remember the names of the databases, and keep track of the one that handlers write to."""
    # Do not load the backends: a driver may be missing.
    NAMES.update({alias: database["NAME"] for alias, database in connections.settings.items()})
    for name, texts in _OF_THE_PROJECT.items():
        texts.update(str(text) for text in (os.environ.get(name), getattr(settings, name, None)) if text)
    alias = alias_of_postgres()
    if alias is not None:
        _Current.name = NAMES[alias]
        BEFORE_USE.append(_follow_name)
        connection_created.connect(_leave_databases)


def _leave_databases(connection: Any, **_: Any) -> None:
    """Close TaskBridge's sessions when Django connects without a database, to create, copy or drop one."""
    if connection.alias == NO_DB_ALIAS:
        _delete_keys()
        reset_runtimes()


def _follow_name() -> None:
    """Read the settings again if Django has renamed the database."""
    alias = alias_of_handlers()
    name = None if alias is None else connections.settings.get(alias, {}).get("NAME")
    if name == _Current.name:
        return
    _delete_keys()
    reset_runtimes()
    _Current.name, _Current.prefix = name, f"test-{secrets.token_hex(6)}"
    from taskbridge.integration.installation import reset_all  # noqa: PLC0415 - imports Celery

    reset_all()
    # Unlike `atexit`, this also runs when a `--parallel` process ends.
    Finalize(None, _delete_keys, exitpriority=1)


def _delete_keys() -> None:
    """Delete the keys that this process's tests have left in Redis."""
    from taskbridge.testing.deploying import delete_keys  # noqa: PLC0415 - for tests alone

    for runtime in runtimes():
        has_used_redis = not {"redis", "event_redis"}.isdisjoint(vars(runtime))
        if runtime.settings.key_prefix == _Current.prefix and has_used_redis:
            try:
                with deadline(SECONDS):
                    delete_keys(runtime)
            except (redis.RedisError, TaskBridgeError):
                log.debug("the keys of tests in Redis could not be deleted", exc_info=True)


def variables_of_a_test() -> dict[str, str]:
    """Return the URL of Django's test database and its key prefix; nothing outside tests.

    They override the project's own values in the environment, but not values that a test has set.
    """
    _follow_name()
    alias = alias_of_postgres()
    if alias is None or not is_of_a_test(alias):
        return {}
    own = {POSTGRES: url_of(alias), _PREFIX: _Current.prefix}
    return {name: text for name, text in own.items() if _is_of_the_project(name)}


def _is_of_the_project(name: str) -> bool:
    """Whether a variable is unset or still has the project's value."""
    given = os.environ.get(name) or getattr(settings, name, None)
    return not given or str(given) in _OF_THE_PROJECT[name]


def check_no_project_in_a_test(configured: Settings) -> None:
    """Check that a test without a test database does not use the project's own database and Redis.

    In such a test, Django blocks its own connections.

    Raises:
        ConfigurationError: it would use them.
    """
    mail = sys.modules.get("django.core.mail")
    alias = alias_of_postgres()
    # Django's test environment, which pytest-django also uses, sets this.
    if alias is None or not hasattr(mail, "outbox") or is_of_a_test(alias):
        return
    if configured.postgres_url in {url_of(alias), *_OF_THE_PROJECT[POSTGRES]}:
        raise ConfigurationError(
            "Django has not created a database for this test, so it would use the project's own database and Redis",
            f"use a TestCase or a TransactionTestCase with {alias!r} in its `databases`, or mark the test with "
            "`django_db`",
        )
