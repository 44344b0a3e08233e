"""A producer in a process of its own, which makes spans in one way: it does blocks of calls, as its input says.

Its argument is the way: `none`, `api`, `off` or `on`. A line of its input is what to do and how often, and it answers
with the median seconds of a call.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from statistics import median
from typing import Any, Final

WAYS: Final = ("none", "api", "off", "on")
PACKAGE: Final = "opentelemetry"


class _NotInstalled:
    """Finds all modules but those of OpenTelemetry, as where it is not installed. redis-py would load them."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name.partition(".")[0] == PACKAGE:
            raise ModuleNotFoundError(name)
        return None


class _Producer:
    """Makes spans in one way."""

    def __init__(self, way: str) -> None:
        self._exporter: Any = None
        self._tracer: Any = None
        if way == "none":
            finder: Any = _NotInstalled()
            sys.meta_path.insert(0, finder)
        elif way == "api":
            from opentelemetry import trace  # noqa: PLC0415 - in one way there is none

            self._tracer = trace.get_tracer("benchmark")
        else:
            self._provide(sampled=way == "on")

    def _provide(self, *, sampled: bool) -> None:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased  # noqa: PLC0415

        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON if sampled else ALWAYS_OFF))
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        trace.set_tracer_provider(provider)
        self._tracer = trace.get_tracer("benchmark")

    def _request(self) -> AbstractContextManager[object]:
        """The span of a request, below which all calls are; without an SDK it is none."""
        return nullcontext() if self._tracer is None else self._tracer.start_as_current_span("request")

    def block(self, what: str, calls: int) -> float:
        """Call so many times; return the median of the seconds that a call took."""
        import taskbridge  # noqa: PLC0415 - only after it is decided what can be loaded

        call: Any = self._notify if what == "absorbed" else self._record
        took = []
        if what == "absorbed":
            taskbridge.notify_event.delay("acme")
        with self._request():
            for at in range(calls):
                before = time.perf_counter()
                call(taskbridge, at)
                took.append(time.perf_counter() - before)
        if self._exporter is not None:
            self._exporter.clear()
        return median(took)

    def _notify(self, taskbridge: Any, _: int) -> None:
        taskbridge.notify_event.delay("acme")

    def _record(self, taskbridge: Any, at: int) -> None:
        taskbridge.record_invoice("acme", str(at), {"number": at, "at": time.time()})


def main() -> None:
    """Do what the lines of the input say."""
    producer = _Producer(sys.argv[1])
    for line in sys.stdin:
        what, calls = json.loads(line)
        sys.stdout.write(f"{producer.block(what, calls)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
