"""Which runs of a pipeline may begin, as three tables: its circuit, its run slots, and its wait queue.

A run begins if it has a run slot and the circuit allows it; otherwise its tenant goes to the wait queue, and the gate's
table answers POSTPONED. When a run ends, the gate's table applies first, then the circuit's, then that of the slots.
`begin.lua` and `settle.lua`, with `circuit.lua` and `wait_queue.lua`, implement them.

Why the wait queue delays no other tenant's deadline
    When the circuit closes, the queue may hold every tenant of the pipeline. Only those for which a slot is reserved
    become due then. Without a cap all wait for their turn, and only a few turns are given at a time.

What frees a resource whose owner dies
    A run slot has a deadline, which its run extends while it works. So the slot of a dead run becomes free by itself,
    and so does one that is reserved for a tenant that never comes. Once a probe's deadline has passed, another tenant
    may probe. A tenant in the wait queue has a deadline too, in case nothing makes it due earlier.
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
    """The state of a pipeline's circuit."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    PROBING = "probing"


class Slots(StrEnum):
    """How many runs of a pipeline may be in progress: its cap, none while all wait, or a number that doubles."""

    STEADY = "steady"
    ALL_WAIT = "all wait"
    SLOW_START = "slow start"


class Queueing(StrEnum):
    """Whether a tenant is in its pipeline's wait queue."""

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
    REFUSED = "begin: refused"
    BEGUN = "begin: begun"
    LAST = "settle: sent to the end"
    KEPT = "a run slot is reserved for it"
    CALLED = "made due at a given time"
    TURNS = "the whole queue moves to the fair queue"
    DEADLINE_LOST = "it is first, and has no deadline"


class Condition(Enum):
    """A condition of a row; the value is the text that the docs print."""

    GENERAL = (
        f"a third tenant has failed, or {Constant.CIRCUIT_OPENS_AFTER} failures of at least two tenants, this one "
        "included, blame the downstream or the pipeline"
    )
    WAIT_OVER = "the wait is over"
    SLOT = "it can get a run slot"
    FIRST = "nobody waits ahead of it"
    OWN_PROBE = "its tenant probes"
    PROBE_DIED = "the probe's deadline has passed"
    LET = "a run slot is free, and the circuit allows it"
    CLOSES = "the run closed the circuit"
    CIRCUIT_CLOSED = "the circuit is closed, and the run had a slot"
    FULL = f"doubling reaches the cap ({Constant.SLOW_START_ENDS} runs without one), or the wait queue is empty"


class Effect(Enum):
    """What is done; the value is the text that the docs print."""

    NONE = "none"
    COUNT = "the failure is counted, with what it blames"
    FORGET = "earlier failures are forgotten"
    OPEN = f"the circuit opens for {Constant.CIRCUIT_WAIT_MS:,} ms; requeued; the head is due when that time ends"
    REOPEN = (
        f"the circuit opens for twice as long as before, at most {Constant.LONGEST_CIRCUIT_WAIT_MS:,} ms; requeued; "
        "the head is due when that time ends"
    )
    CLOSE = "failures and probes are forgotten"
    JOIN = "requeued"
    REFUSE = "refused"
    REFUSE_AND_CALL = "refused; the head is due when it may probe"
    PROBE = "the run begins as the probe"
    GIVE_UP = "refused; the tenant no longer probes"
    GIVE_UP_AND_CALL = "refused; the tenant no longer probes; the head is due now"
    NEXT_PROBE = "the tenant no longer probes; the head is due now"
    TAKE = "with a cap, the run holds a slot until now + runner TTL"
    GIVE_BACK = "refused; a slot reserved for it becomes free"
    GIVE_BACK_AND_CALL = "refused; a slot reserved for it becomes free; the head is due when the wait ends"
    WAIT = (
        "the pipeline waits for as long as the handler asked, or longer if it already does; requeued; "
        "the head is due when the wait ends"
    )
    FREE = "its slot becomes free"
    FREE_AND_CALL = "its slot becomes free; the head is due when the wait ends"
    FILL = "admit waiting tenants"
    KEEP = "its slot is reserved for the head, for `republish_after`"
    DOUBLE = "twice as many runs are allowed; admit waiting tenants"
    STEADY = "only the cap applies from now on; admit waiting tenants"
    ENTER = (
        "due after the longer of `republish_after` and the time that it has already waited, but at most "
        f"{Constant.LONGEST_REPUBLISH_MS:,} ms"
    )
    TO_THE_END = "behind all others; due after `republish_after`, or when its back-off ends"
    START = "due now"
    MOVE = "due at that time"
    WAIT_FOR_TURN = "in the fair queue; keeps its deadline, which is extended if it passes"


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

# In each table the first row that matches applies, so a row without a condition is the "otherwise" of those above it.
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
