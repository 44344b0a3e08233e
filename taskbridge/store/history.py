"""The run history: one row for each run that took records, had events or failed, and sums for each minute.

The row is written in the statement that moves the run's cursor. So it costs no round trip and no commit, and it is
there exactly if what it says took effect. A failure is noted after it was stored. A run that was told to wait has no
row: the cursor keeps its events for the next one.

The history may keep nobody from work. Where it cannot be written, because of a lock or of a right that lacks, the
cursor is moved without it, and for a while nothing is noted.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import LockNotAvailable, QueryCanceled
from sqlalchemy import Engine

from taskbridge.common.histogram import BOUNDS_MS
from taskbridge.common.texts import error_line
from taskbridge.store.db import SHORT_WAIT, driver_error, driving, in_one_message, within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["NOT_NOTED", "RunNote", "blame", "is_noted", "keep_runs", "sum_runs"]

log = logging.getLogger(__name__)

RESTS: Final = 300.0
"""Seconds for which a process notes nothing after the history could not be written."""
LONG_LOOK: Final = 5.0
"""Seconds for a statement over the history: the base rounds wait for it."""


class RunNote(NamedTuple):
    """What the history says of a run beside what moves its cursor; the columns of `runs` say what each is.

    `reason` None: no history is kept. `dead`: the token of the run before, where it is that one, which did not end;
    then `own_events` came after it. `again`: the history may have a row of the run already. Else it is not asked,
    which is cheaper, and where it has one the statement is tried once more.
    """

    reason: str | None
    worker: str = ""
    burst_run: int = 0
    dead: str = ""
    own_events: int = 0
    again: bool = True


NOT_NOTED: Final = RunNote(None)


_rests_until: WeakKeyDictionary[Engine, float] = WeakKeyDictionary()


def is_noted(engine: Engine, reason: str | None) -> bool:
    """Whether a run that began for this reason is noted now."""
    return reason is not None and monotonic() >= _rests_until.get(engine, 0.0)


def blame(engine: Engine, error: Exception) -> None:
    """Note nothing for a while, if the history is to blame for the error of a statement.

    The statement went well without the history, or is about nothing else. What may have another reason (a lock, a time
    limit, a server that is away) proves nothing, unless the history is found locked.
    """
    cause = driver_error(error)
    timed_out = isinstance(cause, (LockNotAvailable, QueryCanceled))
    if _is_held(engine) if timed_out else not isinstance(cause, psycopg.OperationalError):
        _rests_until[engine] = monotonic() + RESTS
        log.error("the run history cannot be written, and is not for %.0f s: %s", RESTS, error_line(error))
    else:
        log.warning("a run is not in the run history: %s", error_line(error))


def _is_held(engine: Engine) -> bool:
    try:
        with driving(engine) as driver:
            in_one_message(driver, queries(engine)("hold_history"), {}, lock_timeout=SHORT_WAIT)
    except LockNotAvailable:
        return True
    except psycopg.Error:
        return False
    return False


def keep_runs(database: Database, days: int) -> None:
    """Make the history's partitions of the next days, and drop what is older than `days`.

    What somebody has a lock on is left to the next call.
    """
    _do(database, "keep_runs", {"days": days})


def sum_runs(database: Database, pipeline: str) -> None:
    """Sum a pipeline's runs of each minute that is over and has no sums yet, and of the last minutes again."""
    _do(database, "sum_runs", {"pipeline": pipeline, "bounds": [*BOUNDS_MS]})


def _do(database: Database, name: str, values: dict[str, Any]) -> None:
    with driving(database) as driver, within(driver, LONG_LOOK):
        driver.execute(queries(database)(name), values)
