"""Runs in the test's own process: real Redis, real Postgres, and messages taken from the queue by hand."""

from __future__ import annotations

import json
from typing import Any, Final

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler, Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral, Policy
from taskbridge.gate import Queue, State
from taskbridge.process.runtime import runtime_of
from taskbridge.worker import slot
from tests.deployment import Deployment

AT_ONCE: Final = LatencyNeutral(lease=0, tick=0.001)


class Inline:
    """Runs of one tenant, one after another, with a handler and a batch size of the test's choice."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.runtime = runtime_of(deployment.app)
        self.seen: list[str] = []

    def handle(
        self,
        handler: Handler,
        batch_size: int = 500,
        policy: Policy = AT_ONCE,
        pipeline: str = "invoices",
        **options: Any,
    ) -> None:
        """Let `handler` be the one of `pipeline`, declared with `options`; what it was given is in `seen`."""

        def noting(batch: Batch) -> Any:
            self.seen += [record.external_id for record in batch[:]]
            return handler(batch)

        pipelines = Pipelines()
        named: Handler = noting
        # Handlers of tests wait, or do other runs, and their batches stay whole.
        pipelines.declare(Pipeline(pipeline, named, policy, batch_size, **({"latency_budget": 60.0} | options)))
        self.runtime.pipelines = pipelines

    def message(self) -> tuple[str, str, str] | None:
        """Take the next run message: pipeline, tenant, token."""
        for queue in Queue:
            text = self.deployment.redis.rpop(queue.value)
            if text is not None:
                (pipeline, tenant, token), _, _ = json.loads(json.loads(str(text))["body"])
                return pipeline, tenant, token
        return None

    def run_all(self) -> int:
        """Run every message, and those that these runs make; return how many there were."""
        count = 0
        while (message := self.message()) is not None:
            slot.run_tenant(self.runtime, *message)
            count += 1
        return count

    def state(self) -> State:
        return self.runtime.gate.look("invoices", ["acme"])[0].state
