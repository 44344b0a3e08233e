"""A database that came into another cluster: its records and cursors get ids of this one, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from taskbridge.errors import Unavailable
from taskbridge.store.db import is_busy, within
from taskbridge.store.queries import LOCAL, queries, setting

__all__ = ["STEPS", "Rebased", "rebase"]


@dataclass(frozen=True, slots=True)
class Rebased:
    """What a rebase did: pending records that it put into quarantine, by pipeline, rows with a new id, and cursors."""

    quarantined: Mapping[str, int]
    rows: int
    cursors: int


LOCK_WAIT: Final = "40ms"
PAUSE: Final = 0.2
"""Seconds until the locks are tried again; others go on meanwhile."""
STEPS: Final = ("waiting for others", "pending records", "records and quarantine", "cursors", "tails and history")
"""What a rebase does one after another."""


def rebase(
    engine: Engine, lock_seconds: float = 10.0, begins: Callable[[str], None] = lambda _: None
) -> Rebased | None:
    """Put ids of this cluster in place of the former one's, in one transaction; None: they are, and nothing changed.

    Every record keeps its state in every pipeline, and its revision. Pending ones are in quarantine afterwards, with
    another try asked for, which is what a tenant's next sweep takes first.

    Args:
        engine: connections to the database; no other process of TaskBridge may have one.
        lock_seconds: how long to wait for others' transactions that wrote to the tables.
        begins: called with the name of each of `STEPS` when it begins.

    Raises:
        Unavailable: another process of TaskBridge is connected, or somebody writes records; nothing changed.
    """
    query = queries(engine)
    # Each statement must see what the lock waited for, whatever the database's default is.
    committed = engine.execution_options(isolation_level="READ COMMITTED")
    with committed.begin() as connection, within(connection, None):
        if connection.exec_driver_sql(query("in_its_cluster")).scalar_one():
            return None
        waiting, pending, records, of_cursors, rest = STEPS
        begins(waiting)
        _refuse_company(connection)
        _lock(connection, lock_seconds)
        begins(pending)
        connection.exec_driver_sql(query("rebase_identifier"))
        connection.exec_driver_sql(query("rebase_revisions"))
        quarantined = {row[0]: row[1] for row in connection.exec_driver_sql(query("rebase_pending"))}
        # One snapshot for both, taken when nobody else can have written a row that is not committed.
        snapshot = {"snapshot": connection.exec_driver_sql(query("present_snapshot")).scalar_one()}
        connection.exec_driver_sql(query("rebase_starts"), snapshot)
        begins(records)
        rows = connection.exec_driver_sql(query("rebase_rows"), snapshot).rowcount
        begins(of_cursors)
        cursors = connection.exec_driver_sql(query("rebase_cursors"), snapshot).rowcount
        begins(rest)
        connection.exec_driver_sql(query("rebase_tails"))
        connection.exec_driver_sql(query("rebase_runs"))
    return Rebased(quarantined, rows, cursors)


def _refuse_company(connection: Connection) -> None:
    """A worker that goes on would read the former cluster's cursors as this one's until the rebase is done."""
    pids = [str(pid) for pid in connection.exec_driver_sql(queries(connection)("other_sessions")).scalars()]
    if pids:
        raise Unavailable(
            f"other processes of TaskBridge are connected to the database (pg_stat_activity has their pids: "
            f"{', '.join(pids)}): stop workers, producers and `taskbridge up`, and run it again"
        )


def _lock(connection: Connection, lock_seconds: float) -> None:
    """Lock the tables: whoever comes while this waits for others waits too, so it waits shortly, and often."""
    until = time.monotonic() + lock_seconds
    while True:
        try:
            with connection.begin_nested():
                connection.exec_driver_sql(setting("lock_timeout", LOCK_WAIT, LOCAL))
                connection.exec_driver_sql(queries(connection)("rebase_lock"))
        except DBAPIError as error:
            if not is_busy(error):
                raise
            if time.monotonic() > until:
                raise Unavailable(
                    "somebody writes to TaskBridge's tables (pg_locks shows who), so nothing was rebased: end that "
                    "transaction and run `taskbridge migrate --rebase` again"
                ) from error
            time.sleep(PAUSE)
        else:
            return
