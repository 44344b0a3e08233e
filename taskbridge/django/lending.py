"""A SQLAlchemy connection on Django's session, for what must happen in a transaction of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from sqlalchemy import Connection, StaticPool, create_engine

from taskbridge.store.lent import View
from taskbridge.store.queries import SCHEMA_OPTION

__all__ = ["lent"]


class _Lent(View):
    """A view of Django's session that neither begins nor ends Django's transaction."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def lent(alias: str, schema: str) -> Iterator[Connection]:
    """Yield a SQLAlchemy connection on Django's session, with our tables in `schema`."""
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
