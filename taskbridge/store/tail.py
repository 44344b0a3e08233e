"""How far all records of a pipeline have been looked at: T, which the tail moves, and B, which base rounds move.

Both are snapshots in Postgres and not in Redis: after a crash ids that were not flushed may be used again, and a T of
Redis would hide their rows. See `taskbridge.tail` for what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Engine

from taskbridge.errors import Unavailable
from taskbridge.store.cursor import Broken, Waiting, driving
from taskbridge.store.engine import distrust
from taskbridge.store.queries import queries

__all__ = ["Found", "Tails"]


class Found(NamedTuple):
    """What a round found: the tenants to remind, and what to store when that is done.

    `fresh`: there were records that the stored snapshot does not see, handled or not.
    """

    waiting: list[Waiting]
    seen: str
    before: str
    fresh: bool


class Tails:
    """T and B of the pipelines of one database.

    Args:
        engine: connections to it.
        patience: seconds that a round of the tail may take; a base round has thirty times as many.
    """

    def __init__(self, engine: Engine, patience: float = 1.0) -> None:
        self._engine = engine
        self._query = queries(engine)
        self._patience = patience
        # Closes its connection when nothing refers to it any more.
        self._listening: Any = None

    def news(self, pipeline: str, source: str, smallest: int, more_patience: float = 0.0) -> Found:
        """Return the tenants with records since T that no run has looked at. `smallest`: the delay of one without.

        It may take `more_patience` seconds longer than others.

        Raises:
            Unavailable: the server is a standby.
        """
        return self._look("tail_news", pipeline, source, smallest, self._patience + more_patience)

    def open(self, pipeline: str, source: str, smallest: int) -> Found:
        """Return the tenants with records that are pending, whoever has looked at them.

        Raises: as `news`.
        """
        return self._look("base_open", pipeline, source, smallest, 30 * self._patience)

    def keep_news(self, pipeline: str, found: Found) -> None:
        """Store what `news` saw, now that all its tenants were reminded."""
        self._keep("tail_keep", pipeline, found)

    def keep_open(self, pipeline: str, found: Found) -> None:
        """Store what `open` saw, now that all its tenants were reminded."""
        self._keep("base_keep", pipeline, found)

    def listen(self) -> psycopg.Connection[Any]:
        """Return a connection of its own on which `notifies` tells of commits that were announced."""
        pooled = self._engine.raw_connection()
        connection: psycopg.Connection[Any] | None = pooled.driver_connection
        assert connection is not None  # noqa: S101 - for the type: a connection of the pool has its driver's
        # For good: it must not go back to the pool with its LISTEN.
        pooled.detach()
        self._listening = pooled
        connection.autocommit = True
        connection.execute("LISTEN taskbridge")
        return connection

    def _look(self, name: str, pipeline: str, source: str, smallest: int, patience: float) -> Found:
        values = {"pipeline": pipeline, "source": source, "smallest": smallest}
        for anew in (False, True, None):
            try:
                rows = self._read(name, values, patience)
            except Broken:
                # A server that restarts breaks every connection that lies in the pool.
                distrust(self._engine)
                rows = self._read(name, values, patience)
            if rows and rows[0][2]:
                seen, before, _, fresh = rows[0][:4]
                return Found([Waiting(*row[4:]) for row in rows if row[4] is not None], seen, before, fresh)
            if anew is not None:
                self._begin(pipeline, anew=bool(rows))
        raise Unavailable(
            f"{pipeline}: Postgres is a standby, which does not know what is under way: connect to its primary"
        )

    def _read(self, name: str, values: Mapping[str, Any], patience: float) -> list[tuple[Any, ...]]:
        """Read in a transaction of its own, which writes nothing: an id of its own would count as visible."""
        with self._limited(patience, " READ ONLY") as connection:
            cursor = connection.cursor()
            cursor.execute(self._query(name), values)
        return cursor.fetchall()

    def _begin(self, pipeline: str, *, anew: bool) -> None:
        with driving(self._engine) as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                connection.execute(self._query("tail_begin"), {"pipeline": pipeline, "anew": anew})

    def _keep(self, name: str, pipeline: str, found: Found) -> None:
        with self._limited(self._patience) as connection:
            connection.execute(self._query(name), {"pipeline": pipeline, "seen": found.seen, "before": found.before})

    @contextmanager
    def _limited(self, patience: float, mode: str = "") -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in a transaction that ends in so many seconds, all of it in one round trip."""
        lock, statement = round(500 * self._patience), round(1000 * patience)
        limits = {"lock_timeout": f"{lock}ms", "statement_timeout": f"{statement}ms"}
        with driving(self._engine) as connection, connection.pipeline():
            connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED{mode}".encode())
            connection.execute(self._query("plan_of_rounds"), limits)
            yield connection
            connection.execute("COMMIT")
