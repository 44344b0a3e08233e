"""The story of one run: begin, claim, sweep, hand over, settle.

At most one run of a tenant is between begin and settle with the current token (the gate sees to that), and only the
token that owns the cursor advances it (Postgres sees to that). A run that notices that it was replaced stops, without
a word to the gate: its successor has the tenant.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from taskbridge.batch import Batch
from taskbridge.gate import Begun, Outcome
from taskbridge.heartbeat import Lease
from taskbridge.pipeline import Pipeline
from taskbridge.runtime import Runtime
from taskbridge.store import CursorLost, Cursors, Outranked, Page

__all__ = ["run"]

log = logging.getLogger(__name__)

FIRST_BACKOFF: Final = 0.5
LONGEST_BACKOFF: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Run:
    runtime: Runtime
    pipeline: Pipeline
    tenant: str
    token: str
    begun: Begun
    started: float

    @property
    def cursors(self) -> Cursors:
        return self.runtime.cursors_of(self.pipeline)

    @property
    def key(self) -> dict[str, str]:
        return {"pipeline": self.pipeline.name, "tenant": self.tenant, "token": self.token}


def run(runtime: Runtime, pipeline_name: str, tenant: str, token: str) -> None:
    """Do one run of a tenant: sweep until nothing is left or the time budget is spent.

    A late or doubled message ends here without touching anything.

    Raises:
        Exception: what the handler raised, after the failure was written down and the tenant waits for its back-off.
    """
    gate, pipeline = runtime.gate, runtime.pipelines[pipeline_name]
    begun = gate.begin(pipeline_name, tenant, token)
    if begun is None:
        log.info("run of %s for tenant %r: late or doubled message, nothing to do", pipeline_name, tenant)
        return
    this = _Run(runtime, pipeline, tenant, token, begun, time.monotonic())
    settle = partial(gate.settle, pipeline_name, tenant, token, spacing=pipeline.policy.spacing)
    with runtime.heartbeat.keep(partial(gate.beat, pipeline_name, tenant, token)) as lease:
        try:
            outcome, took = _sweep(this, lease)
        except CursorLost:
            log.warning("run of %s for tenant %r: replaced by another run, stops", pipeline_name, tenant)
            return
        except Outranked as higher:
            settle(outcome=Outcome.OUTRANKED, owner=higher.owner)
            return
        except Exception as error:
            settle(outcome=Outcome.RETRY, retry_ms=round(_backoff(begun.failures) * 1000))
            _write_down(this, error)
            raise
        settle(outcome=outcome, took=took)


def _sweep(this: _Run, lease: Lease) -> tuple[Outcome, int]:
    """Read and hand over batch by batch; return how it ended and how many records it took.

    MORE: the budget is spent and records are left.
    """
    cursors, begun = this.cursors, this.begun
    limit = this.pipeline.batch_size
    page = cursors.claim(this.key, limit, events=begun.events, new_events=begun.new_events, runs=begun.runs)
    took = 0
    while True:
        if page.moves_cursor:
            _hand_over(this, lease, page)
            took += len(page.records)
        # A sweep that was begun earlier saw nothing of what came since, so another follows before the run is done.
        if page.finished and not page.resumed:
            return Outcome.DONE, took
        if not lease.owned:
            raise CursorLost
        if time.monotonic() - this.started >= this.runtime.settings.run_budget:
            return Outcome.MORE, took
        page = cursors.read(this.key, limit)


def _hand_over(this: _Run, lease: Lease, page: Page) -> None:
    """Call the handler with the page's records and advance the cursor past them, in one transaction if it wants one."""
    first_event_ms = None
    if this.begun.runs == 1 and page.records:
        first_event_ms = this.begun.age_ms + round((time.monotonic() - this.started) * 1000)
    with this.cursors.transaction(this.key) as transaction:
        if page.records:
            this.pipeline.handler(
                Batch(
                    this.pipeline.name,
                    this.tenant,
                    this.token,
                    page.records,
                    connect=transaction.connect,
                    owned=lambda: lease.owned,
                )
            )
        transaction.advance(page, first_event_ms=first_event_ms)


def _backoff(failures: int) -> float:
    """Seconds until the next try: 0.5, doubling to 300, less up to a quarter so that tenants do not return together."""
    longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures, 20))
    return longest * random.uniform(0.75, 1.0)  # noqa: S311 - jitter, not a secret


def _write_down(this: _Run, error: Exception) -> None:
    try:
        this.cursors.fail(this.key, f"{type(error).__name__}: {error}")
    except Exception as second:
        # Postgres may be what failed. The tenant waits for its back-off all the same.
        log.warning("the failure of tenant %r could not be written down: %s", this.tenant, second)
