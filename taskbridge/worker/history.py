"""The rows of runs in the run history, and when they are sent.

A run's row follows its last advance, or the statement that stores its failure, in the same message to Postgres. If a
run ends in another way, for example because it has to wait, its row is inserted after it is settled.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from taskbridge.gate import Begun, Outcome
from taskbridge.process.shutdown import is_stopping
from taskbridge.store import HistoryRow, Page

if TYPE_CHECKING:
    from taskbridge.declaring.failures import Bisection
    from taskbridge.worker.delivery import Run, RunResult

__all__ = ["fail", "last_row", "row_after", "row_of"]

MOST_EVENTS: Final = 2**31 - 1
SECOND: Final = 2


def row_of(
    run: Run,
    outcome: str,
    error: str | None = None,
    *,
    records: int = 0,
    rejected: int = 0,
    sweeps: int | None = None,
) -> HistoryRow | None:
    """Return a run's row for the run history, without what earlier rows contain; None: there is no history.

    `records` and `rejected` are those of the current batch. `sweeps` is as in `HistoryRow`. A run gets a second row if
    it continues after the batch that seemed to be its last.
    """
    if not run.runtime.settings.history_days:
        return None
    is_first = run.reported is None
    took_before, rejected_before = run.reported or (0, 0)
    return HistoryRow(
        *run.key,
        owner=run.key.token,
        reason=_reason(run.begun),
        worker=run.runtime.worker,
        seconds=time.monotonic() - run.started,
        events=min(MOST_EVENTS, run.begun.new_events) if is_first else 0,
        burst_run=run.begun.runs if is_first else 0,
        records=run.took + records - took_before,
        rejected=run.rejected + rejected - rejected_before,
        outcome=outcome,
        error=error,
        first_event_ms=run.first_event_ms if is_first and run.took + records else None,
        sweeps=sweeps,
    )


def row_after(run: Run, page: Page, rejected: int) -> HistoryRow | None:
    """Return the row of a run that seems to end when the cursor has moved past this page; None: it continues."""
    if not (page.finished or run.must_end or is_stopping()):
        return None
    return row_of(run, "handled", records=len(page.records), rejected=rejected, sweeps=page.sweeps + 1)


def last_row(run: Run, result: RunResult) -> HistoryRow | None:
    """Return the row of a run that ends without an advance or a stored failure; None: there is none to insert.

    A run without events and records needs no row. If a failure could not be stored, Postgres may not answer; if the
    cursor belongs to another run, that run has the row.
    """
    lost = result.outcome in (None, Outcome.STALE) or (result.error is not None and not run.counted_death)
    if lost or run.reported == (run.took, run.rejected) or not (run.took or run.begun.new_events):
        return None
    has_worked = run.took or result.outcome in (Outcome.DONE, Outcome.MORE)
    return row_of(run, "handled" if has_worked else "waited")


def fail(
    run: Run, error: str, bisection: Bisection | None = None, *, unread: int | None = None, died: bool = False
) -> int:
    """Store that a run failed, or that the previous run died; return the number of failures in a row.

    Raises:
        CursorLost: the cursor is another run's.
    """
    row = row_of(run, "failed", error)
    failures = run.cursors.fail(run.key, error, bisection, unread, _of_dead(run, row) if died and row else row)
    if not died:
        run.reported = run.took, run.rejected
    return failures


def _of_dead(run: Run, row: HistoryRow) -> HistoryRow | None:
    """Turn a run's row into that of the previous run, which did not end; None: its token is unknown."""
    dead = run.begun.died
    if dead is None or not dead.token[:16].isdigit():
        return None
    seconds = max(row.seconds, time.time() - int(dead.token[:16]) / 1e6)
    # The gate counts the events of a burst and those since its last run, so this is known only for its first run.
    events = run.begun.events - run.begun.new_events if run.begun.runs == SECOND else 0
    row = row._replace(token=dead.token, reason="unknown", worker=dead.worker, seconds=seconds, events=events)
    return row._replace(burst_run=max(0, run.begun.runs - 1), records=0, rejected=0)


def _reason(begun: Begun) -> str:
    """Return why a run began, for the column `reason` of the history."""
    if begun.died:
        return "died"
    if begun.probe is not None:
        return "probe"
    if begun.failures:
        return "retry"
    if begun.found:
        return "record"
    if not begun.new_events:
        return "more"
    return "event" if begun.runs == 1 else "burst"
