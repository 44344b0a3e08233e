"""All benchmarks, in the order of the page of figures."""

from __future__ import annotations

from typing import Final

from taskbridge.bench.benchmark import Benchmark
from taskbridge.bench.lateness import LATENESS
from taskbridge.bench.neighbours import NEIGHBOURS
from taskbridge.bench.poison import POISON
from taskbridge.bench.sweep import SWEEP
from taskbridge.bench.tenants import TENANTS

__all__ = ["BENCHMARKS"]

BENCHMARKS: Final[tuple[Benchmark, ...]] = (SWEEP, TENANTS, LATENESS, NEIGHBOURS, POISON)
