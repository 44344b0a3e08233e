"""Runs in this process under an injected clock, with a handler that fails as the test says; the servers are real."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.declaring.policy import Limits
from taskbridge.gate import Answer, CircuitStatus, RunnerStatus
from taskbridge.handlers.journal import journal
from taskbridge.store import record_invoice
from taskbridge.testing.clock import inject_clock
from taskbridge.worker import slot
from tests.deployment import Deployment
from tests.inline import AT_ONCE, Inline

NUMBERS = [f"{number:02}" for number in range(20)]
BAD = "07"
"""Among them, the one that cannot be handled."""
SOON = pytest.mark.parametrize("deployment", [{"statement_timeout": 0.5}], indirect=True)
"""A statement of the store ends soon."""


def refuse(*numbers: str) -> Callable[[Batch], None]:
    """Return a handler that raises where it is given one of `numbers`, and writes the journal else."""

    def handler(batch: Batch) -> None:
        for record in batch:
            if record.external_id in numbers:
                raise ValueError(f"{record.external_id} is bad")
        journal(batch)

    return handler


class Downstream:
    """What a handler calls: down until the test heals it. A record called `malformed` is rejected before."""

    def __init__(self, error: Exception, malformed: str = "") -> None:
        self.error: Exception | None = error
        self._malformed = malformed

    def __call__(self, batch: Batch) -> None:
        for record in batch:
            if record.external_id == self._malformed:
                batch.reject(record, "malformed")
        if self.error is not None and len(batch.rejected) < len(batch):
            raise self.error
        journal(batch)


class Drill:
    """Runs until nothing is left, time jumping from deadline to deadline.

    `calls` has the tenant and the external ids of each call of the handler, `errors` what it raised, `times` when (in
    milliseconds since the drill began) each run began.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.inline = Inline(deployment)
        self.runtime = self.inline.runtime
        self.gate = inject_clock(self.runtime)
        self.start_us = self.gate.us
        self.calls: list[tuple[str, list[str]]] = []
        self.errors: list[Exception] = []
        self.times: list[int] = []

    @property
    def now_ms(self) -> int:
        return (self.gate.us - self.start_us) // 1000

    def handle(self, handler: Handler, **options: Any) -> None:
        """Let `handler` be the one of the pipeline invoices, declared with `options`."""

        def noting(batch: Batch) -> Any:
            self.calls.append((batch.tenant, [record.external_id for record in batch]))
            return handler(batch)

        for name in {"rate_limit", "tenant_rate_limit"} & options.keys():
            options[name] = Limits.of(name, options[name])
        pipelines = Pipelines()
        # Handlers of tests wait, or do other runs, and their batches stay whole.
        usual = {"batch_size": 500, "latency_budget": 60.0}
        pipelines.declare(Pipeline("invoices", noting, AT_ONCE, **(usual | options)))
        self.runtime.pipelines = pipelines

    def save(self, tenant: str, *numbers: str, **document: Any) -> None:
        """Commit invoices of a tenant in one transaction, then notify once."""
        with self.deployment.engine.begin() as connection:
            for number in numbers:
                record_invoice(self.deployment.engine, tenant, number, {"number": number, **document}, connection)
        self.deployment.notify_event.delay(tenant)

    def deliver(self, handler: Handler, *numbers: str, **options: Any) -> None:
        """Let `handler` have invoices of the tenant acme, until nothing is left to do."""
        self.handle(handler, **options)
        self.save("acme", *numbers)
        self.go_on()

    def run_one(self) -> bool:
        """Run the next message; return whether there was one."""
        message = self.inline.message()
        if message is None:
            return False
        self.times.append(self.now_ms)
        try:
            slot.run_tenant(self.runtime, *message)
        except Exception as error:
            self.errors.append(error)
        return True

    def go_on(self, until: Callable[[], bool] = lambda: False, within_ms: float = math.inf, steps: int = 2_000) -> None:
        """Run messages and let deadlines pass, until `until` holds, all is idle, or the time is over."""
        end = self.gate.us + within_ms * 1000
        for _ in range(steps):
            if until():
                return
            if self.run_one():
                continue
            deadlines = [status.deadline_ms for status in self.standing() if status.deadline_ms is not None]
            if not deadlines or min(deadlines) * 1000 > end:
                return
            self.gate.pass_to(min(deadlines))
            self.gate.expire("invoices", self.gate.overdue("invoices", 1000))
        raise AssertionError(f"not done after {steps} steps")

    def replace_run(self, tenant: str) -> None:
        """Let the deadline of a tenant's run pass, of which no word comes any more: its successor is published."""
        (status,) = self.gate.look("invoices", [tenant])
        assert status.deadline_ms is not None
        self.gate.pass_to(status.deadline_ms)
        assert self.gate.expire("invoices", [tenant]) == [Answer.REISSUED]

    def standing(self) -> list[RunnerStatus]:
        return self.gate.look("invoices", self.gate.active("invoices"))

    def circuit(self) -> CircuitStatus:
        return self.gate.circuit("invoices")

    def states(self, tenant: str | None = None) -> Counter[str]:
        """How many records are in each state."""
        rows = self.deployment.rows("SELECT tenant, state FROM taskbridge.record_states WHERE pipeline = 'invoices'")
        return Counter(state for owner, state in rows if tenant in (None, owner))

    def quarantine(self) -> list[tuple[str, str, str, str, int]]:
        """Tenant, external id, cause, reason and attempts of all in quarantine."""
        return [
            tuple(row)
            for row in self.deployment.rows(
                "SELECT tenant, external_id, cause, reason, attempts FROM taskbridge.quarantine ORDER BY "
                "tenant, external_id"
            )
        ]
