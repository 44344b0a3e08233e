"""Sessions of Postgres: lent for single statements, and named so that the run after one that froze can end its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store.engine import NoAnswer, distrust

__all__ = ["Broken", "driving", "session_name", "successor_of"]


class Broken(psycopg.OperationalError):
    """The connection broke, so that nothing is known of the statement."""


@contextmanager
def driving(engine: Engine) -> Iterator[psycopg.Connection[Any]]:
    """Lend a connection of the pool, each statement its own transaction. SQLAlchemy's share of a run's time is saved.

    Raises:
        Broken: the connection broke.
    """
    pooled = engine.raw_connection()
    driver: psycopg.Connection[Any] | None = pooled.driver_connection
    assert driver is not None  # noqa: S101 - for the type: a connection of the pool has its driver's
    try:
        driver.autocommit = True
        yield driver
        driver.autocommit = False
    except BaseException as error:
        broken = driver.broken
        # Nobody knows how it stands, so it must not go back to the pool.
        pooled.invalidate()
        if isinstance(error, NoAnswer):
            # A second try would take as long.
            distrust(engine)
        elif broken and isinstance(error, psycopg.OperationalError):
            raise Broken(*error.args) from error
        raise
    finally:
        pooled.close()


def session_name(key: RunKey) -> str:
    """Return what a session that may hold locks of a run is called: its tenant's part, and the token."""
    return f"{_tenant_name(key)} {key.token}"


def _tenant_name(key: RunKey) -> str:
    of_tenant = hashlib.sha256(json.dumps((key.pipeline, key.tenant)).encode()).hexdigest()
    return f"taskbridge {of_tenant[:16]}"


def successor_of(key: RunKey) -> dict[str, str]:
    """Return what a run asks for that ends the sessions of those that it replaced."""
    return {"session": session_name(key), "of_tenant": f"{_tenant_name(key)} %"}
