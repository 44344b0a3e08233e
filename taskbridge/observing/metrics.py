"""Metrics for Prometheus: the text of `taskbridge metrics`, and of a worker's port where one is set.

Counters of events, runs and records stand in the cursors in Postgres, and how runners stand is in Redis, so any worker
can tell them for the whole deployment, whatever its pool. Where there are many cursors they are summed up in the
background, so that no scrape waits for it. What only one process sees, its own ticker, it tells for
itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from taskbridge.common.histogram import BOUNDS_MS, Histogram
from taskbridge.errors import TaskBridgeError, Unavailable
from taskbridge.gate import Survey
from taskbridge.process.looking import Looking
from taskbridge.process.translation import speaking_plainly
from taskbridge.store import Ages, Backlog, Counters, read_ages, read_backlogs, read_counters

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["METRICS", "Metric", "Metrics", "registry"]

log = logging.getLogger(__name__)

MOST_TENANTS: Final = 1_000
"""Pending records are counted of so many tenants with a runner, those with the earliest deadlines."""
ANSWER_TIMEOUT: Final = 4.0
"""Seconds that a scrape waits for a server. Prometheus waits 10 for a scrape."""
SUMS_TIMEOUT: Final = 0.1
"""Seconds that a worker's scrape waits for sums over all cursors, before it gives those that it has."""

T = TypeVar("T")


class Metric(NamedTuple):
    """One metric: its name as in queries, its type, where its figure comes from, over what it goes, what it says."""

    name: str
    kind: str
    source: str
    scope: str
    help: str
    label: str = "pipeline"


_POSTGRES: Final = ("Postgres", "deployment")
_REDIS: Final = ("Redis", "deployment")
_BOTH: Final = ("Redis, Postgres", "deployment")
_WORKER: Final = ("its ticker", "this worker")

METRICS: Final = (
    Metric("taskbridge_events_total", "counter", *_POSTGRES, "Events that a run has taken in."),
    Metric(
        "taskbridge_absorbed_events_total",
        "counter",
        *_POSTGRES,
        "Of those, events that found a runner of their tenant and began no burst.",
    ),
    Metric("taskbridge_bursts_total", "counter", *_POSTGRES, "Runners that made their first run."),
    Metric("taskbridge_runs_total", "counter", *_POSTGRES, "Runs that took their tenant's cursor."),
    Metric("taskbridge_sweeps_total", "counter", *_POSTGRES, "Batches that moved a cursor."),
    Metric(
        "taskbridge_records_total", "counter", *_POSTGRES, "Records in those batches: handled, or put into quarantine."
    ),
    Metric(
        "taskbridge_failed_runs_total",
        "counter",
        *_POSTGRES,
        "Runs that failed, so that their tenant waits for a back-off.",
    ),
    Metric(
        "taskbridge_failing_tenants",
        "gauge",
        *_BOTH,
        "Tenants whose last run failed; 100000 means that many or more.",
    ),
    Metric(
        "taskbridge_first_event_seconds",
        "histogram",
        *_POSTGRES,
        "From a burst's first event to the moment when its first run gives the handler its first batch.",
    ),
    Metric(
        "taskbridge_pending_records",
        "gauge",
        *_BOTH,
        "Records that wait, of the 1000 tenants whose runners are due first; 100000 means that many or more.",
    ),
    Metric(
        "taskbridge_oldest_pending_seconds",
        "gauge",
        *_BOTH,
        "Age of the oldest of those records, 0 without any.",
    ),
    Metric(
        "taskbridge_quarantined_records",
        "gauge",
        *_BOTH,
        "Records in quarantine, without those discarded or tried again; 100000 means that many or more.",
    ),
    Metric(
        "taskbridge_tail_age_seconds",
        "gauge",
        *_POSTGRES,
        "Since a worker last noted how far it has looked for new records; infinite before the first time.",
    ),
    Metric(
        "taskbridge_base_age_seconds",
        "gauge",
        *_POSTGRES,
        "The same of the look at all that is pending.",
    ),
    Metric("taskbridge_runners", "gauge", *_REDIS, "Tenants that have a runner: waiting, queued or running."),
    Metric(
        "taskbridge_overdue_seconds",
        "gauge",
        *_REDIS,
        "How long ago the earliest deadline passed that no ticker has acted on, 0 if none has.",
    ),
    Metric(
        "taskbridge_runs_replaced_total",
        "counter",
        *_REDIS,
        "Runs without a heartbeat for the runner TTL: the worker died or froze, and another run took over.",
    ),
    Metric(
        "taskbridge_messages_republished_total",
        "counter",
        *_REDIS,
        "Run messages that nobody began in time, because they were lost or the queue is long: published again.",
    ),
    Metric("taskbridge_circuit_open", "gauge", *_REDIS, "1 while the circuit is open, else 0."),
    Metric("taskbridge_circuit_opened_total", "counter", *_REDIS, "How often the circuit opened."),
    Metric("taskbridge_tenants_in_line", "gauge", *_REDIS, "Tenants that wait for the circuit or for a run slot."),
    Metric(
        "taskbridge_tick_lateness_seconds",
        "histogram",
        *_WORKER,
        "How late the oldest passed deadline was, at each look of the ticker that found one.",
    ),
    Metric(
        "taskbridge_orphaned_tenants_total",
        "counter",
        *_WORKER,
        "Tenants with pending records and no run, found by a base round and given one.",
    ),
    Metric("taskbridge_up", "gauge", "the scrape", "this worker", "1 if the server answered, else 0.", "server"),
)

Values = dict[str, dict[str, float | Histogram]]
"""The figures: by metric, then by the value of its label. A metric that is not known is left out."""


class Metrics(Collector):
    """Collects all metrics when it is asked. One server that is away costs the metrics that need it, and no more.

    `ticker`: the runtime of a process that has one, for what only it sees. `problems` has a sentence for each server
    that did not answer the last time.
    """

    def __init__(self, runtime: Looking, ticker: Runtime | None = None) -> None:
        self._runtime = runtime
        self._ticker = ticker
        self._redis, self._postgres = _Server("Redis"), _Server("Postgres")
        self._sums = _Sums(runtime)
        self._alone = threading.Lock()
        self.problems: list[str] = []

    def collect(self) -> Iterator[Family]:
        """Ask both servers, one scrape at a time."""
        with self._alone:
            values = self._look()
        for metric in METRICS:
            if metric.name in values:
                yield _family(metric, values[metric.name])

    def text(self) -> str:
        """Return all in Prometheus's text format."""
        return generate_latest(registry(self)).decode()

    def _look(self) -> Values:
        runtime, self.problems = self._runtime, []
        names = runtime.pipelines.names()
        surveys = self._ask(self._redis, lambda: runtime.gate.survey(names, MOST_TENANTS))
        sources = {name: runtime.pipelines[name].source for name in names}
        tenants = {name: one.tenants for name, one in (surveys or {}).items()}
        standing = self._ask(
            self._postgres,
            lambda: (read_ages(runtime.database, names), read_backlogs(runtime.database, sources, tenants)),
        )
        values: Values = {"taskbridge_up": {"redis": surveys is not None, "postgres": standing is not None}}
        if surveys is not None:
            values |= _of_surveys(surveys)
        if standing is not None:
            ages, backlogs = standing
            values |= _of_ages(ages)
            counters = self._sums.look(names, ANSWER_TIMEOUT if self._ticker is None else SUMS_TIMEOUT)
            values |= _of_counters(counters) if counters is not None else {}
            values |= _of_backlogs(backlogs) if surveys is not None else {}
        if self._ticker is not None:
            values["taskbridge_tick_lateness_seconds"] = {name: self._ticker.lateness[name] for name in names}
            values["taskbridge_orphaned_tenants_total"] = {name: self._ticker.orphaned[name] for name in names}
        return values

    def _ask(self, server: _Server, question: Callable[[], T]) -> T | None:
        try:
            with speaking_plainly():
                return server.ask(question)
        except Exception as error:
            sentence = str(error) if isinstance(error, TaskBridgeError) else f"{type(error).__name__}: {error}"
            self.problems.append(sentence)
            if self._ticker is not None:
                log.warning("metrics: %s", sentence)
            return None


class _Sums:
    """The counters, sums over all cursors: read in a thread of its own, for at most a hundredth of the time."""

    def __init__(self, runtime: Looking) -> None:
        self._runtime = runtime
        self._found: dict[str, Counters] | None = None
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    def look(self, names: Sequence[str], seconds: float) -> dict[str, Counters] | None:
        """Return the counters as they were read last, after waiting so many seconds for a reading; None: not yet."""
        if (self._thread is None or not self._thread.is_alive()) and time.monotonic() >= self._not_before:
            self._thread = threading.Thread(
                target=self._read, args=(names,), name="taskbridge-metrics-sums", daemon=True
            )
            self._thread.start()
        if self._thread is not None:
            self._thread.join(seconds)
        return self._found

    def _read(self, names: Sequence[str]) -> None:
        started = time.monotonic()
        try:
            self._found = read_counters(self._runtime.database, names)
        except Exception as error:
            log.warning("metrics: the counters cannot be read: %s: %s", type(error).__name__, error)
        took = time.monotonic() - started
        self._not_before = started + (took * 100 if took > SUMS_TIMEOUT / 2 else 0)


class _Server:
    """Asks one server from a thread of its own, so that one that hangs holds up neither a scrape nor the worker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer.

        Raises:
            Unavailable: there is none after `ANSWER_TIMEOUT` seconds, or the question before has none yet.
        """
        if self._thread is not None and self._thread.is_alive():
            raise Unavailable(f"{self._name} does not answer in time: look at its load")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        self._thread = threading.Thread(target=work, name=f"taskbridge-metrics-{self._name}", daemon=True)
        self._thread.start()
        self._thread.join(ANSWER_TIMEOUT)
        if not answer.done():
            raise Unavailable(f"{self._name} does not answer in time: look at its load")
        return answer.result()


def registry(metrics: Metrics) -> CollectorRegistry:
    """Return a registry that collects these metrics and no others."""
    made = CollectorRegistry()
    made.register(metrics)
    return made


def _of_counters(counters: Mapping[str, Counters]) -> Values:
    return {
        "taskbridge_events_total": {name: one.events for name, one in counters.items()},
        "taskbridge_absorbed_events_total": {name: one.events - one.bursts for name, one in counters.items()},
        "taskbridge_bursts_total": {name: one.bursts for name, one in counters.items()},
        "taskbridge_runs_total": {name: one.runs for name, one in counters.items()},
        "taskbridge_sweeps_total": {name: one.sweeps for name, one in counters.items()},
        "taskbridge_records_total": {name: one.records for name, one in counters.items()},
        "taskbridge_failed_runs_total": {name: one.failed_runs for name, one in counters.items()},
        "taskbridge_first_event_seconds": {name: one.first_events for name, one in counters.items()},
    }


def _of_ages(ages: Mapping[str, Ages]) -> Values:
    return {
        "taskbridge_tail_age_seconds": {name: one.tail for name, one in ages.items()},
        "taskbridge_base_age_seconds": {name: one.base for name, one in ages.items()},
    }


def _of_backlogs(backlogs: Mapping[str, Backlog]) -> Values:
    return {
        "taskbridge_pending_records": {name: one.pending for name, one in backlogs.items()},
        "taskbridge_oldest_pending_seconds": {name: one.oldest_seconds for name, one in backlogs.items()},
        "taskbridge_quarantined_records": {name: one.quarantined for name, one in backlogs.items()},
        "taskbridge_failing_tenants": {name: one.failing for name, one in backlogs.items()},
    }


def _of_surveys(surveys: Mapping[str, Survey]) -> Values:
    return {
        "taskbridge_runners": {name: one.runners for name, one in surveys.items()},
        "taskbridge_overdue_seconds": {name: one.overdue_ms / 1000 for name, one in surveys.items()},
        "taskbridge_runs_replaced_total": {name: one.replaced for name, one in surveys.items()},
        "taskbridge_messages_republished_total": {name: one.republished for name, one in surveys.items()},
        "taskbridge_circuit_open": {name: one.circuit.open for name, one in surveys.items()},
        "taskbridge_circuit_opened_total": {name: one.circuit.opened for name, one in surveys.items()},
        "taskbridge_tenants_in_line": {name: one.circuit.waiting for name, one in surveys.items()},
    }


def _family(metric: Metric, values: Mapping[str, float | Histogram]) -> Family:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    adding: Any = kinds[metric.kind](metric.name.removesuffix("_total"), metric.help, labels=(metric.label,))
    family: Family = adding
    for label, value in values.items():
        if isinstance(value, Histogram):
            adding.add_metric((label,), *_cumulative(value))
        else:
            adding.add_metric((label,), value)
    return family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Return the buckets as Prometheus has them, each with all that is shorter, and the sum in seconds."""
    bounds = [str(bound / 1000) for bound in BOUNDS_MS] + ["+Inf"]
    counts = tuple(histogram.counts)
    return [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)], histogram.sum_ms / 1000
