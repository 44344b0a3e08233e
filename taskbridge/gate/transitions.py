"""The gate's state machine, as one table. The Lua scripts beside it are its atomic implementation.

Who is authoritative
    Postgres, always. The gate only answers "is a runner alive for this tenant?" and "may this runner stop?". Losing
    all of Redis costs time, never a record: rounds over Postgres find pending records and remind their tenants.

States, how each is left, and who frees it when its owner dies
    idle      no key at all. Left by an event or a reminder.
    waiting   a deadline and nothing else, so no worker slot is held. Left by an event or a reminder whose spacing is
              over, or by its deadline; any worker's ticker fires it.
    queued    a run message is on its way. Left by the run that begins with the current token. A lost message is
              published again by the ticker with the same token after `republish_after`, then twice as long each time. A
              worker that does not declare the pipeline declines it: then it is published again soon, by one that does.
    running   a run holds the token and moves its deadline on while it works. Left by its settle. A run that died stops
              moving its deadline: the ticker issues a new token and publishes, and from then on the old one opens
              nothing, neither here nor in Postgres. The next run learns of the death when it begins, and counts it as
              a failure of the batch that it reads.

Why no event is lost
    `notify` asks whether a runner is alive and `settle` asks whether it may stop; both are atomic and both look at the
    same counter. An event either finds no runner and starts one, or is counted before the runner may stop. The lease
    alone cannot decide that: an event that arrives while a handler outlasts the lease would be dropped.

Why no record is lost
    An event is a wake-up, and it may come before its record's commit, or never. So the tail looks at all commits and
    reminds each tenant with records that none of its runs has looked at. `queued` may ignore a reminder: a token begins
    once, and no run settles as done without a read after its own begin. Everywhere else it counts as an event. What
    was lost with Redis is found by base rounds, which ask Postgres alone (`taskbridge/running/tail.py`).

Why a quiet runner ends without a run
    While it lingers nothing was notified and nothing reminded. What was committed since is found by the tail.

Why the first event does not wait
    The script that finds no runner publishes the run itself; no timer stands before it.

Trust window
    A token belongs to one run: each run that is published gets a new one, and a message that is published again keeps
    its own. So nothing that comes late or twice (a message, or a command that a client sends again because its reply
    got lost) can begin or end another run. Tokens are ordered: the first 16 digits are the server's microseconds when
    it was issued, and a tenant's next token is always above its last. Postgres keeps the highest token that claimed a
    cursor and refuses a lower one, so a run that froze between `begin` and its claim cannot take the cursor back from
    its successor. Should the gate's time be lost with all of Redis, the claim is refused, and `stale` issues a
    token above the cursor's owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum

from taskbridge.gate.constants import Constant
from taskbridge.gate.state import State

__all__ = ["TRANSITIONS", "Answer", "Condition", "Row", "State", "Verb"]


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


class Answer(IntEnum):
    """What a script answers. The numbers are given to the scripts by name when they are loaded."""

    STARTED = 1
    DELAYED = 2
    ABSORBED = 3
    BEGUN = 4
    REFUSED = 5
    KEPT = 6
    LOST = 7
    CONTINUED = 8
    LINGERING = 9
    FINISHED = 10
    HELD = 11
    REISSUED = 12
    PUBLISHED = 13
    REPUBLISHED = 14
    NOT_DUE = 15
    POSTPONED = 16
    ENDED = 17
    DECLINED = 18


class Condition(Enum):
    """What a row may ask before it applies; the value is the sentence that the docs print."""

    SPACING_OVER = (
        "last run + delay is past, or there was no last run; and "
        f"{Constant.EMPTY_RUN_MS} ms since a run that took nothing"
    )
    HELD = "held: by a failure, a rate limit, a pause, an open circuit, the cap on runs, or until its turn"
    FOUND = "it waits for its turn since a reminder, and had no event since"
    CURRENT = "the token is the current one"
    NEW_EVENTS = "events > swept"
    LEASE_ALIVE = "the lease was alive when the run began"
    MANY = "a base round found its records, or as many runs are queued as reminders may publish"
    QUIET = "it lingers, events = swept, the lease that the run saw has ended, and no operator starts it"
    OVERDUE = "the deadline is past, its turn has come, or an operator starts a tenant that waits"
    STILL_QUEUED = "its message is in the queue of first events still: an older one, or itself, is at the head"
    NO_SLOT = (
        "the circuit is open and this tenant may not probe it, the downstream asked the pipeline to wait, or as many "
        "runs are on as the pipeline may have"
    )
    IN_TURNS = "it waits for its turn, which has not come"
    OTHERS_IN_TURNS = "others wait for their turn, or enough of those who got it are queued"
    OTHERS_IN_QUEUE = "the run has a run slot, and others are in the wait queue"


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


# The first row that fits applies, so a row without a condition is the "otherwise" of those above it.
TRANSITIONS: tuple[Row, ...] = (
    Row(
        _I,
        Verb.NOTIFY,
        (_When.SPACING_OVER,),
        _Q,
        Answer.STARTED,
        "new token; publish to the first-event queue, in this step",
    ),
    Row(_I, Verb.NOTIFY, (), _W, Answer.DELAYED, "due at last run + delay"),
    Row(
        _W,
        Verb.NOTIFY,
        (_When.FOUND, _When.SPACING_OVER),
        _Q,
        Answer.STARTED,
        "held no more; new token; publish to the first-event queue, in this step",
    ),
    Row(_W, Verb.NOTIFY, (_When.HELD,), _W, Answer.ABSORBED, "count; an event never shortens a back-off"),
    Row(
        _W,
        Verb.NOTIFY,
        (_When.SPACING_OVER,),
        _Q,
        Answer.STARTED,
        "new token; publish to the first-event queue, in this step",
    ),
    Row(_W, Verb.NOTIFY, (), _W, Answer.DELAYED, "count; due moves to last run + delay if that is earlier"),
    Row(_Q, Verb.NOTIFY, (), _Q, Answer.ABSORBED, "count; pending delay = the smaller"),
    Row(_R, Verb.NOTIFY, (), _R, Answer.ABSORBED, "count; pending delay = the smaller"),
    Row(
        _I,
        Verb.REMIND,
        (_When.SPACING_OVER, _When.MANY),
        _W,
        Answer.POSTPONED,
        "one event until a run begins; held, behind those of its pipeline in the turns",
    ),
    Row(
        _I,
        Verb.REMIND,
        (_When.SPACING_OVER,),
        _Q,
        Answer.STARTED,
        "new token; publish to the first-event queue, in this step",
    ),
    Row(_I, Verb.REMIND, (), _W, Answer.DELAYED, "due at last run + delay"),
    Row(_W, Verb.REMIND, (_When.HELD,), _W, Answer.ABSORBED, "none: its deadline brings a run"),
    Row(
        _W,
        Verb.REMIND,
        (_When.SPACING_OVER, _When.MANY),
        _W,
        Answer.DELAYED,
        "one event until a run begins, unless events > swept; due now, if not before: the ticker starts it",
    ),
    Row(
        _W,
        Verb.REMIND,
        (_When.SPACING_OVER,),
        _Q,
        Answer.STARTED,
        "new token; publish to the first-event queue, in this step",
    ),
    Row(
        _W,
        Verb.REMIND,
        (),
        _W,
        Answer.DELAYED,
        "one event until a run begins, unless events > swept; due moves to last run + delay if that is earlier",
    ),
    Row(_Q, Verb.REMIND, (), _Q, Answer.ABSORBED, "none: its run reads what is committed now"),
    Row(
        _R,
        Verb.REMIND,
        (),
        _R,
        Answer.ABSORBED,
        "one event until a run begins, unless events > swept or the run may have looked; pending delay = the smaller",
    ),
    Row(
        _Q,
        Verb.BEGIN,
        (_When.CURRENT, _When.NO_SLOT),
        _W,
        Answer.POSTPONED,
        "held, in the wait queue and not in the turns",
    ),
    Row(
        _Q,
        Verb.BEGIN,
        (_When.CURRENT,),
        _R,
        Answer.BEGUN,
        "a reminder is no event any more; swept = events; last run = now; deadline = now + runner TTL; in neither wait "
        "queue nor turns; learns whether the run before it died, and by which name Postgres counts the burst",
    ),
    *_everywhere(Verb.BEGIN, Answer.REFUSED, "none: a late or doubled message"),
    Row(
        _Q,
        Verb.DECLINE,
        (_When.CURRENT,),
        _Q,
        Answer.DECLINED,
        f"due at now + {Constant.DECLINED_MS} ms, for the ticker of a worker that declares the pipeline",
    ),
    *_everywhere(Verb.DECLINE, Answer.LOST, "none: a late or doubled message"),
    Row(_R, Verb.BEAT, (_When.CURRENT,), _R, Answer.KEPT, "deadline = now + runner TTL"),
    *_everywhere(Verb.BEAT, Answer.LOST, "none: another run took over"),
    Row(
        _R,
        Verb.MORE,
        (_When.CURRENT, _When.OTHERS_IN_QUEUE),
        _W,
        Answer.POSTPONED,
        "held, at the end of the wait queue",
    ),
    Row(
        _R,
        Verb.MORE,
        (_When.CURRENT, _When.OTHERS_IN_TURNS),
        _W,
        Answer.POSTPONED,
        "held, behind those of its pipeline in the turns",
    ),
    Row(_R, Verb.MORE, (_When.CURRENT,), _Q, Answer.CONTINUED, "new token; publish to the continuation queue"),
    *_everywhere(Verb.MORE, Answer.LOST, "none: another run took over"),
    Row(_R, Verb.STOPPED, (_When.CURRENT,), _Q, Answer.CONTINUED, "new token; publish to the continuation queue"),
    *_everywhere(Verb.STOPPED, Answer.LOST, "none: another run took over"),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER, _When.OTHERS_IN_QUEUE),
        _W,
        Answer.POSTPONED,
        "held, at the end of the wait queue",
    ),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER, _When.OTHERS_IN_TURNS),
        _W,
        Answer.POSTPONED,
        "held, behind those of its pipeline in the turns",
    ),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.NEW_EVENTS, _When.SPACING_OVER),
        _Q,
        Answer.CONTINUED,
        "new token; publish to the continuation queue",
    ),
    Row(_R, Verb.DONE, (_When.CURRENT, _When.NEW_EVENTS), _W, Answer.LINGERING, "due at last run + pending delay"),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT, _When.LEASE_ALIVE),
        _W,
        Answer.LINGERING,
        "due when the lease ends, or now if it has; with `sweep_empty_ticks` at the next tick, if that is earlier",
    ),
    Row(
        _R,
        Verb.DONE,
        (_When.CURRENT,),
        _I,
        Answer.FINISHED,
        "hash and deadline deleted; last run kept while it can delay the next",
    ),
    *_everywhere(Verb.DONE, Answer.LOST, "none: another run took over"),
    Row(
        _R,
        Verb.RETRY,
        (_When.CURRENT,),
        _W,
        Answer.HELD,
        "due at now + back-off, or what the handler asked for, held; the circuit is judged, and while it is open, or "
        "all wait, the tenant is in the wait queue",
    ),
    *_everywhere(Verb.RETRY, Answer.LOST, "none: another run took over"),
    Row(
        _R,
        Verb.STALE,
        (_When.CURRENT,),
        _Q,
        Answer.REISSUED,
        "new token above the cursor's owner; publish to the continuation queue",
    ),
    *_everywhere(Verb.STALE, Answer.LOST, "none: another run took over"),
    Row(
        _W,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.IN_TURNS),
        _W,
        Answer.POSTPONED,
        "held, keeps its turn; the deadline moves on",
    ),
    Row(
        _W,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.QUIET),
        _I,
        Answer.ENDED,
        "hash and deadline deleted; no run, no message",
    ),
    Row(_W, Verb.DEADLINE, (_When.OVERDUE,), _Q, Answer.PUBLISHED, "new token; publish to the continuation queue"),
    Row(
        _Q,
        Verb.DEADLINE,
        (_When.OVERDUE, _When.STILL_QUEUED),
        _Q,
        Answer.POSTPONED,
        "none: the message is not lost; asked again after the first wait",
    ),
    Row(
        _Q,
        Verb.DEADLINE,
        (_When.OVERDUE,),
        _Q,
        Answer.REPUBLISHED,
        "publish again with the same token; the wait doubles",
    ),
    Row(
        _R,
        Verb.DEADLINE,
        (_When.OVERDUE,),
        _Q,
        Answer.REISSUED,
        "new token, which fences the old run off; note that it died; publish to the continuation queue",
    ),
    *_everywhere(Verb.DEADLINE, Answer.NOT_DUE, "none: another ticker was quicker"),
)
