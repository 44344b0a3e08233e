"""Declaring a pipeline: `@pipeline(name, policy=..., batch_size=...)` on a handler."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import ChainMap
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from taskbridge.common.limits import check_option
from taskbridge.common.names import check_pipeline_name, check_redis_name, check_source_name
from taskbridge.common.texts import shown
from taskbridge.declaring.policy import NO_LIMITS, DelaySinceLastRun, LatencyNeutral, Limits, Policy, RateLimit
from taskbridge.errors import ConfigurationError, InvalidPolicy, TaskBridgeError, UnknownPipeline, UsageError

if TYPE_CHECKING:
    from taskbridge.declaring.batch import Batch, RetryAfter

__all__ = ["INVOICES", "Handler", "Pipeline", "Pipelines", "pipeline"]

INVOICES: Final = "invoices"

Handler: TypeAlias = "Callable[[Batch], Awaitable[RetryAfter | None] | RetryAfter | None]"
H = TypeVar("H", bound="Handler")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named stream of work: a policy, the handler of its records, and what to do if the handler fails.

    See `pipeline` for what each value means.
    """

    name: str
    handler: Handler
    policy: Policy
    batch_size: int
    max_attempts: int = 5
    max_runs: int = 0
    rate_limit: Limits = NO_LIMITS
    tenant_rate_limit: Limits = NO_LIMITS
    latency_budget: float = 0.05
    soft_time_limit: float | None = None
    downstream_errors: tuple[type[Exception], ...] = ()
    source: str = ""
    start: str | datetime = "everything"
    redis: str = ""

    @property
    def criteria(self) -> DelaySinceLastRun | None:
        """The policy if it has criteria, which determine the tenant and the delay of each message; else None."""
        return self.policy if isinstance(self.policy, DelaySinceLastRun) else None

    @property
    def is_limited(self) -> bool:
        """Whether it has any rate limit."""
        return any((*self.rate_limit, *self.tenant_rate_limit))

    def __post_init__(self) -> None:
        check_pipeline_name(self.name)
        self._check_handler()
        object.__setattr__(self, "source", check_source_name(self.source or self.name))
        if self.redis:
            check_redis_name(self.redis)
        start = self.start
        if start not in ("everything", "now") and not (isinstance(start, datetime) and start.tzinfo is not None):
            raise InvalidPolicy(
                f"pipeline {self.name}: start is {start!r}, give 'everything', 'now' or a datetime with a time zone"
            )
        for name in ("batch_size", "max_attempts", "max_runs"):
            check_option(f"pipeline {self.name}: {name}", name, getattr(self, name), whole=True)
        check_option(f"pipeline {self.name}: latency_budget", "latency_budget", self.latency_budget)
        if self.soft_time_limit is not None:
            check_option(f"pipeline {self.name}: soft_time_limit", "soft_time_limit", self.soft_time_limit)
        for kind in self.downstream_errors:
            if not isinstance(kind, type) or not issubclass(kind, Exception):  # type: ignore[redundant-expr]
                raise InvalidPolicy(
                    f"pipeline {self.name}: downstream_errors must contain exception classes, not {kind!r}"
                )

    def _check_handler(self) -> None:
        # The handler may be an object with `__call__`.
        for function in (self.handler, type(self.handler).__call__):
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise InvalidPolicy(
                    f"pipeline {self.name}: the handler {_place(self.handler)} is a generator function, so calling it "
                    "would not run its body: write a function without `yield`"
                )


class Pipelines:
    """The pipelines of a process, by name."""

    def __init__(self, declared: MutableMapping[str, Pipeline] | None = None) -> None:
        self._declared = {} if declared is None else declared

    def beside(self, builtin: Pipeline) -> Pipelines:
        """Return these pipelines, including those declared later, plus a built-in one unless its name is declared."""
        return Pipelines(ChainMap(self._declared, {builtin.name: builtin}))

    def declare(self, added: Pipeline) -> None:
        """Add a pipeline.

        Raises:
            InvalidPolicy: another handler was declared under this name.
        """
        before = self._declared.get(added.name)
        if before is not None and _place(before.handler) != _place(added.handler):
            raise InvalidPolicy(
                f"the pipeline {added.name!r} is declared twice, by {_place(before.handler)} and "
                f"{_place(added.handler)}: rename one of them"
            )
        self._declared[added.name] = added

    def load(self, modules: Iterable[str]) -> None:
        """Import modules so that they declare their pipelines.

        The current directory is added to Python's path if there are any.

        Raises:
            ConfigurationError: a module cannot be imported, or its declarations are invalid; the message says why.
        """
        modules = tuple(modules)
        directory = str(Path.cwd())
        if modules and directory not in sys.path:
            sys.path.append(directory)
        for module in modules:
            try:
                importlib.import_module(module)
            except UsageError as error:
                raise ConfigurationError(f"the pipeline module {module!r}: {error.what}", error.remedy) from error
            except TaskBridgeError:
                raise
            except Exception as error:
                raise ConfigurationError(
                    f"the pipeline module {module!r} does not import: {type(error).__name__}: {error}",
                    "correct it or TASKBRIDGE_PIPELINES, or run this in the directory of the application",
                ) from error

    def __getitem__(self, name: Any) -> Pipeline:
        """Return the pipeline of this name; the name may come from a message, and so be anything.

        Raises:
            UnknownPipeline: there is none.
        """
        found = self._declared.get(name) if isinstance(name, str) else None
        if found is None:
            raise UnknownPipeline(
                f"no pipeline is called {shown(name)}; there are: {', '.join(self.names()) or 'none'}. "
                "Pass the name of the pipeline, or name the module that declares it in TASKBRIDGE_PIPELINES"
            )
        return found

    def __iter__(self) -> Iterator[Pipeline]:
        """Return the pipelines, in the order of their declaration."""
        return iter(self._declared.values())

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._declared)


DECLARED: Final = Pipelines()
"""The pipelines declared with `@pipeline` in this process."""


def pipeline(
    name: str,
    *,
    source: str | None = None,
    start: str | datetime = "everything",
    policy: Policy = LatencyNeutral(),
    batch_size: int = 500,
    max_attempts: int = 5,
    max_runs: int = 0,
    rate_limit: RateLimit | str | Sequence[RateLimit | str] | None = None,
    tenant_rate_limit: RateLimit | str | Sequence[RateLimit | str] | None = None,
    latency_budget: float = 0.05,
    soft_time_limit: float | None = None,
    downstream_errors: Iterable[type[Exception]] = (),
    redis: str = "",
) -> Callable[[H], H]:
    """Declare the decorated function as the handler of a pipeline. It may be a coroutine function (`async def`).

    Args:
        name: 1 to 63 characters of a-z, 0-9, `_` and `-`. Messages, keys and tables contain it, so do not change it.
        source: the source of its records, as in `record(..., source=...)`. The default is the pipeline's name. Several
            pipelines can read the same source. Do not change the source of a pipeline.
        start: where a new pipeline begins: `everything` (all existing records), `now` (existing records are
            skipped), or a time (records written earlier are skipped). It has no effect once the pipeline exists.
        policy: when runs may start.
        batch_size: the maximum number of records per call of the handler; 1 to 100,000. A batch is smaller if its
            documents reach 64 MiB, if more records would exceed `latency_budget`, or during bisection.
        max_attempts: how often a record may fail alone in a batch before it goes to quarantine; 1 to 1,000.
        max_runs: the maximum number of runs of this pipeline at the same time, in all workers; 0: no limit.
        rate_limit: the maximum number of records, or of calls of the handler, per unit of time, in all workers and for
            all tenants together. Pass a `RateLimit`, its rate ("600/m", "10 calls/s"), or a tuple with one limit of
            records and one of calls.
        tenant_rate_limit: the same, for each tenant.
        latency_budget: a call of the handler costs something by itself (for example one HTTP request) and something
            for each record. TaskBridge measures both. This is the most time in seconds that the records of one batch
            may take, or four times what the call costs by itself if that is longer. A larger value means fewer, larger
            batches, but another tenant's first event may have to wait for the call. Not used with
            `DelaySinceLastRun`, whose records stay together.
        soft_time_limit: the maximum number of seconds for one call of the handler. With the pools prefork and solo,
            Celery's `SoftTimeLimitExceeded` is raised in the handler. A coroutine is cancelled in all pools. Other
            handlers must check `Batch.seconds_left`.
        downstream_errors: exceptions that mean "the service I call is down". These always count as such:
            `ConnectionError`, `TimeoutError`, and lost connections to Postgres, Redis and the broker. If a record fails
            with such an error, it goes to quarantine only on stronger evidence (docs/explanation/failures.md). The
            pipeline's circuit opens after five such failures in a row, from at least two tenants.
        redis: the name of this pipeline's Redis server, which has its own workers: a-z, 0-9 and `_`. The URL is in the
            variable TASKBRIDGE_REDIS_URL_NAME, with the name in capitals. The default is TASKBRIDGE_REDIS_URL.

    Raises:
        InvalidName: the name is not allowed.
        InvalidPolicy: a value is out of range, the name is taken, or the handler is a generator function.
    """

    def declare(handler: H) -> H:
        DECLARED.declare(
            Pipeline(
                name,
                handler,
                policy,
                batch_size,
                max_attempts=max_attempts,
                max_runs=max_runs,
                rate_limit=Limits.of(f"pipeline {name}: rate_limit", rate_limit),
                tenant_rate_limit=Limits.of(f"pipeline {name}: tenant_rate_limit", tenant_rate_limit),
                latency_budget=latency_budget,
                soft_time_limit=soft_time_limit,
                downstream_errors=tuple(downstream_errors),
                source=source or "",
                start=start,
                redis=redis,
            )
        )
        return handler

    return declare


def _place(handler: Handler) -> str:
    return f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', repr(handler))}"
