"""The gate: a small state machine in Redis that says who may run, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.lazy import on_first_use

if TYPE_CHECKING:
    from taskbridge.declaring.policy import Spacing
    from taskbridge.gate.constants import Constant
    from taskbridge.gate.gate import Gate
    from taskbridge.gate.inspector import OLDEST_REDIS, CircuitStatus, Hold, RunnerStatus, Survey
    from taskbridge.gate.keys import OURS, Keys, Queue
    from taskbridge.gate.state import Answer, State
    from taskbridge.gate.values import (
        Begun,
        Blame,
        DeadRun,
        Due,
        Message,
        Notified,
        Outcome,
        PollingHold,
        Reminder,
        Settlement,
        Timing,
    )
    from taskbridge.gate.wire import client, deadline

if not TYPE_CHECKING:
    # A process that only reads loads no script.
    __getattr__ = on_first_use(
        __name__,
        {
            "constants": "Constant",
            "gate": "Gate Spacing",
            "keys": "OURS Keys Queue",
            "inspector": "OLDEST_REDIS CircuitStatus Hold RunnerStatus Survey",
            "state": "Answer State",
            "values": "Begun Blame DeadRun Due Message Notified Outcome Reminder Settlement PollingHold Timing",
            "wire": "client deadline",
        },
    )
