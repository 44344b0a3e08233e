"""Prometheus metrics, for `taskbridge metrics` and for a worker's metrics port.

Counters of events, runs and records are stored in the cursors in Postgres, and the state of runners is in Redis, so any
worker can serve the metrics of the whole deployment. The counters of all cursors are added up in the background, so
that no scrape waits for them. Metrics of a worker's own ticker are only available on that worker's port.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final, NamedTuple

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
from taskbridge.observe.health import MOST_RUNNERS
from taskbridge.process.runtime import Runtime
from taskbridge.store import Counters, read_ages, read_backlogs, read_counters

__all__ = ["METRICS", "Metric", "Metrics", "registry"]

log = logging.getLogger(__name__)

MOST_TENANTS: Final = 1_000
"""Pending records are counted for this many tenants, those whose runners are due first."""
READ_SECONDS: Final = 4.0
"""Seconds that `taskbridge metrics` waits for totals over all cursors."""
SUMS_TIMEOUT: Final = 0.1
"""Seconds that a scrape of a worker waits for totals over all cursors before it uses the previous ones."""


class Group(NamedTuple):
    """Metrics that are read together: where they come from, and what they cover."""

    name: str
    source: str
    scope: str


_COUNTERS: Final = Group("counters", "Postgres", "deployment")
_AGES: Final = Group("ages", "Postgres", "deployment")
_BACKLOGS: Final = Group("backlogs", "Redis, Postgres", "deployment")
_SURVEYS: Final = Group("surveys", "Redis", "deployment")
_MESSAGES: Final = Group("messages", "Redis", "deployment")
_WAITING: Final = Group("waiting", "Redis", "deployment")
_SLOTS: Final = Group("slots", "the scrape", "this worker")
_LATENESS: Final = Group("lateness", "its ticker", "this worker")
_ORPHANED: Final = Group("orphaned", "its ticker", "this worker")
_SERVERS: Final = Group("servers", "the scrape", "this worker")


class Metric(NamedTuple):
    """One metric. `attribute`: where its value is in what its group has read; empty if that is the value itself."""

    name: str
    kind: str
    group: Group
    help: str
    attribute: str = ""
    label: str = "pipeline"


METRICS: Final = (
    Metric("taskbridge_events_total", "counter", _COUNTERS, "Events, counted when a run begins.", "events"),
    Metric(
        "taskbridge_absorbed_events_total",
        "counter",
        _COUNTERS,
        "Events that did not start a burst, because their tenant already had a runner.",
        "absorbed",
    ),
    Metric("taskbridge_bursts_total", "counter", _COUNTERS, "Bursts, counted when their first run begins.", "bursts"),
    Metric("taskbridge_runs_total", "counter", _COUNTERS, "Runs that began.", "runs"),
    Metric(
        "taskbridge_sweeps_total",
        "counter",
        _COUNTERS,
        "Batches that advanced a cursor.",
        "sweeps",
    ),
    Metric(
        "taskbridge_records_total",
        "counter",
        _COUNTERS,
        "Records that were handled or quarantined.",
        "records",
    ),
    Metric(
        "taskbridge_failed_runs_total",
        "counter",
        _COUNTERS,
        "Runs that failed. Their tenants wait for a back-off.",
        "failed_runs",
    ),
    Metric(
        "taskbridge_failing_tenants",
        "gauge",
        _BACKLOGS,
        "Tenants whose last run failed; 100000 means at least 100000.",
        "failing",
    ),
    Metric(
        "taskbridge_first_event_seconds",
        "histogram",
        _COUNTERS,
        "Time from the first event of a burst to the first call of the handler.",
        "first_events",
    ),
    Metric(
        "taskbridge_pending_records",
        "gauge",
        _BACKLOGS,
        "Pending records of the 1000 tenants that are due first and of 100 paused ones; 100000 means at least 100000. "
        "Records that no worker has polled yet are not among them.",
        "pending",
    ),
    Metric(
        "taskbridge_oldest_pending_seconds",
        "gauge",
        _BACKLOGS,
        "Age of the oldest record in taskbridge_pending_records; 0 if there are none.",
        "oldest_seconds",
    ),
    Metric(
        "taskbridge_quarantined_records",
        "gauge",
        _BACKLOGS,
        "Records in quarantine, without discarded ones and those being retried; 100000 means at least 100000.",
        "quarantined",
    ),
    Metric(
        "taskbridge_tail_age_seconds",
        "gauge",
        _AGES,
        "Time since the change poller last stored its position; infinite before the first time.",
        "poller",
    ),
    Metric(
        "taskbridge_base_age_seconds",
        "gauge",
        _AGES,
        "Time since the reconciler last stored its position; infinite before the first time.",
        "reconciler",
    ),
    Metric(
        "taskbridge_runners", "gauge", _SURVEYS, "Tenants with a runner that is waiting, queued or running.", "runners"
    ),
    Metric(
        "taskbridge_overdue_seconds",
        "gauge",
        _SURVEYS,
        "Time since the earliest deadline that has passed without a ticker acting on it; 0 if there is none.",
        "overdue_seconds",
    ),
    Metric(
        "taskbridge_oldest_message_seconds",
        "gauge",
        _MESSAGES,
        "Age of the oldest queued run message; 0 if there is none. Looks only at the heads of the queues and at the "
        "100 tenants that are due first.",
        "seconds",
    ),
    Metric(
        "taskbridge_runs_replaced_total",
        "counter",
        _SURVEYS,
        "Runs replaced because their worker died or froze: they sent no heartbeat for the runner TTL.",
        "replaced",
    ),
    Metric(
        "taskbridge_messages_republished_total",
        "counter",
        _SURVEYS,
        "Run messages published again because no worker began them in time: they were lost, or the queue is long.",
        "republished",
    ),
    Metric("taskbridge_circuit_open", "gauge", _SURVEYS, "1 if the circuit is open, else 0.", "circuit.open"),
    Metric("taskbridge_circuit_opened_total", "counter", _SURVEYS, "How often the circuit opened.", "circuit.opened"),
    Metric(
        "taskbridge_tenants_in_line",
        "gauge",
        _SURVEYS,
        "Tenants that wait because the circuit is open or because max_runs is reached.",
        "circuit.waiting",
    ),
    Metric(
        "taskbridge_waiting_runs",
        "gauge",
        _WAITING,
        "Runs that wait for a worker slot: messages in the queues `first` and `next`, and tenants in the fair queue "
        "(`fair`).",
        label="queue",
    ),
    Metric("taskbridge_slots", "gauge", _SLOTS, "Worker slots that are `busy` or `idle`.", label="state"),
    Metric(
        "taskbridge_tick_lateness_seconds",
        "histogram",
        _LATENESS,
        "How late the ticker was when it acted on the earliest deadline.",
    ),
    Metric(
        "taskbridge_orphaned_tenants_total",
        "counter",
        _ORPHANED,
        "Tenants that the reconciler started because they had pending records but no run.",
    ),
    Metric("taskbridge_up", "gauge", _SERVERS, "1 if the server answered, else 0.", label="server"),
)

Values = dict[Group, Mapping[str, Any]]
"""What was read for each group, by the value of the label. A group that cannot be read is left out."""


class Metrics(Collector):
    """Collects all metrics. If a server does not answer, the metrics that need it are left out.

    `in_worker`: whether this process has a ticker. `problems`: what went wrong in the last collection.
    """

    def __init__(self, runtime: Runtime, *, in_worker: bool = False) -> None:
        self._runtime = runtime
        self._in_worker = in_worker
        self._totals = _Totals(runtime)
        self._alone = threading.Lock()
        self.problems: list[str] = []

    def collect(self) -> Iterator[Family]:
        """Query both servers, one scrape at a time."""
        with self._alone:
            values = self._read()
        for metric in METRICS:
            if metric.group in values:
                yield _family(metric, values[metric.group])

    def text(self) -> str:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(registry(self)).decode()

    def _read(self) -> Values:
        names, found = self._runtime.pipelines.names(), Values()
        self.problems = []
        found[_SERVERS] = servers = {}
        by_redis = self._runtime.by_redis()
        # Together, so that a scrape waits no longer for several silent servers than for one.
        with ThreadPoolExecutor(len(by_redis), "taskbridge-metrics") as threads:
            parts = threads.map(self._read_redis, by_redis.keys(), by_redis.values())
        for runtime, part in zip(by_redis, parts, strict=True):
            servers[f"redis{_suffix(runtime)}"] = _SURVEYS in part
            for group, values in part.items():
                found[group] = {**found.get(group, {}), **values}
        with self._noted():
            self._read_postgres(names, found)
        servers["postgres"] = _AGES in found
        if self._in_worker:
            busy, slots = self._runtime.busy_slots()
            found[_SLOTS] = {"busy": busy, "idle": slots - busy}
            own = self._runtime.names()
            found[_LATENESS] = {name: self._runtime.lateness[name] for name in own}
            found[_ORPHANED] = {name: self._runtime.orphaned[name] for name in own}
        return found

    @contextmanager
    def _noted(self, name: str = "") -> Iterator[None]:
        """Note an error of a server, and continue without it; `name`: that of a named Redis."""
        try:
            with translated_errors():
                yield
        except Exception as error:
            sentence = str(error) if isinstance(error, TaskBridgeError) else f"{type(error).__name__}: {error}"
            if name:
                sentence = f"Redis ({name}): {sentence}"
            if sentence in self.problems:
                return
            self.problems.append(sentence)
            if self._in_worker:
                log.warning("metrics: %s", sentence)

    def _read_redis(self, runtime: Runtime, names: Sequence[str]) -> Values:
        gate, suffix, found = runtime.inspector, _suffix(runtime), Values()
        with self._noted(runtime.settings.redis):
            surveys = gate.survey(names, MOST_TENANTS)
            found[_SURVEYS] = surveys
            found[_WAITING] = {f"{queue}{suffix}": count for queue, count in gate.waiting().items()}
            most = min(MOST_RUNNERS, MOST_TENANTS // max(1, len(surveys)))
            found[_MESSAGES] = gate.longest_queued({name: survey.tenants[:most] for name, survey in surveys.items()})
        return found

    def _read_postgres(self, names: Sequence[str], found: Values) -> None:
        runtime = self._runtime
        ages = read_ages(runtime.engine, names)
        if _SURVEYS in found:
            sources = {name: runtime.pipelines[name].source for name in found[_SURVEYS]}
            tenants = {name: survey.tenants for name, survey in found[_SURVEYS].items()}
            found[_BACKLOGS] = read_backlogs(runtime.engine, sources, tenants)
        found[_AGES] = ages
        counters = self._totals.latest(names, SUMS_TIMEOUT if self._in_worker else READ_SECONDS)
        if counters is not None:
            found[_COUNTERS] = counters


def _suffix(runtime: Runtime) -> str:
    """Return what the labels of a named Redis end with."""
    return f"_{runtime.settings.redis}" if runtime.settings.redis else ""


class _Totals:
    """Totals over all cursors, which are read in the background for at most a hundredth of the time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._thread: threading.Thread | None = None
        self._found: dict[str, Counters] | None = None
        self._not_before = 0.0

    def latest(self, names: Sequence[str], seconds: float) -> dict[str, Counters] | None:
        """Return the latest totals, after waiting up to `seconds` for new ones; None: there are none yet."""
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
            self._found = read_counters(self._runtime.engine, names)
        except Exception as error:
            log.warning("metrics: the counters cannot be read: %s: %s", type(error).__name__, error)
        took = time.monotonic() - started
        self._not_before = started + (took * 100 if took > SUMS_TIMEOUT / 2 else 0)


def registry(metrics: Metrics) -> CollectorRegistry:
    """Return a registry that collects only these metrics."""
    made = CollectorRegistry()
    made.register(metrics)
    return made


def _family(metric: Metric, found: Mapping[str, Any]) -> Family:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    adding: Any = kinds[metric.kind](metric.name.removesuffix("_total"), metric.help, labels=(metric.label,))
    family: Family = adding
    for label, one in found.items():
        value = attrgetter(metric.attribute)(one) if metric.attribute else one
        if isinstance(value, Histogram):
            adding.add_metric((label,), *_cumulative(value))
        else:
            adding.add_metric((label,), value)
    return family


def _cumulative(histogram: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Return cumulative buckets, as Prometheus has them, and the sum in seconds."""
    bounds = [str(bound / 1000) for bound in BOUNDS_MS] + ["+Inf"]
    counts = tuple(histogram.counts)
    return [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)], histogram.sum_ms / 1000
