"""What follows when a handler fails: back-off, the search for a bad record, quarantine, and the circuit's probes.

A record goes to quarantine when it failed alone `max_attempts` times and something else of its pipeline was handled
since its last failure. If nothing was, the tenant's next record is tried. If that fails too, it looks like the
downstream and not like a record: the circuit opens and nothing is quarantined. Where a tenant has no other record, two
such records may go to quarantine in a row; at the third the circuit opens.
"""

from __future__ import annotations

import logging
import math
from typing import Final

from taskbridge.batch import RetryAfter
from taskbridge.failures import Narrowing, backoff, is_downstream
from taskbridge.gate import Blame, Outcome
from taskbridge.handover import Ending, HandlerFailed, Run, hand_over, try_alone
from taskbridge.store import Aside, Page

__all__ = ["PAUSED", "after_failure", "after_lost_server", "probe"]

log = logging.getLogger(__name__)

PAUSED: Final = Ending(Outcome.RETRY, retry_ms=60_000)
"""A paused tenant is looked at again after a minute, should word of its resumption get lost."""
MOST_IN_A_ROW: Final = 2


def after_failure(this: Run, failed: HandlerFailed) -> Ending:
    """Decide what follows the handler's error, and write it down.

    Raises:
        CursorLost: the cursor is another run's.
    """
    error, page = failed.error, failed.page
    if isinstance(error, RetryAfter):
        log.info("run of %s for tenant %r: the handler asks to %s", this.pipeline.name, this.tenant, error)
        wait_ms = math.ceil(error.seconds * 1000)
        return Ending(Outcome.RETRY, retry_ms=wait_ms, all_wait=error.scope == "pipeline")
    text = f"{type(error).__name__}: {error}"
    downstream = is_downstream(error, this.pipeline.downstream_errors)
    if downstream or this.begun.probe is not None:
        this.cursors.fail(this.key, text)
        blame = Blame.DOWNSTREAM if downstream else Blame.RECORD
        return Ending(Outcome.RETRY, _milliseconds(this.begun.failures), blame, error=error)

    narrowing = page.narrowing.failed(len(page.records))
    blame = Blame.RECORD
    if narrowing.is_alone and narrowing.attempts >= this.pipeline.max_attempts:
        if _is_the_records_fault(this):
            _set_aside(this, page, narrowing, text)
            return Ending(Outcome.MORE)
        blame = Blame.PIPELINE
    this.cursors.fail(this.key, text, narrowing)
    return Ending(Outcome.RETRY, _milliseconds(max(0, narrowing.attempts - 1)), blame, error=error)


def after_lost_server(this: Run, error: Exception) -> Ending:
    """Wait for the back-off: Postgres failed, or this program did. It says nothing about a record."""
    try:
        this.cursors.fail(this.key, f"{type(error).__name__}: {error}")
    except Exception as second:
        # Postgres may be what failed. The tenant waits for its back-off all the same.
        log.warning("the failure of tenant %r could not be written down: %s", this.tenant, second)
    return Ending(Outcome.RETRY, _milliseconds(this.begun.failures), error=error)


def probe(this: Run) -> Ending:
    """Try one record while the circuit is open. If it is handled, the circuit closes.

    The tenant's first record is handed over as usual. Another than the first, tried where the first ones may be at
    fault, is not taken for done.

    Raises:
        HandlerFailed: the handler raised.
        CursorLost, Outranked: the cursor is another run's.
    """
    page = this.claim((this.begun.probe or 0) + 1, narrowed=False)
    if page.held:
        return PAUSED
    at = min(this.begun.probe or 0, len(page.records) - 1)
    if at > 0:
        try_alone(this, page, at)
        this.handled = 1
        return Ending(Outcome.MORE)
    page = page.first(1)
    if page.moves_cursor:
        hand_over(this, page)
    return Ending(Outcome.DONE if page.finished and not page.resumed else Outcome.MORE)


def _is_the_records_fault(this: Run) -> bool:
    """Whether other records of the pipeline are handled while this one fails."""
    evidence = this.cursors.evidence(this.key)
    if evidence.others_succeed:
        return True
    beyond = this.cursors.read(this.key, 2, narrowed=False)
    if len(beyond.records) < 2:
        return evidence.in_a_row < MOST_IN_A_ROW
    try:
        try_alone(this, beyond, 1)
    except HandlerFailed:
        return False
    return True


def _set_aside(this: Run, page: Page, narrowing: Narrowing, error: str) -> None:
    (record,) = page.records
    with this.cursors.transaction(this.key) as transaction:
        transaction.advance(
            page,
            narrowing=narrowing.handled(1, this.pipeline.batch_size),
            aside=Aside({record.external_id: error}, "failed", narrowing.attempts),
        )
    log.error(
        "%s: record %r of tenant %r goes to quarantine after %d attempts alone: %s",
        this.pipeline.name,
        record.external_id,
        this.tenant,
        narrowing.attempts,
        error,
    )


def _milliseconds(failures: int) -> int:
    return round(backoff(failures) * 1000)
