"""Django's session as a connection of SQLAlchemy's: for what has to be in a transaction of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from sqlalchemy import Connection, StaticPool, create_engine

from taskbridge.store.checkout import View
from taskbridge.store.queries import SCHEMA_OPTION

__all__ = ["lent"]


class _Lent(View):
    """A second face of Django's session, which is in a transaction of Django's: nothing else begins or ends that."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def lent(alias: str, schema: str) -> Iterator[Connection]:
    """Lend SQLAlchemy's connection on the session of Django's, with our tables in `schema`."""
    wrapper: Any = connections[alias]
    options = {SCHEMA_OPTION: schema}
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _Lent(wrapper.connection),
        poolclass=StaticPool,
        execution_options=options,
        # Else SQLAlchemy would look for types of extensions, which begins with a rollback.
        use_native_hstore=False,
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()
