"""Use Django's sessions from SQLAlchemy, and close them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from sqlalchemy import Connection, StaticPool, create_engine

from taskbridge.store.checkout import View
from taskbridge.store.queries import SCHEMA_OPTION

__all__ = ["disconnect", "sqlalchemy_connection"]


class _DjangoSession(View):
    """A view of Django's session that neither begins nor ends Django's transaction."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def sqlalchemy_connection(alias: str, schema: str) -> Iterator[Connection]:
    """Yield a SQLAlchemy connection in Django's current transaction, with our tables in `schema`."""
    wrapper: Any = connections[alias]
    options = {SCHEMA_OPTION: schema}
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _DjangoSession(wrapper.connection),
        poolclass=StaticPool,
        execution_options=options,
        # Otherwise SQLAlchemy would look for extension types, starting with a rollback.
        use_native_hstore=False,
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def disconnect(wrapper: Any) -> None:
    """Close a Django connection, unless a transaction is open. With `OPTIONS["pool"]`, its pool is closed, too.

    A pool would keep sessions as they are, and forked processes would share their sockets. The next use reconnects.
    """
    if wrapper.in_atomic_block:
        return
    wrapper.close()
    if close_pool := getattr(wrapper, "close_pool", None):
        close_pool()
