"""A log-alert pipeline under an injected clock: real Redis and Postgres, runs in this process, the test's minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.policy import DelaySinceLastRun
from taskbridge.gate import Answer, Keys, Queue, State
from taskbridge.producer.recording import Recorded, record_event
from taskbridge.testing.clock import inject_clock
from taskbridge.worker import slot
from tests.deployment import Deployment
from tests.inline import Inline

PIPELINE: Final = "log-alerts"
MINUTE: Final = 60
ERROR: Final = Criterion("$.level", "ERROR", "$.service", 5 * MINUTE)
WARNING: Final = Criterion("$.level", "WARNING", "$.service", 15 * MINUTE)
POLICY: Final = DelaySinceLastRun((ERROR, WARNING))


class World:
    """Times are milliseconds since the world began; `batches` holds what each run was given, with its start."""

    def __init__(self, deployment: Deployment) -> None:
        self.inline = Inline(deployment)
        self.app = deployment.app
        self.runtime = self.inline.runtime
        self.gate = inject_clock(self.runtime)
        self.start_ms = self.gate.us // 1000
        self.batches: list[tuple[str, int, list[str]]] = []
        self.meanwhile: Callable[[Batch], None] = lambda _: None
        self.inline.handle(self._take, policy=POLICY, pipeline=PIPELINE)
        self._began = 0

    @property
    def now(self) -> int:
        return self.gate.us // 1000 - self.start_ms

    def go_to(self, ms: int) -> None:
        """Move the clock to `ms`, a little behind which every command then is."""
        self.gate.pass_to(self.start_ms + ms)

    def record(self, level: str, service: str, message_id: str | None = None) -> Recorded:
        """Record one message through the public function."""
        return record_event(self.app, PIPELINE, {"level": level, "service": service}, message_id)

    def fire_due(self) -> list[str]:
        """Do what a ticker does: act on the deadlines that have passed, and give turns."""
        tenants = self.gate.overdue(PIPELINE, 100)
        answers = self.gate.expire(PIPELINE, tenants)
        self.gate.publish_waiting(self.gate.fair_queue(100))
        return [tenant for tenant, answer in zip(tenants, answers, strict=True) if answer is not Answer.NOT_DUE]

    def run_one(self) -> bool:
        """Run the next message; return whether there was one."""
        message = self.inline.message()
        if message is None:
            return False
        self._began = self.now
        slot.run_tenant(self.runtime, *message)
        return True

    def run_all(self) -> None:
        while self.run_one():
            pass

    def due(self, service: str) -> int | None:
        """When the tenant's next run is due; None: nothing waits."""
        (status,) = self.gate.look(PIPELINE, [service])
        if status.state is not State.WAITING or status.deadline_ms is None:
            return None
        return status.deadline_ms - self.start_ms

    def last_run(self, service: str) -> int | None:
        """When the tenant's last run began, as far as it still matters."""
        (status,) = self.gate.look(PIPELINE, [service])
        if status.began_ms is not None:
            return status.began_ms - self.start_ms
        kept: Any = self.runtime.redis.get(Keys(self.runtime.settings.key_prefix).last(PIPELINE, service))
        start = "" if kept is None else str(kept).partition(":")[0]
        return int(start) - self.start_ms if start else None

    def published(self) -> int:
        """How many run messages are on their way."""
        return sum(int(self.runtime.redis.llen(queue.value)) for queue in Queue)

    def waiting(self, service: str) -> int:
        """How many records wait for the tenant's next run."""
        found = self.runtime.tenants_of(PIPELINE).waiting(PIPELINE, service, POLICY.smallest_ms)
        return 0 if found is None else found.waiting

    def _take(self, batch: Batch) -> None:
        self.batches.append((batch.tenant, self._began, [record.external_id for record in batch]))
        self.meanwhile(batch)
