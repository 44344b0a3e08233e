"""The pool of connections to Postgres."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.errors import ConfigurationError
from taskbridge.store.address import UNREADABLE, parameters_of
from taskbridge.store.bounded import Bounded, of_the_socket, open_session
from taskbridge.store.lent import Lent
from taskbridge.store.queries import SCHEMA_OPTION
from taskbridge.store.sessions import Watched

__all__ = ["connect"]


class _Sessions(Watched, QueuePool):
    """The pool."""


def connect(
    url: str, schema: str = DEFAULT_SCHEMA, *, statement_timeout: float | None = None, **options: Any
) -> Engine:
    """Return an engine for `url`, with the tables in `schema`; nothing is connected before it is used.

    Any `postgresql://` or `postgres://` URL is taken, with psycopg as its driver. Further options go to
    `sqlalchemy.create_engine`. An error's text has no parameters, for these are documents.

    Args:
        url: where Postgres is; its own parameters win, a statement_timeout among its `options` too.
        schema: the Postgres schema of the tables.
        statement_timeout: seconds for each statement; None: any time.
        options: of `sqlalchemy.create_engine`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise ConfigurationError(*UNREADABLE) from None
    engine = create_engine(
        parsed,
        # As many connections as there are threads that work, however many the pool of the worker has.
        max_overflow=-1,
        connect_args=of_the_socket(parsed.query, statement_timeout),
        hide_parameters=True,
        execution_options={SCHEMA_OPTION: schema},
        poolclass=_Sessions,
        **options,
    )

    # SQLAlchemy before 2.1 reads some URLs differently from those who only look.
    address = parameters_of(url)

    def open_one(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Bounded:
        return open_session(statement_timeout, *arguments, **{**parameters, **address})

    def lend(connection: Any, _record: Any, _proxy: Any) -> None:
        pool = engine.pool
        if not (isinstance(pool, Watched) and isinstance(connection, Bounded)):
            return
        if connection.opened <= pool.distrusted or connection.ended:
            raise DisconnectionError  # the pool closes it and opens another

    event.listen(engine, "do_connect", open_one)
    event.listen(engine, "checkout", lend)
    event.listen(engine, "checkin", _close_lent)
    return engine


def _close_lent(connection: Any, record: Any) -> None:
    """Close a session that its handler gave back to the pool: nobody has reset it."""
    if isinstance(connection, Lent):
        record.invalidate()
