"""TaskBridge's settings in a Django project: those of Django that are called TASKBRIDGE_..., and what others imply.

The environment wins over them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from taskbridge.errors import ConfigurationError
from taskbridge.settings import Settings
from taskbridge.store.db import parameters_of
from taskbridge.store.queries import query

__all__ = [
    "ALIAS",
    "NAMES",
    "alias_of_handlers",
    "check_no_project_in_a_test",
    "check_one_database",
    "has_other_isolation",
    "is_of_a_test",
    "note_names",
    "prefix_of_a_test",
    "url_of",
    "variables",
    "variables_of_a_test",
]

ALIAS: Final = "TASKBRIDGE_DATABASE"
"""Django's alias of the database in which handlers write; None: none, and their ORM has connections of its own."""
_NOT_LIBPQ: Final = ("context", "cursor_factory", "prepare_threshold", "row_factory", "autocommit", "client_encoding")
_REDIS: Final = ("redis://", "rediss://")
_NEEDS_BACKSLASH: Final = re.compile(r"[\s\\]")
_BACKSLASH: Final = r"\\\g<0>"
_READ_COMMITTED: Final = psycopg.IsolationLevel.READ_COMMITTED
_CONNECT_SECONDS: Final = 5
NAMES: Final[dict[str, object]] = {}
"""What the databases are called when the project is loaded: by then no test has given them other names."""
URL: Final = "TASKBRIDGE_POSTGRES_URL"
PREFIX: Final = "TASKBRIDGE_KEY_PREFIX"
_OF_THE_PROJECT: Final[dict[str, set[str]]] = {URL: set(), PREFIX: set()}
"""What the environment and Django's settings said at that time that these are."""


def alias_of_handlers() -> str | None:
    """Return Django's alias of the database in which handlers write."""
    found: str | None = getattr(settings, ALIAS, DEFAULT_DB_ALIAS)
    return found


def has_other_isolation(wrapper: Any) -> bool:
    """Whether a database of Django's has another isolation level than the transaction of a batch."""
    given: object = wrapper.settings_dict["OPTIONS"].get("isolation_level", _READ_COMMITTED)
    return given != _READ_COMMITTED


def note_names() -> None:
    """Note what the databases are called."""
    # A backend is not loaded for it: one of others may lack its driver.
    NAMES.update({alias: one["NAME"] for alias, one in connections.settings.items()})
    for name, texts in _OF_THE_PROJECT.items():
        texts.update(str(text) for text in (os.environ.get(name), getattr(settings, name, None)) if text)


def is_of_a_test(alias: str) -> bool:
    """Whether a test has given the database another name than the project's."""
    return bool(NAMES.get(alias) != connections[alias].settings_dict["NAME"])


def variables_of_a_test() -> dict[str, str]:
    """Return the URL of the database that Django has made for its tests, and a key prefix of its own; else nothing.

    The project's own may be in the environment: they are not for tests. What a test has set stays.
    """
    alias = _alias_of_postgres()
    if alias is None or not is_of_a_test(alias):
        return {}
    own = {URL: url_of(alias), PREFIX: prefix_of_a_test(alias, connections[alias].settings_dict["NAME"])}
    return {name: text for name, text in own.items() if _is_of_the_project(name)}


def _is_of_the_project(name: str) -> bool:
    """Whether what a variable says now, if anything, is what it said when the project was loaded."""
    given = os.environ.get(name) or getattr(settings, name, None)
    return not given or str(given) in _OF_THE_PROJECT[name]


def prefix_of_a_test(alias: str, name: str) -> str:
    """Return the key prefix of the test's database of that name, the same in each process."""
    where = connections[alias].settings_dict
    return f"test-{hashlib.sha256(repr((where['HOST'], where['PORT'], name)).encode()).hexdigest()[:12]}"


def check_no_project_in_a_test(configured: Settings) -> None:
    """See that a test for which Django has made no database writes neither into the project's own nor into its Redis.

    Django keeps its own connections from it in such a test.

    Raises:
        ConfigurationError: it would.
    """
    mail = sys.modules.get("django.core.mail")
    alias = _alias_of_postgres()
    # Django's test environment, which pytest-django sets up too, has this.
    if alias is None or not hasattr(mail, "outbox") or is_of_a_test(alias):
        return
    if configured.postgres_url in {url_of(alias), *_OF_THE_PROJECT[URL]}:
        raise ConfigurationError(
            "this is a test for which Django has made no database, so records and events would be the project's own",
            f"take a TestCase or a TransactionTestCase with {alias!r} among its `databases`, or mark the test as "
            "`django_db`",
        )


def _alias_of_postgres() -> str | None:
    """Return the alias of handlers, where that is a database of PostgreSQL."""
    alias = alias_of_handlers()
    is_postgres = alias is not None and alias in connections and connections[alias].vendor == "postgresql"
    return alias if is_postgres else None


def check_one_database(configured: Settings) -> None:
    """See that records and what handlers write are in one database: TASKBRIDGE_POSTGRES_URL may name another.

    Raises:
        ConfigurationError: they are not, so nothing that Django writes would be seen.
        psycopg.Error: one of them cannot be reached.
    """
    alias = _alias_of_postgres()
    if alias is None:
        return
    urls, names = (configured.postgres_url, url_of(alias)), (NAMES.get(alias), connections[alias].settings_dict["NAME"])
    # Who gave an app settings of its own, as a test does, chose the database.
    if not urls[0] or urls[0] == urls[1] or urls[0] != Settings.read().postgres_url:
        return
    if names[0] != names[1]:
        # A test made a database for itself, and TASKBRIDGE_POSTGRES_URL names that of the project.
        name = parameters_of(urls[0]).get("dbname", "")
        records, own = ("", str(name)), ("", str(name if name in names else names[1]))
    else:
        records, own = map(_where, urls)
    if records != own:
        raise ConfigurationError(
            f"TASKBRIDGE_POSTGRES_URL names another database ({records[1]}) than DATABASES[{alias!r}] ({own[1]}), so "
            "nothing that Django writes would be seen",
            "unset TASKBRIDGE_POSTGRES_URL, or let both name one database",
        )


def _where(url: str) -> tuple[str, str]:
    """Return the cluster and the name of a database."""
    given: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, **parameters_of(url)}
    with psycopg.connect(**given) as session:
        cluster, name, _ = session.execute(query("where_connected")).fetchone() or ("", "", "")
        return cluster, name


def variables() -> dict[str, str]:
    """Return what Django's settings say, as the variables of an environment.

    Raises:
        ConfigurationError: the alias of handlers is none.
    """
    found = {}
    alias = alias_of_handlers()
    if alias is not None and alias not in connections:
        there = ", ".join(connections)
        raise ConfigurationError(f"{ALIAS} is {alias!r}, which is not in DATABASES", f"name one of {there}")
    if alias is not None and connections[alias].vendor == "postgresql":
        found["TASKBRIDGE_POSTGRES_URL"] = url_of(alias)
    broker = getattr(settings, "CELERY_BROKER_URL", None)
    if isinstance(broker, str) and broker:
        found["TASKBRIDGE_BROKER_URL"] = broker
        if broker.startswith(_REDIS):
            found["TASKBRIDGE_REDIS_URL"] = broker
    if modules := _modules():
        found["TASKBRIDGE_PIPELINES"] = ",".join(modules)
    for name in dir(settings):
        if name.startswith("TASKBRIDGE_") and name != ALIAS and (value := getattr(settings, name)) is not None:
            found[name] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _modules() -> list[str]:
    """Return the modules `pipelines` of the project's apps."""
    names = [f"{one.name}.pipelines" for one in apps.get_app_configs()]
    return [name for name in names if find_spec(name) is not None]


def url_of(alias: str) -> str:
    """Return the URL of a database of Django's, which in its tests is that of the test."""
    wrapper: Any = connections[alias]
    given = wrapper.get_connection_params()
    parts = {name: str(value) for name, value in given.items() if name not in _NOT_LIBPQ and value is not None}
    if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
        # Django sets it after it has connected. So does Postgres, for whoever has the URL.
        parts["options"] = f"{parts.get('options', '')} -c role={_NEEDS_BACKSLASH.sub(_BACKSLASH, role)}".strip()
    user, password = (quote(parts.pop(name, ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    name = quote(parts.pop("dbname", ""), safe="")
    return f"postgresql://{login}/{name}" + (f"?{urlencode(parts, quote_via=quote)}" if parts else "")
