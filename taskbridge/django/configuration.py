"""TaskBridge's settings in a Django project: Django settings named TASKBRIDGE_*, and defaults from other settings.

Environment variables take precedence.
"""

from __future__ import annotations

import re
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
    "POSTGRES",
    "alias_of_handlers",
    "alias_of_postgres",
    "check_alias",
    "check_one_database",
    "defaults",
    "is_of_a_test",
    "url_of",
    "variables",
]

ALIAS: Final = "TASKBRIDGE_DATABASE"
"""The alias of the database that handlers write to; None: handlers use the ORM's own connections."""
_NOT_LIBPQ: Final = ("context", "cursor_factory", "prepare_threshold", "row_factory", "autocommit", "client_encoding")
_REDIS: Final = ("redis://", "rediss://")
_NEEDS_BACKSLASH: Final = re.compile(r"[\s\\]")
_BACKSLASH: Final = r"\\\g<0>"
_CONNECT_SECONDS: Final = 5
NAMES: Final[dict[str, object]] = {}
"""The names of the databases when the project was loaded, before tests renamed them."""
POSTGRES: Final = "TASKBRIDGE_POSTGRES_URL"


def alias_of_handlers() -> str | None:
    """Return the alias of the database that handlers write to."""
    found: str | None = getattr(settings, ALIAS, DEFAULT_DB_ALIAS)
    return found


def is_of_a_test(alias: str) -> bool:
    """Whether a test has renamed the database."""
    return bool(NAMES.get(alias) != connections[alias].settings_dict["NAME"])


def alias_of_postgres() -> str | None:
    """Return the alias that handlers write to, if it is a PostgreSQL database."""
    alias = alias_of_handlers()
    is_postgres = alias is not None and alias in connections and connections[alias].vendor == "postgresql"
    return alias if is_postgres else None


def check_one_database(configured: Settings) -> None:
    """Check that TASKBRIDGE_POSTGRES_URL, if set, names the database that handlers write to.

    Raises:
        ConfigurationError: it names another one, so TaskBridge would not see what Django writes.
        psycopg.Error: a database cannot be reached.
    """
    alias = alias_of_postgres()
    if alias is None:
        return
    urls = configured.postgres_url, url_of(alias)
    # An app with its own settings, as in a test, has chosen its database.
    if not urls[0] or urls[0] == urls[1] or urls[0] != Settings.read().postgres_url:
        return
    records, own = map(_where, urls)
    if records != own:
        raise ConfigurationError(
            f"TASKBRIDGE_POSTGRES_URL names another database ({records[1]}) than DATABASES[{alias!r}] ({own[1]}), so "
            "TaskBridge would not see what Django writes",
            "unset TASKBRIDGE_POSTGRES_URL, or use the same database in both",
        )


def _where(url: str) -> tuple[str, str]:
    """Return the cluster and the name of a database."""
    given: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, **parameters_of(url)}
    with psycopg.connect(**given) as session:
        cluster, name = session.execute(query("where_connected")).fetchone() or ("", "")
        return cluster, name


def check_alias() -> None:
    """Check the alias of the database that handlers write to.

    Raises:
        ConfigurationError: it is not in DATABASES, or not that of a PostgreSQL database.
    """
    alias = alias_of_handlers()
    if alias is not None and alias not in connections:
        raise ConfigurationError(
            f"{ALIAS} is {alias!r}, which is not in DATABASES", f"use one of {', '.join(connections)}"
        )
    if alias is not None and connections[alias].vendor != "postgresql":
        raise ConfigurationError(
            f"the database {alias!r} is {connections[alias].display_name}",
            f"set {ALIAS} to the alias of a PostgreSQL database, or to None and set {POSTGRES}",
        )


def defaults() -> dict[str, str]:
    """Return the variables with the URLs that DATABASES and CELERY_BROKER_URL name."""
    found = {}
    if postgres := alias_of_postgres():
        found[POSTGRES] = url_of(postgres)
    broker = getattr(settings, "CELERY_BROKER_URL", None)
    if isinstance(broker, str) and broker:
        found["TASKBRIDGE_BROKER_URL"] = broker
        if broker.startswith(_REDIS):
            found["TASKBRIDGE_REDIS_URL"] = broker
    return found


def variables() -> dict[str, str]:
    """Return Django's settings as environment variables.

    Raises:
        ConfigurationError: as `check_alias`.
    """
    check_alias()
    found = defaults()
    modules = (f"{app.name}.pipelines" for app in apps.get_app_configs())
    if there := [name for name in modules if find_spec(name) is not None]:
        found["TASKBRIDGE_PIPELINES"] = ",".join(there)
    for name in dir(settings):
        if name.startswith("TASKBRIDGE_") and name != ALIAS and (value := getattr(settings, name)) is not None:
            found[name] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def url_of(alias: str) -> str:
    """Return the URL of a Django database; in tests, that of the test database."""
    wrapper: Any = connections[alias]
    given = wrapper.get_connection_params()
    parts = {name: str(value) for name, value in given.items() if name not in _NOT_LIBPQ and value is not None}
    if role := wrapper.settings_dict["OPTIONS"].get("assume_role"):
        # Django sets the role after connecting; with this option, Postgres does the same for any client.
        parts["options"] = f"{parts.get('options', '')} -c role={_NEEDS_BACKSLASH.sub(_BACKSLASH, role)}".strip()
    user, password = (quote(parts.pop(name, ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    name = quote(parts.pop("dbname", ""), safe="")
    return f"postgresql://{login}/{name}" + (f"?{urlencode(parts, quote_via=quote)}" if parts else "")
