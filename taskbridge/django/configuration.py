"""TaskBridge's settings in a Django project: those of Django that are called TASKBRIDGE_..., and what others imply.

The environment wins over them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from taskbridge.errors import ConfigurationError

__all__ = ["ALIAS", "alias_of_handlers", "url_of", "variables"]

ALIAS: Final = "TASKBRIDGE_DATABASE"
"""Django's alias of the database in which handlers write; None: none, and their ORM has connections of its own."""
_NOT_LIBPQ: Final = ("context", "cursor_factory", "prepare_threshold", "row_factory", "autocommit", "client_encoding")
_REDIS: Final = ("redis://", "rediss://")


def alias_of_handlers() -> str | None:
    """Return Django's alias of the database in which handlers write."""
    found: str | None = getattr(settings, ALIAS, DEFAULT_DB_ALIAS)
    return found


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
    user, password = (quote(parts.pop(name, ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    name = quote(parts.pop("dbname", ""), safe="")
    return f"postgresql://{login}/{name}" + (f"?{urlencode(parts, quote_via=quote)}" if parts else "")
