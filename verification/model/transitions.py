"""The gate's state machine, as one table. The Lua scripts of `taskbridge/gate` are its atomic implementation.

`taskbridge/gate/state.py` says what the states are, and why no event and no record is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from taskbridge.gate.constants import Constant
from taskbridge.gate.state import Answer, State

__all__ = ["TRANSITIONS", "Condition", "Row", "Verb"]


class Verb(StrEnum):
    """What can happen to a tenant."""

    NOTIFY = "notify"
    REMIND = "remind"
    BEGIN = "begin"
    DECLINE = "decline"
    BEAT = "beat"
    DEADLINE = "deadline"
    MORE = "settle: more"
    STOPPED = "settle: stopped"
    DONE = "settle: done"
    RETRY = "settle: retry"
    STALE = "settle: stale token"
    PAUSED = "settle: paused"


class Condition(Enum):
    """A condition of a row; the value is the text that the docs print."""

    SPACING_OVER = "the delay is over"
    HELD = "held, but not by a pause"
    PAUSED = "held by a pause"
    FOUND = "a reminder made it wait for a turn"
    CURRENT = "the token is current"
    REPEATED = "the same call did this before, and its reply was lost"
    NEW_EVENTS = "there are new events"
    LEASE_ALIVE = "the lease was alive when the run began"
    MANY = "the reminder needs a turn"
    QUIET = "no operator starts it; a pause holds it, or nothing holds it and it is quiet"
    OVERDUE = "it is due"
    STILL_QUEUED = "the message at the head of the queue of first events is this run's, or an older one"
    NO_SLOT = "the circuit or the run slots refuse it"
    IN_TURNS = "it waits for a turn that has not come; no operator starts it"
    OTHERS_IN_TURNS = "the next run needs a turn"
    OTHERS_IN_QUEUE = "its run slot is wanted"


@dataclass(frozen=True, slots=True)
class Row:
    """One transition: in `state`, on `verb`, when all of `when` hold: go to `next` and answer `answer`."""

    state: State
    verb: Verb
    when: tuple[Condition, ...]
    next: State
    answer: Answer
    effect: str


_I, _W, _Q, _R = State.IDLE, State.WAITING, State.QUEUED, State.RUNNING
_When = Condition


def _everywhere(verb: Verb, answer: Answer, effect: str) -> tuple[Row, ...]:
    return tuple(Row(state, verb, (), state, answer, effect) for state in State)


REPLAYED = "none: the same answer again"
TAKEN_OVER = "none: another run took over"
LATE = "none: a late or duplicate message"
COUNT = "none: the event is counted"
PUBLISH_FIRST = "new token; publish as a first event"
PUBLISH_NEXT = "new token; publish as a continuation"
TO_WAIT_QUEUE = "held, at the end of the wait queue"
TO_FAIR_QUEUE = "held, in the fair queue"

# The first row that matches applies, so a row without a condition is the "otherwise" of those above it.
TRANSITIONS: tuple[Row, ...] = (
    Row(_I, Verb.NOTIFY, (_When.SPACING_OVER,), _Q, Answer.STARTED, PUBLISH_FIRST),
    Row(_I, Verb.NOTIFY, (), _W, Answer.DELAYED, "due at last run + delay"),
    Row(
        _W,
        Verb.NOTIFY,
        (_When.FOUND, _When.SPACING_OVER),
        _Q,
        Answer.STARTED,
        "no longer held; new token; publish as a first event",
    ),
    Row(_W, Verb.NOTIFY, (_When.HELD,), _W, Answer.ABSORBED, "none: an event never shortens a wait"),
    Row(_W, Verb.NOTIFY, (_When.PAUSED,), _W, Answer.ABSORBED, "none: an event does not end a pause"),
    Row(_W, Verb.NOTIFY, (_When.SPACING_OVER,), _Q, Answer.STARTED, PUBLISH_FIRST),
    Row(_W, Verb.NOTIFY, (), _W, Answer.DELAYED, "due at last run + delay, if that is earlier"),
    Row(_Q, Verb.NOTIFY, (_When.REPEATED,), _Q, Answer.STARTED, REPLAYED),
    Row(_Q, Verb.NOTIFY, (), _Q, Answer.ABSORBED, COUNT),
    Row(_R, Verb.NOTIFY, (), _R, Answer.ABSORBED, COUNT),
    Row(
        _I,
        Verb.REMIND,
        (_When.SPACING_OVER, _When.MANY),
        _W,
        Answer.POSTPONED,
        "count the reminder; held, in the fair queue",
    ),
    Row(_I, Verb.REMIND, (_When.SPACING_OVER,), _Q, Answer.STARTED, PUBLISH_FIRST),
    Row(_I, Verb.REMIND, (), _W, Answer.DELAYED, "due at last run + delay"),
    # Paused tenants get no reminders, so a reminder means that the pause is over.
    Row(_W, Verb.REMIND, (_When.HELD,), _W, Answer.ABSORBED, "none: its deadline starts a run"),
    Row(
        _W,
        Verb.REMIND,
        (_When.SPACING_OVER, _When.MANY),
        _W,
        Answer.DELAYED,
        "count the reminder; no longer paused; due now",
    ),
    Row(
        _W,
        Verb.REMIND,
        (_When.SPACING_OVER,),
        _Q,
        Answer.STARTED,
        "count the reminder; no longer paused; new token; publish as a first event",
    ),
    Row(
        _W,
        Verb.REMIND,
        (),
        _W,
        Answer.DELAYED,
        "count the reminder; no longer paused; due at last run + delay, if that is earlier",
    ),
    Row(_Q, Verb.REMIND, (_When.REPEATED,), _Q, Answer.STARTED, REPLAYED),
    Row(_Q, Verb.REMIND, (), _Q, Answer.ABSORBED, "none: its queued run will read the records"),
    Row(
        _R,
        Verb.REMIND,
        (),
        _R,
        Answer.ABSORBED,
        "count the reminder, unless it is the reconciler's: the run may have read those records",
    ),
    Row(
        _Q,
        Verb.BEGIN,
        (_When.CURRENT, _When.NO_SLOT),
        _W,
        Answer.POSTPONED,
        "held, in the wait queue",
    ),
    Row(
        _Q,
        Verb.BEGIN,
        (_When.CURRENT,),
        _R,
        Answer.BEGUN,
        "no event is new any more; last run = now; deadline = now + runner TTL; leaves both queues",
    ),
    Row(_R, Verb.BEGIN, (_When.CURRENT, _When.REPEATED), _R, Answer.BEGUN, REPLAYED),
    *_everywhere(Verb.BEGIN, Answer.REFUSED, LATE),
    Row(
        _Q,
        Verb.DECLINE,
        (_When.CURRENT,),
        _Q,
        Answer.DECLINED,
        f"due at now + {Constant.DECLINED_MS} ms, for a worker that declares the pipeline; if a turn started this run, "
        "the next tenant gets the turn",
    ),
    *_everywhere(Verb.DECLINE, Answer.LOST, LATE),
    Row(_R, Verb.BEAT, (_When.CURRENT,), _R, Answer.KEPT, "deadline = now + runner TTL"),
    *_everywhere(Verb.BEAT, Answer.LOST, TAKEN_OVER),
    Row(_R, Verb.MORE, (_When.CURRENT, _When.OTHERS_IN_QUEUE), _W, Answer.POSTPONED, TO_WAIT_QUEUE),
    Row(_R, Verb.MORE, (_When.CURRENT, _When.OTHERS_IN_TURNS), _W, Answer.POSTPONED, TO_FAIR_QUEUE),
    Row(_R, Verb.MORE, (_When.CURRENT,), _Q, Answer.CONTINUED, PUBLISH_NEXT),
    Row(_Q, Verb.MORE, (_When.REPEATED,), _Q, Answer.CONTINUED, REPLAYED),
    *_everywhere(Verb.MORE, Answer.LOST, TAKEN_OVER),
    Row(_R, Verb.STOPPED, (_When.CURRENT,), _Q, Answer.CONTINUED, PUBLISH_NEXT),
    Row(_Q, Verb.STOPPED, (_When.REPEATED,), _Q, Answer.CONTINUED, REPLAYED),
    *_everywhere(Verb.STOPPED, Answer.LOST, TAKEN_OVER),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER, _When.OTHERS_IN_QUEUE),
        _W,
        Answer.POSTPONED,
        TO_WAIT_QUEUE,
    ),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER, _When.OTHERS_IN_TURNS),
        _W,
        Answer.POSTPONED,
        TO_FAIR_QUEUE,
    ),
    Row(_R, Verb.DONE, (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER), _Q, Answer.CONTINUED, PUBLISH_NEXT),
    Row(_R, Verb.DONE, (_When.CURRENT, _When.NEW_EVENTS), _W, Answer.LINGERING, "due at last run + pending delay"),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.LEASE_ALIVE),
        _W,
        Answer.LINGERING,
        "due when the lease ends; with `sweep_empty_ticks`, at the next tick if that is earlier",
    ),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT,),
        _I,
        Answer.FINISHED,
        "hash and deadline deleted; last run kept while it can delay the next",
    ),
    Row(_Q, Verb.DONE, (_When.REPEATED,), _Q, Answer.CONTINUED, REPLAYED),
    *_everywhere(Verb.DONE, Answer.LOST, TAKEN_OVER),
    Row(
        _R,
        Verb.RETRY,
        (_When.CURRENT,),
        _W,
        Answer.HELD,
        "held; due after the back-off, or after the wait that the handler asked for",
    ),
    Row(
        _R,
        Verb.PAUSED,
        (_When.CURRENT,),
        _W,
        Answer.HELD,
        "held by a pause; deleted after a day",
    ),
    *_everywhere(Verb.PAUSED, Answer.LOST, TAKEN_OVER),
    *_everywhere(Verb.RETRY, Answer.LOST, TAKEN_OVER),
    Row(
        _R,
        Verb.STALE,
        (_When.CURRENT,),
        _Q,
        Answer.REISSUED,
        "new token, above that of the cursor's owner; publish as a continuation",
    ),
    Row(_Q, Verb.STALE, (_When.REPEATED,), _Q, Answer.REISSUED, REPLAYED),
    *_everywhere(Verb.STALE, Answer.LOST, TAKEN_OVER),
    Row(
        _W,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.IN_TURNS),
        _W,
        Answer.POSTPONED,
        "keeps its place in the fair queue; the deadline is extended",
    ),
    Row(
        _W,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.QUIET),
        _I,
        Answer.ENDED,
        "hash and deadline deleted; no run",
    ),
    Row(_W, Verb.DEADLINE, (_When.OVERDUE,), _Q, Answer.PUBLISHED, PUBLISH_NEXT),
    Row(_Q, Verb.DEADLINE, (_When.REPEATED,), _Q, Answer.PUBLISHED, REPLAYED),
    Row(
        _Q,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.STILL_QUEUED),
        _Q,
        Answer.POSTPONED,
        "none: the message is not lost; checked again after `republish_after`",
    ),
    Row(
        _Q,
        Verb.DEADLINE,
        (_When.OVERDUE,),
        _Q,
        Answer.REPUBLISHED,
        "publish again with the same token; the wait until the next deadline doubles",
    ),
    Row(
        _R,
        Verb.DEADLINE,
        (_When.OVERDUE,),
        _Q,
        Answer.REISSUED,
        "new token, so the old run can no longer commit; its death is noted; publish as a continuation",
    ),
    *_everywhere(Verb.DEADLINE, Answer.NOT_DUE, "none: another ticker was faster"),
)
