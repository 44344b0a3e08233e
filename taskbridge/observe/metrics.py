"""Metrics for Prometheus: the text of `taskbridge metrics`, and of a worker's port where one is set.

Counters of events, runs and records are in the cursors in Postgres, and the state of runners is in Redis. So any
worker, whatever its pool, has the figures of the whole deployment. The counters of many cursors are summed up in the
background, so that no scrape waits for that. What only a worker's own ticker sees, only that worker's port has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from taskbridge.common.histogram import BOUNDS_MS, Histogram
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import TaskBridgeError
from taskbridge.gate.inspector import Survey
from taskbridge.observe.health import MOST_RUNNERS, nobody_looks
from taskbridge.process.light_runtime import LightRuntime
from taskbridge.store import Counters, read_ages, read_backlogs, read_counters

if TYPE_CHECKING:
    from taskbridge.process.runtime import Runtime

__all__ = ["METRICS", "Metric", "Metrics", "registry"]

log = logging.getLogger(__name__)

MOST_TENANTS: Final = 1_000
"""Pending records are counted of so many tenants with a runner, those with the earliest deadlines."""
READ_SECONDS: Final = 4.0
"""Seconds that `taskbridge metrics` waits for sums over all cursors."""
SUMS_TIMEOUT: Final = 0.1
"""Seconds that a worker's scrape waits for sums over all cursors, before it gives those that it has."""

T = TypeVar("T")


class Look(NamedTuple):
    """One look at what there is: its name, where its figures come from, and over what they go."""

    name: str
    source: str
    scope: str


class _Unknown(NamedTuple):
    """A backlog whose pending records are unknown."""

    quarantined: int
    failing: int
    pending: None = None
    oldest_seconds: None = None


_COUNTERS: Final = Look("counters", "Postgres", "deployment")
_AGES: Final = Look("ages", "Postgres", "deployment")
_BACKLOGS: Final = Look("backlogs", "Redis, Postgres", "deployment")
_SURVEYS: Final = Look("surveys", "Redis", "deployment")
_MESSAGES: Final = Look("messages", "Redis", "deployment")
_LATENESS: Final = Look("lateness", "its ticker", "this worker")
_ORPHANED: Final = Look("orphaned", "its ticker", "this worker")
_SERVERS: Final = Look("servers", "the scrape", "this worker")


class Metric(NamedTuple):
    """One metric: its name in queries, its type, where it comes from, its help, and its attribute there.

    An empty `figure`: what is found there is the value itself.
    """

    name: str
    kind: str
    look: Look
    help: str
    figure: str = ""
    label: str = "pipeline"


METRICS: Final = (
    Metric("taskbridge_events_total", "counter", _COUNTERS, "Events that a run has taken in.", "events"),
    Metric(
        "taskbridge_absorbed_events_total",
        "counter",
        _COUNTERS,
        "Of those, events that found a runner of their tenant and began no burst.",
        "absorbed",
    ),
    Metric("taskbridge_bursts_total", "counter", _COUNTERS, "Runners that made their first run.", "bursts"),
    Metric("taskbridge_runs_total", "counter", _COUNTERS, "Runs that took their tenant's cursor.", "runs"),
    Metric(
        "taskbridge_sweeps_total",
        "counter",
        _COUNTERS,
        "Batches that moved a cursor.",
        "sweeps",
    ),
    Metric(
        "taskbridge_records_total",
        "counter",
        _COUNTERS,
        "Records in those batches: handled, or put into quarantine.",
        "records",
    ),
    Metric(
        "taskbridge_failed_runs_total",
        "counter",
        _COUNTERS,
        "Runs that failed, so that their tenant waits for a back-off.",
        "failed_runs",
    ),
    Metric(
        "taskbridge_failing_tenants",
        "gauge",
        _BACKLOGS,
        "Tenants whose last run failed; 100000 means that many or more.",
        "failing",
    ),
    Metric(
        "taskbridge_first_event_seconds",
        "histogram",
        _COUNTERS,
        "From a burst's first event to the moment when a run gives the handler its first batch.",
        "first_events",
    ),
    Metric(
        "taskbridge_pending_records",
        "gauge",
        _BACKLOGS,
        "Records that wait, of the 1000 tenants whose runners are due first; 100000 means that many or more. "
        "Left out in the place of 0 where no worker looks for records.",
        "pending",
    ),
    Metric(
        "taskbridge_oldest_pending_seconds",
        "gauge",
        _BACKLOGS,
        "Age of the oldest of those records, 0 without any. Left out where their number is.",
        "oldest_seconds",
    ),
    Metric(
        "taskbridge_quarantined_records",
        "gauge",
        _BACKLOGS,
        "Records in quarantine, without those discarded or tried again; 100000 means that many or more.",
        "quarantined",
    ),
    Metric(
        "taskbridge_tail_age_seconds",
        "gauge",
        _AGES,
        "Since a worker last noted how far it has looked for new records; infinite before the first time.",
        "poller",
    ),
    Metric(
        "taskbridge_base_age_seconds", "gauge", _AGES, "The same for the last pass of the reconciler.", "reconciler"
    ),
    Metric(
        "taskbridge_runners", "gauge", _SURVEYS, "Tenants that have a runner: waiting, queued or running.", "runners"
    ),
    Metric(
        "taskbridge_overdue_seconds",
        "gauge",
        _SURVEYS,
        "How long ago the earliest deadline passed that no ticker has acted on, 0 if none has.",
        "overdue_seconds",
    ),
    Metric(
        "taskbridge_oldest_message_seconds",
        "gauge",
        _MESSAGES,
        "How long the oldest run message has been in the queue, of the next ones of the queues and of up to 100 "
        "tenants whose runners are due first; 0 without any.",
        "seconds",
    ),
    Metric(
        "taskbridge_runs_replaced_total",
        "counter",
        _SURVEYS,
        "Runs without a heartbeat for the runner TTL: the worker died or froze, and another run took over.",
        "replaced",
    ),
    Metric(
        "taskbridge_messages_republished_total",
        "counter",
        _SURVEYS,
        "Run messages that nobody began in time, because they were lost or the queue is long: published again.",
        "republished",
    ),
    Metric("taskbridge_circuit_open", "gauge", _SURVEYS, "1 while the circuit is open, else 0.", "circuit.open"),
    Metric("taskbridge_circuit_opened_total", "counter", _SURVEYS, "How often the circuit opened.", "circuit.opened"),
    Metric(
        "taskbridge_tenants_in_line",
        "gauge",
        _SURVEYS,
        "Tenants that wait for the circuit or for a run slot.",
        "circuit.waiting",
    ),
    Metric(
        "taskbridge_tick_lateness_seconds",
        "histogram",
        _LATENESS,
        "How late the oldest passed deadline was, at each look of the ticker that found one.",
    ),
    Metric(
        "taskbridge_orphaned_tenants_total",
        "counter",
        _ORPHANED,
        "Tenants with pending records and no run, found by the reconciler and given one.",
    ),
    Metric("taskbridge_up", "gauge", _SERVERS, "1 if the server answered, else 0.", label="server"),
)

Found = dict[Look, Mapping[str, Any]]
"""What each look found, by the value of the label. A look that was not possible is left out."""


class Metrics(Collector):
    """Collects all metrics when it is asked. If one server does not answer, the metrics that need it are left out.

    `ticker`: the runtime, in a process that has a ticker. `problems` has a sentence for each server that did not answer
    the last time.
    """

    def __init__(self, runtime: LightRuntime, ticker: Runtime | None = None) -> None:
        # A scrape waits for Redis no longer than a person does.
        self._runtime = runtime if ticker is None else ticker.interactive
        self._ticker = ticker
        self._sums = _Sums(self._runtime)
        self._alone = threading.Lock()
        self.problems: list[str] = []

    def collect(self) -> Iterator[Family]:
        """Ask both servers, one scrape at a time."""
        with self._alone:
            found = self._look()
        for metric in METRICS:
            if metric.look in found:
                yield _family(metric, found[metric.look])

    def text(self) -> str:
        """Return all in Prometheus's text format."""
        return generate_latest(registry(self)).decode()

    def _look(self) -> Found:
        names, found = self._runtime.pipelines.names(), Found()
        self.problems = []
        with self._noted():
            found |= self._in_redis(names)
        with self._noted():
            found |= self._in_postgres(names, found.get(_SURVEYS))
        found[_SERVERS] = {"redis": _SURVEYS in found, "postgres": _AGES in found}
        if self._ticker is not None:
            found[_LATENESS] = {name: self._ticker.lateness[name] for name in names}
            found[_ORPHANED] = {name: self._ticker.orphaned[name] for name in names}
        return found

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Note a server that cannot be used, and go on without it."""
        try:
            with translated_errors():
                yield
        except Exception as error:
            self._note(str(error) if isinstance(error, TaskBridgeError) else f"{type(error).__name__}: {error}")

    def _note(self, sentence: str) -> None:
        self.problems.append(sentence)
        if self._ticker is not None:
            log.warning("metrics: %s", sentence)

    def _in_redis(self, names: Sequence[str]) -> Found:
        gate = self._runtime.gate
        surveys = self._of_each(names, "what Redis has", lambda some: gate.survey(some, MOST_TENANTS))
        most = min(MOST_RUNNERS, MOST_TENANTS // max(1, len(surveys)))
        messages = self._of_each(
            [*surveys],
            "the oldest message",
            lambda some: gate.longest_queued({name: surveys[name].tenants[:most] for name in some}),
        )
        return {_SURVEYS: surveys, _MESSAGES: messages}

    def _of_each(self, names: Sequence[str], what: str, look: Callable[[Sequence[str]], dict[str, T]]) -> dict[str, T]:
        """Return what a look finds of each pipeline, and note those of which Redis refuses it.

        It does if somebody else has written to a key of ours, or if the user of Redis may not read one.
        """
        try:
            return look(names)
        except redis.ResponseError:
            found = dict[str, T]()
        for name in names:
            try:
                found |= look([name])
            except redis.ResponseError as error:
                self._note(
                    f"{what} of {name} is missing: Redis refuses a command, look at the key that it names: {error}"
                )
        return found

    def _in_postgres(self, names: Sequence[str], surveys: Mapping[str, Survey] | None) -> Found:
        runtime, interval = self._runtime, self._runtime.settings.tail_interval
        ages = read_ages(runtime.database, names)
        found: Found = {_AGES: ages}
        if surveys is not None:
            sources = {name: runtime.pipelines[name].source for name in surveys}
            tenants = {name: one.tenants for name, one in surveys.items()}
            # If nobody looks for records, tenants that have some have no runner, so their number is unknown.
            found[_BACKLOGS] = {
                name: _Unknown(one.quarantined, one.failing)
                if not one.pending and nobody_looks(ages[name].poller, interval)
                else one
                for name, one in read_backlogs(runtime.database, sources, tenants).items()
            }
        counters = self._sums.look(names, READ_SECONDS if self._ticker is None else SUMS_TIMEOUT)
        return found if counters is None else found | {_COUNTERS: counters}


class _Sums:
    """The counters, sums over all cursors. They are read in the background, at most a hundredth of the time."""

    def __init__(self, runtime: LightRuntime) -> None:
        self._runtime = runtime
        self._thread: threading.Thread | None = None
        self._found: dict[str, Counters] | None = None
        self._not_before = 0.0

    def look(self, names: Sequence[str], seconds: float) -> dict[str, Counters] | None:
        """Return the counters as they were read last, after waiting so many seconds for new ones; None: not yet."""
        if self._thread is None or not self._thread.is_alive():
            if time.monotonic() < self._not_before:
                return self._found
            self._thread = threading.Thread(target=self._read, args=(names,), name="taskbridge-metrics", daemon=True)
            self._thread.start()
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


def registry(metrics: Metrics) -> CollectorRegistry:
    """Return a registry that collects these metrics and no others."""
    made = CollectorRegistry()
    made.register(metrics)
    return made


def _family(metric: Metric, found: Mapping[str, Any]) -> Family:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    adding: Any = kinds[metric.kind](metric.name.removesuffix("_total"), metric.help, labels=(metric.label,))
    family: Family = adding
    for label, one in found.items():
        figure = attrgetter(metric.figure)(one) if metric.figure else one
        if isinstance(figure, Histogram):
            adding.add_metric((label,), *_cumulative(figure))
        elif figure is not None:
            adding.add_metric((label,), figure)
    return family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Return the buckets as Prometheus has them, each with all that is shorter, and the sum in seconds."""
    bounds = [str(bound / 1000) for bound in BOUNDS_MS] + ["+Inf"]
    counts = tuple(histogram.counts)
    return [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)], histogram.sum_ms / 1000
