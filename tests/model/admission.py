"""Who of a pipeline may begin, as three tables: its circuit, its run slots, and whether a tenant is in its wait queue.

A run begins if it has a run slot and the circuit lets it; else its tenant goes to the wait queue, and the gate's table
says POSTPONED. The end of a run goes through the gate's table, then the circuit's, then the slots'. The scripts that do
it are `begin.lua` and `settle.lua`, with `circuit.lua` and `wait_queue.lua`.

Why nobody's deadline stands behind the wait queue
    It may hold every tenant of the pipeline when the circuit closes. Only those for whom a slot is kept are due then.
    Without a cap all wait for their turn, of which few are given at once.

Who frees what, when its owner dies
    A run slot has a deadline, which its run moves on while it works. So the slot of a run that died comes free by
    itself, and so does one that is kept for a tenant that never comes. When the deadline of a probe is past, another
    tenant may probe. A tenant in the wait queue has a deadline too, for the case that nobody calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Generic, TypeVar

from taskbridge.gate.constants import Constant

__all__ = [
    "CIRCUIT",
    "SLOTS",
    "WAIT_QUEUE",
    "Circuit",
    "Condition",
    "Effect",
    "Queueing",
    "Row",
    "Slots",
    "Verb",
]


class Circuit(StrEnum):
    """How a pipeline's circuit stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    PROBING = "probing"


class Slots(StrEnum):
    """How many runs of a pipeline may be on: as its cap says, none since all wait, or a number that doubles."""

    STEADY = "steady"
    ALL_WAIT = "all wait"
    SLOW_START = "slow start"


class Queueing(StrEnum):
    """Whether a tenant stands in its pipeline's wait queue."""

    OUTSIDE = "outside"
    INSIDE = "inside"


class Verb(StrEnum):
    """What can happen to a circuit, to run slots, or to a tenant in the wait queue."""

    BEGIN = "begin"
    HANDLED = "settle: handled some"
    NOTHING = "settle: handled none"
    FAILED = "settle: failed"
    ALL_WAIT = "settle: all wait"
    TIME = "time passes"
    REFUSED = "begin, refused"
    BEGUN = "begin, begun"
    LAST = "settle, sent to the end"
    KEPT = "a run slot is kept for it"
    CALLED = "called for a time"
    TURNS = "all tenants in it go to the fair queue"
    DEADLINE_LOST = "first, and without a deadline"


class Condition(Enum):
    """What a row may ask before it applies; the value is the sentence that the docs print."""

    GENERAL = (
        "the failure is neither one tenant's nor one record's: a third tenant failed since something was handled, or "
        f"two blame the downstream and {Constant.CIRCUIT_OPENS_AFTER} runs in a row failed"
    )
    WAIT_OVER = "the wait is over"
    SLOT = "it has a run slot"
    FIRST = "nobody in the wait queue is before it"
    OWN_PROBE = "its tenant is the one that probes"
    PROBE_DIED = "the probe's deadline is past"
    LET = "a run slot is free, and the circuit lets it"
    CLOSES = "the run closed the circuit"
    CIRCUIT_CLOSED = "the circuit is closed, and the run had a slot"
    FULL = (
        f"twice as many are the cap or more, or {Constant.SLOW_START_ENDS} or more where there is none, or the wait "
        "queue is empty"
    )


class Effect(Enum):
    """What is done; the value is the text that the docs print."""

    NONE = "none"
    COUNT = "counted, also whom it blames"
    FORGET = "the failures before it are forgotten"
    OPEN = (
        f"open for {Constant.CIRCUIT_WAIT_MS:,} ms; its tenant goes to the end of the wait queue, and the first is "
        "called for the end of the wait"
    )
    REOPEN = (
        f"open for twice as long as before, {Constant.LONGEST_CIRCUIT_WAIT_MS:,} ms at the most; its tenant goes to "
        "the end of the wait queue, and the first is called for the end of the wait"
    )
    CLOSE = "all that is known of failures and probes is forgotten; the next table says who of the wait queue may come"
    JOIN = "its tenant goes to the end of the wait queue"
    REFUSE = "refused"
    REFUSE_AND_CALL = "refused; the first in the wait queue is called for when it may probe"
    PROBE = "it begins as the probe"
    GIVE_UP = "it probes no more; refused"
    GIVE_UP_AND_CALL = "it probes no more; refused; the first in the wait queue is called now"
    NEXT_PROBE = "it probes no more; the first in the wait queue is called now"
    TAKE = "it has a slot until now + runner TTL, where there is a cap"
    GIVE_BACK = "refused, and a slot that was kept for it is free"
    GIVE_BACK_AND_CALL = (
        "refused, and a slot that was kept for it is free; the first in the wait queue is called for the end of the "
        "wait"
    )
    WAIT = (
        "all wait for as long as the handler asked, or longer if they do already, and then begin with one run at a "
        "time; its tenant goes to the end of the wait queue, and the first is called for the end of the wait"
    )
    FREE = "its slot is free"
    FREE_AND_CALL = "its slot is free; the first in the wait queue is called for the end of the wait"
    FILL = "free slots are kept for the first in the wait queue; without a cap all tenants in it go to the fair queue"
    KEEP = "its slot is kept for the first in the wait queue, for as long as a lost message takes to come back"
    DOUBLE = "twice as many runs may be on; free slots are kept for the first in the queue, unless the circuit is open"
    STEADY = (
        "the cap alone counts; unless the circuit is open, free slots are kept for the first in the queue, and without "
        "a cap all tenants in it go to the fair queue"
    )
    ENTER = (
        "first events stand before continuations, each in the order in which they first asked; due after "
        f"`republish_after`, or in as long as it has waited, {Constant.LONGEST_REPUBLISH_MS:,} ms at the most"
    )
    TO_THE_END = "behind all others; due after `republish_after`, or when its back-off ends"
    START = "due now"
    MOVE = "due at that time"
    WAIT_FOR_TURN = (
        "in the fair queue behind other tenants of its pipeline; its deadline stays, and is extended when it has passed"
    )


S = TypeVar("S", Circuit, Slots, Queueing)


@dataclass(frozen=True, slots=True)
class Row(Generic[S]):
    """One transition: in `state`, on `verb`, when all of `when` hold: go to `next` and do `effect`."""

    state: S
    verb: Verb
    when: tuple[Condition, ...]
    next: S
    effect: Effect


def _always(states: type[S], verb: Verb, after: S, effect: Effect) -> tuple[Row[S], ...]:
    return tuple(Row(state, verb, (), after, effect) for state in states)


_C, _O, _H, _P = Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN, Circuit.PROBING
_When = Condition

# In each table the first row that fits applies, so a row without a condition is the "otherwise" of those above it.
CIRCUIT: tuple[Row[Circuit], ...] = (
    Row(_C, Verb.BEGIN, (), _C, Effect.NONE),
    Row(_C, Verb.HANDLED, (), _C, Effect.FORGET),
    Row(_C, Verb.NOTHING, (), _C, Effect.NONE),
    Row(_C, Verb.FAILED, (_When.GENERAL,), _O, Effect.OPEN),
    Row(_C, Verb.FAILED, (), _C, Effect.COUNT),
    Row(_O, Verb.TIME, (_When.WAIT_OVER,), _H, Effect.NONE),
    Row(_O, Verb.BEGIN, (_When.SLOT,), _O, Effect.REFUSE_AND_CALL),
    Row(_O, Verb.BEGIN, (), _O, Effect.REFUSE),
    Row(_O, Verb.HANDLED, (), _C, Effect.CLOSE),
    Row(_O, Verb.NOTHING, (), _O, Effect.NONE),
    Row(_O, Verb.FAILED, (), _O, Effect.JOIN),
    Row(_H, Verb.BEGIN, (_When.SLOT, _When.FIRST), _P, Effect.PROBE),
    Row(_H, Verb.BEGIN, (_When.SLOT,), _H, Effect.REFUSE_AND_CALL),
    Row(_H, Verb.BEGIN, (), _H, Effect.REFUSE),
    Row(_H, Verb.HANDLED, (), _C, Effect.CLOSE),
    Row(_H, Verb.NOTHING, (), _H, Effect.NONE),
    Row(_H, Verb.FAILED, (), _H, Effect.JOIN),
    Row(_P, Verb.BEGIN, (_When.OWN_PROBE, _When.SLOT, _When.FIRST), _P, Effect.PROBE),
    Row(_P, Verb.BEGIN, (_When.OWN_PROBE, _When.SLOT), _H, Effect.GIVE_UP_AND_CALL),
    Row(_P, Verb.BEGIN, (_When.OWN_PROBE,), _H, Effect.GIVE_UP),
    Row(_P, Verb.BEGIN, (_When.PROBE_DIED, _When.SLOT, _When.FIRST), _P, Effect.PROBE),
    Row(_P, Verb.BEGIN, (_When.PROBE_DIED, _When.SLOT), _P, Effect.REFUSE_AND_CALL),
    Row(_P, Verb.BEGIN, (), _P, Effect.REFUSE),
    Row(_P, Verb.HANDLED, (), _C, Effect.CLOSE),
    Row(_P, Verb.NOTHING, (_When.OWN_PROBE,), _H, Effect.NEXT_PROBE),
    Row(_P, Verb.NOTHING, (), _P, Effect.NONE),
    Row(_P, Verb.FAILED, (_When.OWN_PROBE,), _O, Effect.REOPEN),
    Row(_P, Verb.FAILED, (), _P, Effect.JOIN),
)

_S, _A, _W = Slots.STEADY, Slots.ALL_WAIT, Slots.SLOW_START

SLOTS: tuple[Row[Slots], ...] = (
    Row(_S, Verb.BEGIN, (_When.LET,), _S, Effect.TAKE),
    Row(_S, Verb.BEGIN, (), _S, Effect.GIVE_BACK),
    Row(_A, Verb.BEGIN, (), _A, Effect.GIVE_BACK_AND_CALL),
    Row(_W, Verb.BEGIN, (_When.LET,), _W, Effect.TAKE),
    Row(_W, Verb.BEGIN, (), _W, Effect.GIVE_BACK),
    *_always(Slots, Verb.ALL_WAIT, _A, Effect.WAIT),
    Row(_A, Verb.TIME, (_When.WAIT_OVER,), _W, Effect.NONE),
    Row(_W, Verb.HANDLED, (_When.FULL,), _S, Effect.STEADY),
    Row(_W, Verb.HANDLED, (), _W, Effect.DOUBLE),
    Row(_S, Verb.HANDLED, (_When.CLOSES,), _S, Effect.FILL),
    *(
        Row(state, verb, when, state, effect)
        for state, verbs in ((_S, (Verb.HANDLED, Verb.NOTHING)), (_W, (Verb.NOTHING,)))
        for verb in verbs
        for when, effect in (((_When.CIRCUIT_CLOSED,), Effect.KEEP), ((), Effect.FREE))
    ),
    Row(_A, Verb.HANDLED, (_When.CLOSES,), _A, Effect.FREE_AND_CALL),
    Row(_A, Verb.HANDLED, (), _A, Effect.FREE),
    Row(_A, Verb.NOTHING, (), _A, Effect.FREE),
)

_OUT, _IN = Queueing.OUTSIDE, Queueing.INSIDE

WAIT_QUEUE: tuple[Row[Queueing], ...] = (
    *_always(Queueing, Verb.REFUSED, _IN, Effect.ENTER),
    *_always(Queueing, Verb.LAST, _IN, Effect.TO_THE_END),
    *_always(Queueing, Verb.BEGUN, _OUT, Effect.NONE),
    Row(_IN, Verb.KEPT, (), _OUT, Effect.START),
    Row(_IN, Verb.CALLED, (), _IN, Effect.MOVE),
    Row(_IN, Verb.TURNS, (), _OUT, Effect.WAIT_FOR_TURN),
    Row(_IN, Verb.DEADLINE_LOST, (), _OUT, Effect.NONE),
)
