"""What all answers are made from: the servers of a deployment, its pipelines and the settings of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import redis

from taskbridge.common.texts import shown
from taskbridge.errors import UnknownPipeline
from taskbridge.gate.inspector import Inspector
from taskbridge.settings import Settings
from taskbridge.store import LOOK_SECONDS, Tenants
from taskbridge.store.db import fetch_within, rows
from taskbridge.store.queries import queries
from taskbridge.store.stats import bucket_sums, limited

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.gate import RunnerStatus
    from taskbridge.process.runtime import Runtime

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """One deployment; safe to use from any thread.

    Args:
        database: Postgres.
        inspector: the gate of the deployment.
        pipelines: the pipelines to report on, by name.
        settings: the settings of the workers, which decide whether a run counts as alive.

    Raises, in every call:
        psycopg.Error, redis.RedisError: a server does not answer, or a query took longer than 3 s. Use
            `taskbridge.common.server_errors.translated_errors` to turn these into errors of TaskBridge.
    """

    database: Engine
    inspector: Inspector
    pipelines: Mapping[str, Pipeline]
    settings: Settings

    @classmethod
    def of(cls, runtime: Runtime) -> Context:
        """Return the context for a process's deployment and pipelines."""
        declared = {name: runtime.pipelines[name] for name in runtime.pipelines.names()}
        return cls(runtime.engine, runtime.inspector, declared, runtime.settings)

    @property
    def ttl_ms(self) -> int:
        """After how many milliseconds without a heartbeat a run is replaced."""
        return round(self.settings.runner_ttl * 1000)

    @property
    def has_history(self) -> bool:
        """Whether the run history contains any run. It stays empty if TASKBRIDGE_HISTORY_DAYS is 0."""
        return bool(self.value("past_any"))

    def pipeline(self, name: str) -> Pipeline:
        """Return a pipeline.

        Raises:
            UnknownPipeline: it is not declared here.
        """
        if name not in self.pipelines:
            raise UnknownPipeline(
                f"the pipeline {shown(name, 63)} is not declared: choose one of {', '.join(sorted(self.pipelines))}"
            )
        return self.pipelines[name]

    def names(self, pipeline: str | None = None) -> list[str]:
        """Return the names of all pipelines, or of one; raises as `pipeline`."""
        return sorted(self.pipelines) if pipeline is None else [self.pipeline(pipeline).name]

    def tenants_of(self, source: str) -> Tenants:
        """Return the tenants of a source."""
        return Tenants(self.database, source, seconds=LOOK_SECONDS)

    def readers(self) -> dict[str, str]:
        """Return the source of each pipeline, including those in Postgres that this process does not declare."""
        stored = {row["pipeline"]: row["source"] for row in self.rows("pipelines")}
        return stored | {name: one.source for name, one in self.pipelines.items()}

    def active(self, pipelines: Sequence[str], most: int) -> Mapping[str, Sequence[str]]:
        """Return, for each pipeline, the tenants whose runners are due first; none if Redis does not answer."""
        try:
            surveys = self.inspector.survey(pipelines, most)
        except redis.RedisError:
            return dict.fromkeys(pipelines, ())
        return {name: survey.tenants for name, survey in surveys.items()}

    def runner(self, pipeline: str, tenant: str) -> RunnerStatus | None:
        """Return a tenant's runner; None if Redis does not answer."""
        try:
            return self.inspector.look(pipeline, [tenant])[0]
        except redis.RedisError:
            return None

    def now(self) -> datetime:
        """Return the current time by Postgres's clock."""
        at: datetime = self.value("clock")
        return at

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a named query."""
        with limited(self.database) as driver:
            return rows(driver, bucket_sums(queries(self.database)(query)), values)

    def rows_however_long(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a named query, without a time limit."""
        return fetch_within(self.database, None, query, values)

    def value(self, query: str, **values: Any) -> Any:
        """Return the only column of a query's only row."""
        ((value,),) = (row.values() for row in self.rows(query, **values))
        return value
