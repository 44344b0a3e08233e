"""The Redis keys of the gate. `taskbridge.common.names` explains why no two can be the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from taskbridge.common.names import DEFAULT_PREFIX

__all__ = ["OURS", "Keys", "Queue", "beginning"]

OURS: Final = "taskbridge."
"""Prefix of our queue names. In alphabetical order, the queue of first events comes first."""


class Queue(StrEnum):
    """The two queues of runs, with their names under the default prefix. First events come before continuations."""

    FIRST = "taskbridge.first"
    NEXT = "taskbridge.next"


OF_ALL: Final = frozenset({"fair_queue", "virtual_time", "in_flight", "owner"})
OF_A_TENANT: Final = frozenset({"runner", "lease", "last", "tenant_rate", "tenant_calls"})


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one deployment. Callers have checked the arguments with `taskbridge.common.names`."""

    prefix: str = DEFAULT_PREFIX

    def queue(self, queue: Queue) -> str:
        """Name of a queue. It contains the prefix unless that is the default one.

        A worker that took the runs of another deployment would drop them: its gate does not know their tokens.
        """
        return queue.value if self.prefix == DEFAULT_PREFIX else f"taskbridge.{self.prefix}.{queue.name.lower()}"

    @property
    def is_hash_tag(self) -> bool:
        """Whether all keys and queues are in one slot of a Redis Cluster."""
        return self.prefix.startswith("{")

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of both queues, in order of precedence."""
        return tuple(self.queue(queue) for queue in Queue)

    @property
    def clock(self) -> str:
        """Hash: the latest time that a ticker saw, and the offset added to the server's clock, in microseconds."""
        return f"{self.prefix}:clock"

    @property
    def owner(self) -> str:
        """Which database the gate belongs to; see `own.lua`."""
        return f"{self.prefix}:owner"

    def probe(self, token: str) -> str:
        """The name of the worker that took a probe, kept for some seconds."""
        return f"{self.prefix}:probe:{token}"

    def taken(self, caller: str) -> str:
        """Hash: the messages of a caller's last `take` and its nonce, kept for some seconds; see `take.lua`."""
        return f"{self.prefix}:taken:{caller}"

    @property
    def fair_queue(self) -> str:
        """Sorted set of tenants that wait for their turn: member `{pipeline}:{tenant}`, score a start tag."""
        return f"{self.prefix}:fair-queue"

    @property
    def virtual_time(self) -> str:
        """Hash: the last start tag of each pipeline in `fair_queue`, while that is not empty."""
        return f"{self.prefix}:virtual-time"

    @property
    def in_flight(self) -> str:
        """Sorted set of runs published by turns and reminders that have not begun; see `in_flight.lua`."""
        return f"{self.prefix}:in-flight"

    def in_flight_due(self, pipeline: str) -> str:
        """Sorted set of runs published by deadlines that have not begun: member tenant, see `in_flight.lua`."""
        return f"{self.prefix}:in-flight-due:{pipeline}"

    def due(self, pipeline: str) -> str:
        """Sorted set of deadlines: member tenant, score milliseconds of the Unix epoch."""
        return f"{self.prefix}:due:{pipeline}"

    def runner(self, pipeline: str, tenant: str) -> str:
        """Hash of an active tenant; absent while it is idle."""
        return f"{self.prefix}:runner:{pipeline}:{tenant}"

    def lease(self, pipeline: str, tenant: str) -> str:
        """The lease. Its value is the millisecond at which it ends; the key expires then."""
        return f"{self.prefix}:dirty:{pipeline}:{tenant}"

    def last(self, pipeline: str, tenant: str) -> str:
        """Start of the last run, and until when the next must wait after a run that took nothing; see `last.lua`."""
        return f"{self.prefix}:last:{pipeline}:{tenant}"

    def rebuilt(self, pipeline: str) -> str:
        """The longest delay, in milliseconds, for which all relevant last runs are in Redis."""
        return f"{self.prefix}:rebuilt:{pipeline}"

    def tailing(self, pipeline: str) -> str:
        """Which worker polls the changes of a pipeline, and until when it may."""
        return f"{self.prefix}:tailing:{pipeline}"

    def ticking(self, pipeline: str) -> str:
        """Which worker's ticker is active, kept for some milliseconds."""
        return f"{self.prefix}:ticking:{pipeline}"

    def circuit(self, pipeline: str) -> str:
        """Hash: how the recent runs of a pipeline ended, and whether its circuit is open; see `circuit.lua`."""
        return f"{self.prefix}:circuit:{pipeline}"

    def counts(self, pipeline: str) -> str:
        """Hash: how many runs were replaced and how many messages were published again recently.

        For the last replaced run, also when that was (milliseconds since the Unix epoch) and on which worker.
        """
        return f"{self.prefix}:counts:{pipeline}"

    def running(self, pipeline: str) -> str:
        """Sorted set of the runs that count against a pipeline's cap: member tenant, score the deadline."""
        return f"{self.prefix}:running:{pipeline}"

    def wait_queue(self, pipeline: str) -> str:
        """Sorted set of tenants that wait for a run slot or for the circuit, in order."""
        return f"{self.prefix}:wait-queue:{pipeline}"

    def pipeline_rate(self, pipeline: str) -> str:
        """Virtual clock of a pipeline's rate limit, in microseconds."""
        return f"{self.prefix}:rate:{pipeline}"

    def tenant_rate(self, pipeline: str, tenant: str) -> str:
        """Virtual clock of a tenant's rate limit, in microseconds."""
        return f"{self.prefix}:tenant-rate:{pipeline}:{tenant}"

    def pipeline_calls(self, pipeline: str) -> str:
        """Virtual clock of a pipeline's rate limit in calls, in microseconds."""
        return f"{self.prefix}:calls:{pipeline}"

    def tenant_calls(self, pipeline: str, tenant: str) -> str:
        """Virtual clock of a tenant's rate limit in calls, in microseconds."""
        return f"{self.prefix}:tenant-calls:{pipeline}:{tenant}"


def beginning(keys: Keys, kind: str, pipeline: str) -> tuple[str, bool]:
    """Return the key of a kind, as the scripts name it, and whether the tenant (or caller) comes after it."""
    if kind in OF_ALL:
        return getattr(keys, kind), False
    if kind == "taken":
        return keys.taken(""), True
    make, of_a_tenant = getattr(keys, kind), kind in OF_A_TENANT
    return make(pipeline, "") if of_a_tenant else make(pipeline), of_a_tenant
