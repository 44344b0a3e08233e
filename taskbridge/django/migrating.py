"""`manage.py migrate` migrates TaskBridge's schema before the project's own migrations.

So it exists for migrations that adopt a table, even in a test database.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from taskbridge import store
from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import spoken
from taskbridge.django.configuration import alias_of_postgres, check_one_database, url_of
from taskbridge.django.sessions import disconnect
from taskbridge.errors import TaskBridgeError
from taskbridge.settings import Settings
from taskbridge.store.queries import query

__all__ = ["bring_up_to_date"]


def bring_up_to_date(using: str, verbosity: int = 1, **_: Any) -> None:
    """Migrate TaskBridge's schema before the migrations of a database, if handlers write to that database.

    Raises:
        CommandError: TaskBridge's schema cannot be migrated, or is configured to be in another database.
    """
    if using != alias_of_postgres():
        return
    try:
        with translated_errors():
            settings = Settings.read()
            check_one_database(settings)
            if verbosity >= 1:
                print("Bringing TaskBridge's schema up to date")  # noqa: T201 - as Django's own commands do
            engine = store.connect(url_of(using), settings.schema)
            try:
                store.check_version(engine)
                store.migrate(engine)
            finally:
                engine.dispose()
    except TaskBridgeError as error:
        raise CommandError(spoken(str(error))) from error
    # A role with the name of our schema would create the project's tables there, until it has a new session.
    wrapper = connections[using]
    with wrapper.cursor() as cursor:
        cursor.execute(query("own_schema_first"))
        is_in_ours = cursor.fetchone() is not None
    if is_in_ours:
        disconnect(wrapper)
