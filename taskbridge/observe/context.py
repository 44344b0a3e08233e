"""What all answers are made from: the servers of a deployment, its pipelines and the settings of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taskbridge.common.server_errors import translated_errors
from taskbridge.common.texts import shown
from taskbridge.errors import Unavailable, UnknownPipeline
from taskbridge.gate.inspector import Inspector
from taskbridge.settings import Settings
from taskbridge.store import LOOK_SECONDS, Tenants
from taskbridge.store.db import rows
from taskbridge.store.queries import queries
from taskbridge.store.stats import bucket_sums, limited

if TYPE_CHECKING:
    import redis
    from sqlalchemy import Engine

    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.gate import Survey
    from taskbridge.gate.inspector import Queued
    from taskbridge.process.runtime import Runtime

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """One deployment; safe to use from any thread.

    Args:
        database: Postgres.
        inspector: the gate of the deployment.
        others: the gates of pipelines on other Redis servers, by pipeline.
        pipelines: the pipelines to report on, by name.
        settings: the settings of the workers, which decide whether a run counts as alive.
        away: the errors of gates that did not answer just now; `survey` does not ask them again.

    Raises, in every call:
        psycopg.Error, redis.RedisError: a server does not answer, or a query took longer than 3 s. Use
            `taskbridge.common.server_errors.translated_errors` to turn these into errors of TaskBridge.
    """

    database: Engine
    inspector: Inspector
    pipelines: Mapping[str, Pipeline]
    settings: Settings
    others: Mapping[str, Inspector] = field(default_factory=dict)
    away: Mapping[Inspector, redis.RedisError] = field(default_factory=dict)

    @classmethod
    def of(cls, runtime: Runtime, away: Mapping[Runtime, redis.RedisError] | None = None) -> Context:
        """Return the context for a process's deployment and pipelines; `away`: what `Runtime.check_gates` returned."""
        declared = {name: runtime.pipelines[name] for name in runtime.pipelines.names()}
        by_redis = runtime.by_redis()
        inspectors = {each: each.inspector for each in by_redis}
        others = {name: inspectors[each] for each, names in by_redis.items() for name in names if each is not runtime}
        silent = {inspectors[each]: error for each, error in (away or {}).items()}
        return cls(runtime.engine, inspectors[runtime], declared, runtime.settings, others, silent)

    @property
    def ttl_ms(self) -> int:
        """After how many milliseconds without a heartbeat a run is replaced."""
        return round(self.settings.runner_ttl * 1000)

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

    def inspector_of(self, pipeline: str) -> Inspector:
        """Return the gate of a pipeline."""
        return self.others.get(pipeline, self.inspector)

    def _by_inspector(self, pipelines: Iterable[str]) -> dict[Inspector, list[str]]:
        found: dict[Inspector, list[str]] = {}
        for name in pipelines:
            found.setdefault(self.inspector_of(name), []).append(name)
        return found

    def survey(self, pipelines: Sequence[str], most: int) -> tuple[dict[str, Survey], dict[str, Unavailable]]:
        """Do what `Inspector.survey` does, and return the error of each pipeline whose Redis is unavailable.

        Pipelines on the same server have the same error.
        """
        surveys: dict[str, Survey] = {}
        errors: dict[str, Unavailable] = {}
        for inspector, names in self._by_inspector(pipelines).items():
            try:
                with translated_errors():
                    if inspector in self.away:
                        raise self.away[inspector]
                    surveys |= inspector.survey(names, most)
            except Unavailable as error:
                errors |= dict.fromkeys(names, error)
        return {name: surveys[name] for name in pipelines if name in surveys}, errors

    def longest_queued(self, tenants: Mapping[str, Sequence[str]]) -> dict[str, Queued]:
        """Do what `Inspector.longest_queued` does."""
        found: dict[str, Queued] = {}
        for inspector, names in self._by_inspector(tenants).items():
            found |= inspector.longest_queued({name: tenants[name] for name in names}, self.ttl_ms)
        return found

    def queued(self, pipelines: Iterable[str]) -> int | None:
        """Return how many messages are in the queues of runs of the servers that these pipelines are on.

        None: a broker is another server, or unknown.
        """
        counts = [inspector.queued() for inspector in self._by_inspector(pipelines)]
        return None if None in counts else sum(filter(None, counts))

    def tenants_of(self, source: str) -> Tenants:
        """Return the tenants of a source."""
        return Tenants(self.database, source, seconds=LOOK_SECONDS)

    def readers(self) -> dict[str, str]:
        """Return the source of each pipeline, including those in Postgres that this process does not declare."""
        stored = {row["pipeline"]: row["source"] for row in self.rows("pipelines")}
        return stored | {name: one.source for name, one in self.pipelines.items()}

    def now(self) -> datetime:
        """Return the current time by Postgres's clock."""
        at: datetime = self.value("clock")
        return at

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a named query."""
        with limited(self.database) as driver:
            return rows(driver, bucket_sums(queries(self.database)(query)), values)

    def value(self, query: str, **values: Any) -> Any:
        """Return the only column of a query's only row."""
        ((value,),) = (row.values() for row in self.rows(query, **values))
        return value
