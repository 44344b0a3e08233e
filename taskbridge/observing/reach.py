"""What the answers are made from: the servers of a deployment, its pipelines and its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

import redis

from taskbridge.common.texts import shown
from taskbridge.errors import UnknownPipeline
from taskbridge.gate.inspector import Inspector
from taskbridge.settings import Settings
from taskbridge.store import LOOK_SECONDS, Looks, Past, Tenants

if TYPE_CHECKING:
    from taskbridge.declaring.pipeline import Pipeline
    from taskbridge.gate import RunnerStatus
    from taskbridge.store.db import Database

T = TypeVar("T")

__all__ = ["Reach"]

SILENT_SECONDS: Final = 5.0
"""So long Redis is not asked again where an answer goes without it."""


@dataclass(frozen=True)
class Reach:
    """The servers of a deployment, as far as one only looks, with its pipelines and its settings."""

    database: Database
    inspector: Inspector
    pipelines: Mapping[str, Pipeline]
    settings: Settings

    @cached_property
    def _unanswered(self) -> list[float]:
        """When Redis did not answer last."""
        return [-math.inf]

    @cached_property
    def looks(self) -> Looks:
        """Looks at Postgres."""
        return Looks(self.database)

    @cached_property
    def past(self) -> Past:
        """Looks at the run history."""
        return Past(self.database)

    @property
    def ttl_ms(self) -> int:
        """After so many milliseconds without a heartbeat another run takes the place of one."""
        return round(self.settings.runner_ttl * 1000)

    def pipeline(self, name: str) -> Pipeline:
        """Return a pipeline.

        Raises:
            UnknownPipeline: nobody asks about one of this name.
        """
        if name not in self.pipelines:
            raise UnknownPipeline(
                f"the pipeline {shown(name, 63)} is not declared: there are {', '.join(sorted(self.pipelines))}"
            )
        return self.pipelines[name]

    def source(self, pipeline: str) -> str:
        """Return the source that a pipeline reads; raises as `pipeline`."""
        return self.pipeline(pipeline).source

    def tenants_in(self, pipeline: str) -> Tenants:
        """Return the tenants of a pipeline's source; raises as `pipeline`."""
        return self.tenants_of(self.source(pipeline))

    def tenants_of(self, source: str) -> Tenants:
        """Return the tenants of a source."""
        return Tenants(self.database, source, seconds=LOOK_SECONDS)

    def at_work(self, pipelines: Sequence[str], most: int) -> Mapping[str, Sequence[str]]:
        """Return the tenants of each pipeline whose runners are due first; none where Redis does not say."""
        found = self._of_redis(lambda: self.inspector.survey(pipelines, most))
        return dict.fromkeys(pipelines, ()) if found is None else {name: one.tenants for name, one in found.items()}

    def runner(self, pipeline: str, tenant: str) -> RunnerStatus | None:
        """Return how a tenant's runner stands; None: Redis does not say."""
        found = self._of_redis(lambda: self.inspector.look(pipeline, [tenant]))
        return None if found is None else found[0]

    def _of_redis(self, look: Callable[[], T]) -> T | None:
        """Return what a look at Redis gives; None: it does not answer. One question waits for that once."""
        if monotonic() - self._unanswered[-1] < SILENT_SECONDS:
            return None
        try:
            return look()
        except redis.RedisError:
            self._unanswered[:] = [monotonic()]
            return None

    def chosen(self, pipeline: str | None) -> list[str]:
        """Return the names of one pipeline, or of all; raises as `pipeline`."""
        return sorted(self.pipelines) if pipeline is None else [self.pipeline(pipeline).name]
