"""What operators ask: is it healthy, where is a record, why does a tenant not run, who is noisy, what fails.

Nothing here changes anything, and each answer is bounded: what it costs does not grow with the tenants, the records and
the runs that there are. Where a bound cuts an answer short, the answer says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskbridge.observing import history, overview, places, standing
from taskbridge.observing.reach import Reach

__all__ = ["Answers"]


@dataclass(frozen=True)
class Answers(Reach):
    """Answers about one deployment; the functions of this room, as methods.

    Args:
        database: an engine of `taskbridge.store.connect`.
        inspector: the gate of the deployment.
        pipelines: those that are asked about, by name.
        settings: the settings of the workers, whose bounds tell whether a run is alive.

    Every call may be made from any thread.

    Raises, in every call:
        UnknownPipeline: a pipeline is named that is not among them.
        psycopg.Error, redis.RedisError: a server does not answer; `taskbridge.common.server_errors.translated_errors`
            makes errors of TaskBridge of them.
    """

    health = overview.health
    left_out = overview.left_out
    tenants = overview.tenants
    failing = overview.failing
    pulse = overview.pulse
    tenant = standing.tenant
    find = places.find
    records = places.find_records
    story = places.story
    noisy = history.noisy
    runs = history.runs
    failed = history.failed
    bursts = history.bursts
    saved = history.saved
    over_time = history.over_time

    @property
    def has_history(self) -> bool:
        """Whether there is a history of runs: it is not switched off, and a run was written down."""
        return self.past.exists
