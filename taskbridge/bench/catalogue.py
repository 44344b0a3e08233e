"""All benchmarks, in the order of the page of figures."""

from __future__ import annotations

from typing import Final

from taskbridge.bench.batches import BATCHES
from taskbridge.bench.benchmark import Benchmark
from taskbridge.bench.capacity import CAPACITY
from taskbridge.bench.drain import DRAIN
from taskbridge.bench.first_event import FIRST_EVENT
from taskbridge.bench.lateness import LATENESS
from taskbridge.bench.neighbours import NEIGHBOURS
from taskbridge.bench.no_event import NO_EVENT
from taskbridge.bench.notify import NOTIFY
from taskbridge.bench.patterns import PATTERNS
from taskbridge.bench.poison import POISON
from taskbridge.bench.rate_limit import RATE_LIMIT
from taskbridge.bench.recovery import RECOVERY
from taskbridge.bench.scale_out import SCALE_OUT
from taskbridge.bench.sweep import SWEEP
from taskbridge.bench.tail import TAIL
from taskbridge.bench.tenants import TENANTS

__all__ = ["BENCHMARKS"]

BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    PATTERNS,
    FIRST_EVENT,
    NO_EVENT,
    NOTIFY,
    SWEEP,
    TAIL,
    TENANTS,
    DRAIN,
    NEIGHBOURS,
    LATENESS,
    SCALE_OUT,
    RECOVERY,
    POISON,
    BATCHES,
    RATE_LIMIT,
    CAPACITY,
)
