"""One run at the gate, as tests begin and settle it; a worker asks for several in one round trip."""

from __future__ import annotations

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Begun, Gate, Settlement

__all__ = ["begin", "settle"]


def begin(gate: Gate, run: RunKey, *, most_runs: int = 0) -> Begun | Answer:
    """Take the runner for a run; see `Gate.begin_many`."""
    (found,) = gate.begin_many([(run, most_runs)], "worker-1")
    return found


def settle(
    gate: Gate, run: RunKey, end: Settlement, spacing: Spacing, *, most_in_flight: int = 1, most_runs: int = 0
) -> Answer:
    """End a run; see `Gate.settle_many`. `most_runs` is as in `Gate.begin_many`."""
    (answer,) = gate.settle_many([(run, end, spacing, most_runs)], most_in_flight=most_in_flight)
    return answer
