"""The gate: a small state machine in Redis that says who may run, and when. It imports nothing of the store."""

from taskbridge.declaring.policy import Spacing
from taskbridge.gate.gate import Gate
from taskbridge.gate.keys import OURS, Keys, Queue
from taskbridge.gate.looking import OLDEST_REDIS
from taskbridge.gate.transitions import Answer, State
from taskbridge.gate.values import (
    Begun,
    Blame,
    CircuitStatus,
    Due,
    Hold,
    Outcome,
    Reminder,
    RunnerStatus,
    Settlement,
    Survey,
    TailHold,
    Timing,
)
from taskbridge.gate.wire import client

__all__ = [
    "OLDEST_REDIS",
    "OURS",
    "Answer",
    "Begun",
    "Blame",
    "CircuitStatus",
    "Due",
    "Gate",
    "Hold",
    "Keys",
    "Outcome",
    "Queue",
    "Reminder",
    "RunnerStatus",
    "Settlement",
    "Spacing",
    "State",
    "Survey",
    "TailHold",
    "Timing",
    "client",
]
