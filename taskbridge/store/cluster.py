"""The cluster whose transaction ids the records and cursors hold, and moving both into another one.

A transaction id means something in one cluster only, and a dump carries ids over as values. So the cluster's system
identifier is stored beside them: where it is another, triggers refuse to write records, and processes refuse to start,
until a rebase has put the ids of this cluster in place of the former ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from taskbridge.errors import ForeignCluster, Unavailable
from taskbridge.store.engine import within
from taskbridge.store.queries import queries

__all__ = ["FOREIGN_CLUSTER", "FOREIGN_CLUSTER_STATE", "Rebased", "check_cluster", "in_its_cluster", "rebase"]

FOREIGN_CLUSTER: Final = (
    "the database was restored into another cluster, where its transaction ids mean nothing: stop all workers and run "
    "`taskbridge rebase`"
)
FOREIGN_CLUSTER_STATE: Final = "TB001"
"""The SQLSTATE with which the triggers refuse."""

LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True)
class Rebased:
    """What a rebase did: pending records that it put into quarantine, by pipeline, rows with a new id, and cursors."""

    quarantined: Mapping[str, int]
    rows: int
    cursors: int


def in_its_cluster(engine: Engine) -> bool:
    """Say whether the database is in the cluster whose transaction ids it holds; the schema must be the newest."""
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql(queries(engine)("in_its_cluster")).scalar_one())


def check_cluster(engine: Engine) -> None:
    """Raise ForeignCluster, saying what to run, unless the database is in the cluster whose ids it holds."""
    if not in_its_cluster(engine):
        raise ForeignCluster(FOREIGN_CLUSTER)


def rebase(engine: Engine, lock_seconds: float = 10.0) -> Rebased | None:
    """Put ids of this cluster in place of the former one's, in one transaction; None: they are, and nothing changed.

    Every record keeps its state in every pipeline, and its revision. Pending ones are in quarantine afterwards, with
    another try asked for, which is what a tenant's next sweep takes first.

    Args:
        engine: connections to the database; no other process of TaskBridge may have one.
        lock_seconds: how long to wait for others' transactions that wrote to the tables.

    Raises:
        Unavailable: another process of TaskBridge is connected, or somebody writes records; nothing changed.
    """
    query = queries(engine)
    # Each statement must see what the lock waited for, whatever the database's default is.
    committed = engine.execution_options(isolation_level="READ COMMITTED")
    with committed.begin() as connection, within(connection, None):
        if connection.exec_driver_sql(query("in_its_cluster")).scalar_one():
            return None
        _refuse_company(connection)
        _lock(connection, lock_seconds)
        connection.exec_driver_sql(query("rebase_identifier"))
        connection.exec_driver_sql(query("rebase_revisions"))
        quarantined = {row[0]: row[1] for row in connection.exec_driver_sql(query("rebase_pending"))}
        # One snapshot for both, taken when nobody else can have written a row that is not committed.
        snapshot = {"snapshot": connection.exec_driver_sql("SELECT pg_current_snapshot()::text").scalar_one()}
        connection.exec_driver_sql(query("rebase_starts"), snapshot)
        rows = connection.exec_driver_sql(query("rebase_rows"), snapshot).rowcount
        cursors = connection.exec_driver_sql(query("rebase_cursors"), snapshot).rowcount
        connection.exec_driver_sql(query("rebase_tails"))
    return Rebased(quarantined, rows, cursors)


def _refuse_company(connection: Connection) -> None:
    """A worker that goes on would read the former cluster's cursors as this one's until the rebase is done."""
    pids = [str(pid) for pid in connection.exec_driver_sql(queries(connection)("other_sessions")).scalars()]
    if pids:
        raise Unavailable(
            f"other processes of TaskBridge are connected to the database (pg_stat_activity has their pids: "
            f"{', '.join(pids)}): stop workers, producers and `taskbridge up`, and run `taskbridge rebase` again"
        )


def _lock(connection: Connection, lock_seconds: float) -> None:
    try:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(lock_seconds * 1000)}")
        connection.exec_driver_sql(queries(connection)("rebase_lock"))
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
            raise
        raise Unavailable(
            "somebody writes to TaskBridge's tables (pg_locks shows who), so nothing was rebased: end that transaction "
            "and run `taskbridge rebase` again"
        ) from error
