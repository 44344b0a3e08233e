"""Rebasing a database after a move to another cluster: records and cursors get new ids, in one transaction."""

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
    """The result of a rebase: pending records put into quarantine by pipeline, rows with a new id, and cursors."""

    quarantined: Mapping[str, int]
    rows: int
    cursors: int


LOCK_WAIT: Final = "40ms"
PAUSE: Final = 0.2
"""Seconds until the locks are tried again; others can proceed in the meantime."""
STEPS: Final = ("waiting for others", "pending records", "records and quarantine", "cursors", "snapshots and history")
"""The steps of a rebase, in order."""


def rebase(
    engine: Engine, lock_seconds: float = 10.0, begins: Callable[[str], None] = lambda _: None
) -> Rebased | None:
    """Replace the ids of the former cluster with ids of this one, in one transaction; None: nothing had to be changed.

    Every record keeps its state in every pipeline, and its revision. Pending records are in quarantine afterwards and
    marked for a retry, so a tenant's next sweep takes them first.

    Args:
        engine: connections to the database; no other process of TaskBridge may have one.
        lock_seconds: how long to wait for transactions of others that have written to the tables.
        begins: called with the name of each of `STEPS` when it begins.

    Raises:
        Unavailable: another process of TaskBridge is connected, or is writing records; nothing was changed.
    """
    query = queries(engine)
    # Each statement must see what the lock waited for, whatever the default of the database is.
    committed = engine.execution_options(isolation_level="READ COMMITTED")
    with committed.begin() as connection, within(connection, None):
        if connection.exec_driver_sql(query("in_its_cluster")).scalar_one():
            return None
        waiting, pending, records, of_cursors, rest = STEPS
        begins(waiting)
        _refuse_company(connection)
        _lock(connection, lock_seconds)
        begins(pending)
        connection.exec_driver_sql(query("rebase_begin"))
        quarantined = {row[0]: row[1] for row in connection.exec_driver_sql(query("rebase_pending"))}
        # One snapshot for both, taken when no other transaction can have written an uncommitted row.
        snapshot = {"snapshot": connection.exec_driver_sql(query("present_snapshot")).scalar_one()}
        connection.exec_driver_sql(query("rebase_starts"), snapshot)
        begins(records)
        rows = connection.exec_driver_sql(query("rebase_rows"), snapshot).rowcount
        begins(of_cursors)
        cursors = connection.exec_driver_sql(query("rebase_cursors"), snapshot).rowcount
        begins(rest)
        connection.exec_driver_sql(query("rebase_rest"))
    return Rebased(quarantined, rows, cursors)


def _refuse_company(connection: Connection) -> None:
    """Raise Unavailable if workers are running: until the rebase is done, they would misread the cursors' ids."""
    pids = [str(pid) for pid in connection.exec_driver_sql(queries(connection)("other_sessions")).scalars()]
    if pids:
        raise Unavailable(
            f"other processes of TaskBridge are connected to the database (pg_stat_activity has their pids: "
            f"{', '.join(pids)}): stop workers, producers and `taskbridge up`, and run it again"
        )


def _lock(connection: Connection, lock_seconds: float) -> None:
    """Lock the tables in many short attempts: while one waits for others, later transactions wait for it."""
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
                    "another transaction is writing to TaskBridge's tables (pg_locks shows it), so nothing was "
                    "rebased: end that transaction and run `taskbridge migrate --rebase` again"
                ) from error
            time.sleep(PAUSE)
        else:
            return
