"""`manage.py migrate` brings TaskBridge's schema up to date before the project's own migrations.

So a migration that adopts a table finds it, also in a test's database.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connections

from taskbridge import store
from taskbridge.django.configuration import alias_of_handlers, url_of
from taskbridge.settings import Settings
from taskbridge.store.address import parameters_of

__all__ = ["Migrating"]


class Migrating:
    """Made when the project is loaded: by then no test has given the databases other names."""

    def __init__(self) -> None:
        alias = alias_of_handlers()
        self._alias: Final = alias
        self._name: Final = None if alias is None else connections[alias].settings_dict["NAME"]

    def __call__(self, using: str, verbosity: int = 1, **_: Any) -> None:
        """Before the migrations of a database, if it is that of TaskBridge's tables."""
        settings = Settings.read()
        if using != self._alias or connections[using].vendor != "postgresql":
            return
        if parameters_of(settings.postgres_url).get("dbname") not in (
            self._name,
            connections[using].settings_dict["NAME"],
        ):
            return
        if verbosity >= 1:
            print("Bringing TaskBridge's schema up to date")  # noqa: T201 - as Django's own commands do
        engine = store.connect(url_of(using), settings.schema)
        try:
            store.check_version(engine)
            store.migrate(engine)
        finally:
            engine.dispose()
