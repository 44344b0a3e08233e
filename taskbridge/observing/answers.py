"""What operators ask: is it healthy, where is a record, why does a tenant not run, who is noisy, what fails.

The dashboard uses all but `records`. `why`, `top`, `saved` and `failed` of the command line use them too, and `where`
for what became of a record. `where` finds records by a statement of its own, which looks through all; `status` has
lists of its own.

Nothing here changes anything, and each answer is bounded: what it costs does not grow with the tenants, the records and
the runs that there are. Where a bound cuts an answer short, the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskbridge.gate.inspector import Inspector
from taskbridge.observing import history, overview, places, standing
from taskbridge.observing.reach import Reach
from taskbridge.observing.shapes import (
    BurstRow,
    By,
    DayRow,
    ErrorGroup,
    FailedRuns,
    Finding,
    Finds,
    Health,
    Minute,
    NoisyTenants,
    Pulse,
    RunRow,
    Sort,
    Story,
    TenantAnswer,
    TenantLine,
)
from taskbridge.settings import Settings
from taskbridge.store.past import Before

if TYPE_CHECKING:
    from datetime import datetime

    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.store.db import Database

__all__ = ["Answers"]


class Answers:
    """Answers about one deployment.

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

    def __init__(
        self, database: Database, inspector: Inspector, pipelines: Mapping[str, Pipeline], settings: Settings
    ) -> None:
        self._reach = Reach(database, inspector, pipelines, settings)

    def health(self) -> Health:
        """Return whether all is well, with what is not."""
        return overview.health(self._reach)

    def left_out(self) -> Finding | None:
        """Return that Postgres knows pipelines which nobody asks about here, so none of these has been looked at."""
        return overview.left_out(self._reach)

    def find(self, text: str) -> Finds:
        """Return up to 50 tenants, records, messages and deliveries called `text`; tenants also by their beginning.

        Its `note` says where the records of some tenants only were looked through.
        """
        return places.find(self._reach, text)

    def story(self, source: str, tenant: str, key: str, pipeline: str) -> Story | None:
        """Return what became of a record in a pipeline; None: there is no such record."""
        return places.story(self._reach, source, tenant, key, pipeline)

    def tenant(self, pipeline: str, tenant: str) -> TenantAnswer:
        """Return how a tenant stands, and why it does not run."""
        return standing.tenant(self._reach, pipeline, tenant)

    def tenants(
        self, pipeline: str, *, failing: bool = False, sort: Sort = "name", after: str = "", limit: int = 50
    ) -> list[TenantLine]:
        """Return up to `limit` tenants of a pipeline; with `failing` those whose last run failed.

        By name they come after the tenant `after`. By another order they are the first of up to 400 tenants: those
        whose runners are due first, those with the most failures, those with the most in quarantine, and by name.
        """
        return overview.tenants(self._reach, pipeline, failing=failing, sort=sort, after=after, limit=limit)

    def noisy(
        self, pipeline: str | None = None, *, by: By = "events", hours: float = 24, limit: int = 20
    ) -> NoisyTenants:
        """Return the tenants that caused the most in the last `hours`, of one pipeline or of all."""
        return history.noisy(self._reach, pipeline, by, hours, limit)

    def runs(
        self,
        pipeline: str | None = None,
        tenant: str | None = None,
        *,
        failed: bool = False,
        before: Before | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        """Return up to `limit` runs that began before a time or a run, the last one first.

        With `failed` those that failed.

        Without a history of runs there are none. A tenant is only looked for with its pipeline.
        """
        return history.runs(self._reach, pipeline, tenant, failed=failed, before=before, limit=limit)

    def bursts(self, pipeline: str, tenant: str | None = None, limit: int = 50) -> list[BurstRow]:
        """Return the last bursts of a pipeline, or of one tenant, the last one first."""
        return history.bursts(self._reach, pipeline, tenant, limit)

    def saved(self, pipeline: str, *, days: int = 7) -> list[DayRow]:
        """Return events, runs and records of each of the last days, the last one first."""
        return history.saved(self._reach, pipeline, days)

    def failing(self, pipeline: str | None = None, limit: int = 50) -> list[ErrorGroup]:
        """Return what fails now, grouped by the kind of error, those with the most tenants first.

        Up to 1,000 failing tenants and 1,000 records in quarantine of each pipeline are looked at.
        """
        return overview.failing(self._reach, pipeline, limit)

    def failed(self, pipeline: str | None = None, *, hours: float = 24, limit: int = 50) -> FailedRuns:
        """Return what failed in the last `hours`, also what is well again, grouped by the kind of error.

        The last 200 failed runs are looked at.
        """
        return history.failed(self._reach, pipeline, hours, limit)

    def over_time(
        self, pipeline: str | None = None, *, hours: float = 24, until: datetime | None = None
    ) -> list[Minute]:
        """Return at most 500 points of the last `hours` before `until`, the first one first; None: before now.

        Minutes without a run are not in it.
        """
        return history.over_time(self._reach, pipeline, hours, until)

    def pulse(self, most: int = 50) -> Pulse:
        """Return how all stands now, with up to `most` active tenants of each pipeline; made for once a second."""
        return overview.pulse(self._reach, most)

    def records(self, key: str, *, source: str | None = None, tenant: str | None = None) -> Finds:
        """Return the records with a key, as `find`; of one source and tenant, or of all."""
        return places.find_records(self._reach, key, source=source, tenant=tenant)

    @property
    def has_history(self) -> bool:
        """Whether there is a history of runs: it is not switched off, and a run was written down."""
        return self._reach.past.exists
