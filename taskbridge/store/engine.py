"""The pool of connections to Postgres."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from taskbridge.errors import ConfigurationError

__all__ = ["connect"]


def connect(url: str, *, pool_size: int = 5, **options: Any) -> Engine:
    """Return an engine for `url`; nothing is connected before it is used.

    Any `postgresql://` or `postgres://` URL is taken, with psycopg as its driver. Further options go to
    `sqlalchemy.create_engine`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "TASKBRIDGE_POSTGRES_URL cannot be read: write postgresql://user:password@host:port/database, "
            "with special characters percent-encoded"
        ) from None
    return create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={"application_name": "taskbridge", "connect_timeout": 5},
        **options,
    )
