"""All benchmarks, in the order of the page of figures."""

from __future__ import annotations

from typing import Final

from benchmarks.adopt import ADOPT
from benchmarks.batches import BATCHES
from benchmarks.benchmark import Benchmark
from benchmarks.bulk import BULK
from benchmarks.capacity import CAPACITY
from benchmarks.drain import DRAIN
from benchmarks.first_event import FIRST_EVENT
from benchmarks.history import HISTORY
from benchmarks.lateness import LATENESS
from benchmarks.looks import LOOKS
from benchmarks.neighbours import NEIGHBOURS
from benchmarks.no_event import NO_EVENT
from benchmarks.notify import NOTIFY
from benchmarks.patterns import PATTERNS
from benchmarks.poison import POISON
from benchmarks.rate_limit import RATE_LIMIT
from benchmarks.receive import RECEIVE
from benchmarks.record import RECORD
from benchmarks.recovery import RECOVERY
from benchmarks.scale_out import SCALE_OUT
from benchmarks.storm import STORM
from benchmarks.sweep import SWEEP
from benchmarks.tail import TAIL
from benchmarks.tenants import TENANTS
from benchmarks.traces import TRACES

__all__ = ["BENCHMARKS"]

BENCHMARKS: Final[tuple[Benchmark, ...]] = (
    PATTERNS,
    FIRST_EVENT,
    NO_EVENT,
    ADOPT,
    BULK,
    RECORD,
    NOTIFY,
    TRACES,
    SWEEP,
    HISTORY,
    TAIL,
    TENANTS,
    STORM,
    DRAIN,
    NEIGHBOURS,
    LATENESS,
    SCALE_OUT,
    RECOVERY,
    POISON,
    BATCHES,
    RATE_LIMIT,
    RECEIVE,
    LOOKS,
    CAPACITY,
)
