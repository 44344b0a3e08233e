"""The run history: one row for each run that took records, had events or failed, and sums for each minute.

A run's row is inserted after the transaction that advances its cursor or stores its failure, as a transaction of its
own in the same message to Postgres. So it costs no round trip, and never exists without its advance. It may be missing:
an insert that fails is logged from time to time and does not affect the run. It waits for a lock at most 50 ms, and
never for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from taskbridge.common.histogram import BOUNDS_MS
from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.texts import error_line, storable
from taskbridge.store.db import SHORT_WAIT, checked_out, fetch_within, local_settings, typed_rows, within
from taskbridge.store.queries import Queries, queries

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult
    from sqlalchemy import Engine

    from taskbridge.store.db import Bounded

__all__ = [
    "HistoryRow",
    "insert_statements",
    "keep_runs",
    "report_failed_insert",
    "sum_runs",
    "with_history",
    "write_runs",
]

log = logging.getLogger(__name__)

LONG_LOOK: Final = 5.0
"""Seconds for a statement over the history: the reconciler waits for it."""
LONGEST_ERROR: Final = 1_000
"""Characters of an error in a row."""
_throttle: Final = LogThrottle()


class HistoryRow(NamedTuple):
    """The row of one run; the comments on the columns of `runs` explain the values.

    `owner`: the token that owns the cursor. It differs from `token` where a run reports that the one before it died.
    `seconds`: how long ago the run began. `sweeps`: how often the cursor has been advanced if the preceding advance
    took effect; otherwise no row is inserted. None: the row depends on no advance.
    """

    pipeline: str
    tenant: str
    token: str
    owner: str
    reason: str
    worker: str
    seconds: float
    events: int
    burst_run: int
    records: int
    rejected: int
    outcome: str
    error: str | None = None
    first_event_ms: int | None = None
    sweeps: int | None = None


def with_history(
    database: Engine, statement: str, values: Mapping[str, Any], rows: Sequence[HistoryRow], **settings: str
) -> list[tuple[Any, ...]]:
    """Execute a statement under these settings of Postgres as a transaction of its own, then insert rows of history.

    All of it is one message, so a process that freezes keeps nothing locked. Returns the statement's rows.
    """
    query = queries(database)
    with checked_out(database) as driver:
        limits = local_settings({**driver.limits, **settings})
        needed = [query("begin"), *limits, driver.bound(statement, values), query("commit")]
        results = driver.exchange([*needed, *insert_statements(driver, query, rows)], len(needed))
        report_failed_insert(results)
        return typed_rows(driver, results[: len(needed)])


def write_runs(database: Engine, rows: Sequence[HistoryRow]) -> None:
    """Insert rows of history that follow no other statement. An error is only logged."""
    try:
        with checked_out(database) as driver:
            driver.exchange(insert_statements(driver, queries(database), rows))
    except Exception as error:
        _report(error)


def insert_statements(driver: Bounded, query: Queries, rows: Sequence[HistoryRow]) -> list[str]:
    """Return the statements that insert rows, for the end of a message; none without rows."""
    if not rows:
        return []
    values = {name: list(column) for name, column in zip(HistoryRow._fields, zip(*rows, strict=True), strict=True)}
    values["error"] = [error and storable(error, LONGEST_ERROR) for error in values["error"]]
    return [
        *local_settings({**driver.limits, "lock_timeout": SHORT_WAIT, "synchronous_commit": "off"}),
        driver.bound(query("write_runs"), values),
    ]


def report_failed_insert(results: Sequence[PGresult]) -> None:
    """Log from time to time that the last of these results is an error: rows of the history are missing."""
    if results and results[-1].status == ExecStatus.FATAL_ERROR:
        _report(error_from_result(results[-1]))


def _report(error: Exception) -> None:
    if count := _throttle.counted("history"):
        log.error("the run history cannot be written (%d times since the last report): %s", count, error_line(error))


def keep_runs(database: Engine, days: int) -> None:
    """Create the history's partitions of the next days, and drop those that are older than `days`.

    No run waits for it: what needs a lock that is taken is left to the next call.
    """
    fetch_within(database, LONG_LOOK, "keep_runs", {"days": days})


def sum_runs(database: Engine, pipeline: str) -> None:
    """Sum a pipeline's runs of each complete minute that has no sums yet; if these are many, only the first."""
    counts = ", ".join(f"count(*) FILTER (WHERE bucket = {number})" for number in range(len(BOUNDS_MS) + 1))
    with checked_out(database) as driver, within(driver, LONG_LOOK):
        text = queries(database)("sum_runs").replace("{counts}", counts)
        driver.execute(text, {"pipeline": pipeline, "bounds": [*BOUNDS_MS]})
