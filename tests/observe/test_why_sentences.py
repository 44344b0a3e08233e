"""Why a tenant does not run: the cause is the right one in each case; `test_commands.py` has sentences."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from taskbridge import LatencyNeutral
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.gate import Hold, RunnerStatus, State
from taskbridge.gate.inspector import CircuitStatus, Ranks
from taskbridge.handlers.journal import journal
from taskbridge.observe.inspect import Seen, why
from taskbridge.observe.status import Cause
from taskbridge.store import Pause

NOW_MS: Final = 1_800_000_000_000
TTL_MS: Final = 6_000
TOKEN: Final = f"{NOW_MS - 5_000}000-abcdef"
CLOSED: Final = CircuitStatus(False, None, 0, 0, None, None, 0)
OPEN: Final = CircuitStatus(True, NOW_MS + 4_000, 2, 1, NOW_MS - 60_000, None, 2)
NOWHERE: Final = Ranks(None, 0, None, 0)
COUNTS: Final[dict[str, Any]] = {
    "known": True,
    "pending": 0,
    "pending_since": None,
    "quarantined": 0,
    "last_run_at": None,
    "failures": 0,
    "failing_since": None,
    "last_error": None,
}
FAILED: Final = {"pending": 1, "failures": 3, "last_error": "ValueError: no currency"}


def runner(state: State, due_in_ms: int | None = None, **values: Any) -> RunnerStatus:
    """A runner whose deadline comes in so many milliseconds."""
    deadline = None if due_in_ms is None else NOW_MS + due_in_ms
    defaults: dict[str, Any] = {
        "token": TOKEN,
        "events": 1,
        "runs": 1,
        "began_ms": NOW_MS - 2_000,
        "lease_ends_ms": None,
    }
    held = values.get("hold") is not None
    waits = values.get("hold") is Hold.TURN
    return RunnerStatus(state=state, deadline_ms=deadline, held=held, waits_for_turn=waits, **defaults | values)


def seen(who: RunnerStatus, **values: Any) -> Seen:
    """All that a sentence is made from; what is not named is quiet."""
    defaults: dict[str, Any] = {
        "ranks": NOWHERE,
        "circuit": CLOSED,
        "pause": None,
        "seconds_since_poll": 0.1,
        "tail_interval": 0.2,
    }
    declared = Pipeline("orders", journal, LatencyNeutral(), 100, max_runs=values.pop("most_runs", 0))
    counts = COUNTS | values.pop("counts", {})
    return Seen(declared, who, counts=counts, now_ms=NOW_MS, ttl_ms=TTL_MS, **defaults | values)


def waiting(hold: Hold | None = None, due_in_ms: int = 3_000, **values: Any) -> RunnerStatus:
    return runner(State.WAITING, due_in_ms, hold=hold, **values)


IDLE: Final = runner(State.IDLE, token=None, began_ms=None)
QUEUED: Final = runner(State.QUEUED, TTL_MS)
AGO: Final = timedelta(days=3, hours=1)
"""So long that it is told in the same words when the tests have taken minutes."""

CASES: Final[dict[str, tuple[Seen, Cause]]] = {
    "nobody": (seen(IDLE, counts={"known": False}), Cause.UNKNOWN),
    "idle": (seen(IDLE), Cause.NOTHING),
    "pending, and workers look": (
        seen(IDLE, counts={"pending": 1, "pending_since": datetime.now(UTC) - AGO}),
        Cause.FOUND_SOON,
    ),
    "pending, and nobody ever looked": (
        seen(IDLE, counts={"pending": 2, "pending_since": datetime.now(UTC) - AGO}, seconds_since_poll=math.inf),
        Cause.NO_WORKER,
    ),
    "a message, and workers look": (seen(QUEUED), Cause.QUEUED),
    "a message, and nobody looks": (seen(QUEUED, seconds_since_poll=15.3), Cause.NO_WORKER),
    "paused": (seen(waiting(), pause=Pause("acme", "wrong prices", datetime.now(UTC) - AGO, "alice")), Cause.PAUSED),
    "the whole pipeline is paused": (
        seen(IDLE, counts={"pending": 1}, pause=Pause(None, None, datetime.now(UTC) - AGO)),
        Cause.PAUSED,
    ),
    "running": (seen(runner(State.RUNNING, TTL_MS - 1_000, worker="a@x")), Cause.RUNNING),
    "running, with a heartbeat that is as late as one may be": (
        seen(runner(State.RUNNING, TTL_MS - 4_000)),
        Cause.RUNNING,
    ),
    "running and paused": (
        seen(runner(State.RUNNING, TTL_MS), pause=Pause("acme", None, datetime.now(UTC) - AGO)),
        Cause.RUNNING,
    ),
    "no heartbeat, and it is replaced soon": (seen(runner(State.RUNNING, TTL_MS - 4_001, worker="a@x")), Cause.FROZEN),
    "its turn": (seen(waiting(Hold.TURN), ranks=Ranks(None, 0, 3, 7)), Cause.TURN),
    "its rate limit": (seen(waiting(Hold.RATE)), Cause.RATE),
    "its rate limit is over, and no worker acts on it": (seen(waiting(Hold.RATE, -2_000)), Cause.QUEUED),
    "the circuit": (
        seen(waiting(Hold.WAIT_QUEUE), circuit=OPEN, ranks=Ranks(1, 2, None, 0), counts=FAILED),
        Cause.CIRCUIT,
    ),
    "the whole pipeline was asked to wait": (
        seen(
            waiting(Hold.WAIT_QUEUE), circuit=CLOSED._replace(rests_until_ms=NOW_MS + 9_000), ranks=Ranks(2, 2, None, 0)
        ),
        Cause.ASKED_TO_WAIT,
    ),
    "the wait queue": (
        seen(
            waiting(Hold.WAIT_QUEUE),
            circuit=CLOSED._replace(rests_until_ms=NOW_MS - 1),
            ranks=Ranks(2, 2, None, 0),
            most_runs=4,
        ),
        Cause.WAIT_QUEUE,
    ),
    "back-off": (seen(waiting(Hold.RETRY), counts=FAILED), Cause.BACK_OFF),
    "asked to wait": (seen(waiting(Hold.ASKED), counts=FAILED), Cause.ASKED_TO_WAIT),
    "back-off that is over, and workers are busy": (seen(waiting(Hold.RETRY, -1_001), counts=FAILED), Cause.QUEUED),
    "late, and nobody looks": (seen(waiting(None, -5_000), seconds_since_poll=30.0), Cause.NO_WORKER),
    "lingering": (seen(waiting(lease_ends_ms=NOW_MS + 3_000)), Cause.LINGERING),
    "its tick": (seen(waiting(lease_ends_ms=NOW_MS + 3_000), counts={"pending": 1}), Cause.TICK),
    "as late as a worker may be": (seen(waiting(None, -1_000), counts={"pending": 1}), Cause.TICK),
}


@pytest.mark.parametrize(("given", "cause"), CASES.values(), ids=CASES)
def test_each_cause_is_told_from_the_others(given: Seen, cause: Cause) -> None:
    found, sentence = why(given)
    assert found is cause
    assert sentence


def test_each_cause_has_a_row() -> None:
    assert {cause for _, cause in CASES.values()} == set(Cause)
