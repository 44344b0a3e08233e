"""The pool of connections to Postgres."""

from __future__ import annotations

import json
from typing import Any, Final

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from taskbridge.errors import ConfigurationError, Unavailable

_DECODER: Final = json.JSONDecoder()

__all__ = ["OLDEST_POSTGRES", "check_version", "connect"]

OLDEST_POSTGRES: Final = 15
"""The oldest major version that the tests ran on, and the oldest that its makers still mend."""


def connect(url: str, **options: Any) -> Engine:
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
        # As many connections as there are threads that work, however many the pool of the worker has.
        max_overflow=-1,
        connect_args={"application_name": "taskbridge", "connect_timeout": 5},
        json_deserializer=_document,
        **options,
    )


def _document(text: bytes) -> Any:
    """Read JSON as Postgres writes it: UTF-8 and without space around it, which `json.loads` would look for first."""
    return _DECODER.raw_decode(text.decode())[0]


def check_version(engine: Engine) -> None:
    """Raise Unavailable, with the remedy, where the server is older than PostgreSQL 15."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    if int(found) // 10_000 < OLDEST_POSTGRES:
        raise Unavailable(f"PostgreSQL {int(found) // 10_000} is too old: upgrade it to {OLDEST_POSTGRES} or newer")
