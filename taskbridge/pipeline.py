"""Declaring a pipeline: `@pipeline(name, policy=..., batch_size=...)` on a handler."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskbridge.batch import Batch
from taskbridge.errors import ConfigurationError, InvalidPolicy, TaskBridgeError, UnknownPipeline
from taskbridge.names import check_pipeline_name
from taskbridge.policy import DelaySinceLastRun, LatencyNeutral, Policy

__all__ = ["INVOICES", "Handler", "Pipeline", "Pipelines", "pipeline"]

INVOICES: Final = "invoices"
LARGEST_BATCH: Final = 100_000

Handler = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named stream of work: a batching policy and the handler of its records."""

    name: str
    handler: Handler
    policy: Policy
    batch_size: int

    @property
    def criteria(self) -> DelaySinceLastRun | None:
        """The policy, where the pipeline's records are those that match criteria; None: they are invoices."""
        return self.policy if isinstance(self.policy, DelaySinceLastRun) else None

    def __post_init__(self) -> None:
        check_pipeline_name(self.name)
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise InvalidPolicy(f"pipeline {self.name}: batch_size is {self.batch_size!r}, give a whole number")
        if not 1 <= self.batch_size <= LARGEST_BATCH:
            raise InvalidPolicy(
                f"pipeline {self.name}: batch_size is {self.batch_size}, it must lie between 1 and {LARGEST_BATCH}"
            )


class Pipelines:
    """The pipelines of a process, by name."""

    def __init__(self) -> None:
        self._builtin: dict[str, Pipeline] = {}
        self._declared: dict[str, Pipeline] = {}

    def provide(self, one: Pipeline) -> None:
        """Add a built-in pipeline, used unless another is declared under its name."""
        self._builtin[one.name] = one

    def declare(self, one: Pipeline) -> None:
        """Add a pipeline; a declared one takes the place of a built-in one of the same name.

        Raises:
            InvalidPolicy: another handler was declared under this name.
        """
        before = self._declared.get(one.name)
        if before is not None and _place(before.handler) != _place(one.handler):
            raise InvalidPolicy(
                f"the pipeline {one.name!r} is declared twice, by {_place(before.handler)} and {_place(one.handler)}: "
                "rename one of them"
            )
        self._declared[one.name] = one

    def load(self, modules: Iterable[str]) -> None:
        """Import modules so that they declare their pipelines. The current directory is looked in as well.

        Raises:
            ConfigurationError: a module does not import; the message has its error.
        """
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        for module in modules:
            try:
                importlib.import_module(module)
            except TaskBridgeError:
                raise
            except Exception as error:
                raise ConfigurationError(
                    f"the pipeline module {module!r} does not import: {type(error).__name__}: {error}. "
                    "Correct it, or TASKBRIDGE_PIPELINES"
                ) from error

    def __getitem__(self, name: str) -> Pipeline:
        found = self._declared.get(name) or self._builtin.get(name)
        if found is None:
            raise UnknownPipeline(
                f"no pipeline is called {name!r}; there are: {', '.join(self.names())}. "
                "Name the module that declares it in TASKBRIDGE_PIPELINES"
            )
        return found

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._builtin.keys() | self._declared.keys())


DECLARED: Final = Pipelines()
"""What `@pipeline` declared in this process."""


def pipeline(name: str, *, policy: Policy = LatencyNeutral(), batch_size: int = 500) -> Callable[[Handler], Handler]:
    """Declare the decorated function as the handler of a pipeline.

    Args:
        name: 1 to 63 of a-z, 0-9, `_` and `-`; pinned in messages, keys and tables, so it must not change.
        policy: when runs may start.
        batch_size: most records that a handler is given at once; 1 to 100,000.

    Raises:
        InvalidName: the name is not allowed.
        InvalidPolicy: the batch size is out of range, or the name is taken.
    """

    def declare(handler: Handler) -> Handler:
        DECLARED.declare(Pipeline(name, handler, policy, batch_size))
        return handler

    return declare


def _place(handler: Handler) -> str:
    return f"{getattr(handler, '__module__', '?')}.{getattr(handler, '__qualname__', repr(handler))}"
