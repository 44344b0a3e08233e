"""The whole protocol for one tenant, small enough to visit every state: `World` is a state, `steps` its actions.

What is in it
    Producers commit a record and then notify. The gate moves by the project's own table (`choose`). Run messages travel
    in any order. A run begins, then sweeps: it claims the cursor, reads a batch of one record, hands it over, advances;
    after that it sweeps again or settles. Reconcile notifies for records that wait without a runner, and gives a runner
    without a deadline one. A heartbeat is not in it: all that it does is to keep a deadline from firing.

What time is
    There is none. A deadline may fire whenever it exists, and a condition that depends on a clock or on how long ago
    something was (`SPACING_OVER`, `LEASE_ALIVE`) may hold or not. So a run that stands still while the others go on is
    a frozen one, and nothing more has to be said about freezing.

    One thing is said of it: a lease outlasts the transaction of a producer that notifies before it commits. While such
    a producer is under way the lease is alive, and a deadline that is the lease's end does not fire.

What a line is
    Whoever may not begin, or not go on, waits held with a deadline of its own. That others call it sooner is not in the
    model: a deadline may fire at any time anyway. `Faults.postponed` bounds how often it happens.

What tokens are
    Their rank, 1 for the lowest. A new token is above all others; once the clock of Redis has stepped back it may have
    any rank that its floor allows.

What goes wrong
    Each fault takes one of its kind from `Faults`; the search visits every place where it can strike.

What is checked
    A step that breaks I1 says so in `Step.breach`. Whether a quiet end reaches `is_finished` is the search's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from itertools import product
from typing import NamedTuple

from taskbridge.gate.transitions import TRANSITIONS, Answer, Condition, Row, State, Verb, choose

__all__ = [
    "Breach",
    "Faults",
    "Guards",
    "Kind",
    "Step",
    "World",
    "describe",
    "first_world",
    "is_finished",
    "is_handled",
    "steps",
]

NONE = 0
"""No token; ranks begin at 1."""

MOST_COPIES = 2
"""Messages with the current token that can be in flight at once; a third is refused where the second is."""

MOST_LATE = 1
"""Messages with other tokens that can be in flight at once. No token becomes the current one again, so that they are
refused is all that can happen to them, and one shows it."""

TIME = frozenset({Condition.SPACING_OVER, Condition.LEASE_ALIVE})
SPACING = frozenset({Condition.SPACING_OVER})

PUBLISHING = frozenset({Answer.STARTED, Answer.CONTINUED, Answer.REISSUED, Answer.PUBLISHED, Answer.REPUBLISHED})


@dataclass(frozen=True, slots=True)
class Guards:
    """What the protocol is careful about. Each can be switched off, to see that the search notices."""

    settle_counts_events: bool = True
    begin_checks_token: bool = True
    claim_refuses_lower_tokens: bool = True
    advance_checks_owner: bool = True
    advance_checks_position: bool = True
    done_after_own_sweep: bool = True
    token_per_run: bool = True
    queued_has_deadline: bool = True
    reconciles: bool = True
    reconcile_adopts: bool = True
    closing_sweep: bool = True
    lease_as_of_begin: bool = True
    postponed_has_deadline: bool = True


class Faults(NamedTuple):
    """How many faults of each kind may still happen."""

    worker_dies: int = 0
    producer_dies: int = 0
    handler_fails: int = 0
    message_lost: int = 0
    message_doubled: int = 0
    redis_lost: int = 0
    redis_rewinds: int = 0
    deadline_lost: int = 0
    hash_lost: int = 0
    reply_lost: int = 0
    notifies_early: int = 0
    clock_steps: int = 0
    postponed: int = 0


class Breach(Enum):
    """A way to break I1."""

    TWO_RUNS = "two runs hold one token at once"
    NOT_OWNER = "a run advanced the cursor, which another token owns"
    SAME_POSITION = "two runs advanced from one position of the cursor"
    OVERTAKEN = "a run advanced the cursor, which a later runner has claimed"


class Kind(Enum):
    """When a step is taken in a quiet end: when the faults are over and no new work comes."""

    WORK = "at once"
    CLOCK = "when there is no work: what waits for time to pass"
    TRAFFIC = "never: new work, or a lease that does not end"
    FAULT = "never: faults are over"


class Stage(IntEnum):
    """How far a producer is with its record."""

    ABSENT = 0
    COMMITTED = 1
    NOTIFIED = 2
    ORPHANED = 3
    ANNOUNCED = 4


class At(IntEnum):
    """What a run does next."""

    CLAIM = 0
    READ = 1
    HAND_OVER = 2
    SETTLE_MORE = 3
    SETTLE_DONE = 4
    SETTLE_RETRY = 5
    SETTLE_OUTRANKED = 6
    SETTLE_STOPPED = 7


SETTLES = {
    At.SETTLE_MORE: Verb.MORE,
    At.SETTLE_DONE: Verb.DONE,
    At.SETTLE_RETRY: Verb.RETRY,
    At.SETTLE_OUTRANKED: Verb.OUTRANKED,
    At.SETTLE_STOPPED: Verb.STOPPED,
}


class Gate(NamedTuple):
    """What Redis knows. `new` stands for events > swept, `leased` for a lease that is alive: when the run
    began, or, while the tenant waits, until its deadline.
    """

    state: State = State.IDLE
    token: int = NONE
    new: bool = False
    held: bool = False
    deadline: bool = False
    leased: bool = False


class Cursor(NamedTuple):
    """What Postgres knows: the highest token that claimed it, and records, one bit each.

    `target` is what a sweep of several batches was begun for: until it is done, what was committed later has to wait.
    """

    owner: int = NONE
    handled: int = 0
    target: int = 0


class Run(NamedTuple):
    """One run under way.

    `seen` is the cursor's position when it read and `target` what its sweep is for, `resumed` that an earlier batch
    began that sweep, `owner` the token that outranked it, and `ended` that its settle was done but the reply was lost,
    so that it will settle again.
    """

    at: At
    token: int
    batch: int = 0
    seen: int = 0
    target: int = 0
    resumed: bool = False
    owner: int = NONE
    ended: bool = False


class World(NamedTuple):
    """One state of everything."""

    records: tuple[Stage, ...]
    gate: Gate
    messages: tuple[int, ...]
    cursor: Cursor
    runs: tuple[Run, ...]
    faults: Faults
    workers: int
    clock_stepped: bool = False


class Step(NamedTuple):
    """One action: what it says in a trace, when a quiet end takes it, the state after it, and what it breaks."""

    text: str
    kind: Kind
    world: World
    breach: Breach | None = None


def first_world(records: int, faults: Faults, workers: int) -> World:
    """Return the state before anything happened; `workers` is how many runs can be under way at once."""
    return World((Stage.ABSENT,) * records, Gate(), (), Cursor(), (), faults, workers)


def is_finished(world: World) -> bool:
    """Whether nothing is left to do and nothing is left over: every committed record handled, the tenant idle."""
    return is_handled(world) and world.gate == Gate()


def is_handled(world: World) -> bool:
    """Whether nothing is left to do: every committed record handled, and nothing more will happen by itself."""
    under_way = world.gate.deadline or world.messages or world.runs or is_announced(world)
    return not (pending(world) or under_way)


def is_announced(world: World) -> bool:
    """Whether a producer has notified and not yet committed."""
    return Stage.ANNOUNCED in world.records


def pending(world: World) -> int:
    """Return the records that are committed and not handled, one bit each."""
    open_stages = (Stage.ABSENT, Stage.ANNOUNCED)
    committed = sum(1 << at for at, stage in enumerate(world.records) if stage not in open_stages)
    return committed & ~world.cursor.handled


def steps(world: World, guards: Guards) -> Iterator[Step]:
    """Return every step that can be taken in `world`."""
    for step in _steps(world, guards):
        yield Step(step.text, step.kind, _canonical(step.world), step.breach)


def describe(world: World) -> str:
    """Return `world` as one line."""
    gate = world.gate
    parts = [f"gate {gate.state}"]
    if gate.token:
        parts.append(f"token {gate.token}")
    parts += [name for name in ("new", "held", "deadline", "leased") if getattr(gate, name)]
    parts.append(f"| cursor owner {world.cursor.owner or '-'}, handled {world.cursor.handled:b}")
    parts.append(f"| records {' '.join(stage.name.lower() for stage in world.records)}")
    if world.messages:
        parts.append(f"| messages {' '.join(map(str, world.messages))}")
    for run in world.runs:
        parts.append(f"| run {run.token} at {run.at.name.lower()}")
    return " ".join(parts)


def _steps(world: World, guards: Guards) -> Iterator[Step]:
    yield from _producers(world, guards)
    yield from _messages(world, guards)
    for at, run in enumerate(world.runs):
        others = _with(world, world.messages, world.runs[:at] + world.runs[at + 1 :])
        yield from _RUN_STEPS[run.at](others, run, guards)
        if world.faults.worker_dies:
            yield Step(f"the worker of run {run.token} dies", Kind.FAULT, _spent(others, "worker_dies"))
    yield from _ticker(world, guards)
    yield from _lost_redis(world)


# Producers


def _producers(world: World, guards: Guards) -> Iterator[Step]:
    for at, stage in enumerate(world.records):
        name = f"producer {at + 1}"
        if stage is Stage.ABSENT and (at == 0 or world.records[at - 1] is not Stage.ABSENT):
            yield Step(f"{name} commits", Kind.TRAFFIC, _recorded(world, at, Stage.COMMITTED))
            if world.faults.notifies_early:
                announced = _spent(_recorded(world, at, Stage.ANNOUNCED), "notifies_early")
                for answer, after in _notify(announced, guards):
                    yield Step(f"{name} notifies before it commits: {answer.name}", Kind.TRAFFIC, after)
        elif stage is Stage.ANNOUNCED:
            committed = _recorded(world, at, Stage.NOTIFIED)
            if world.gate.state is State.WAITING and not is_announced(committed):
                committed = committed._replace(gate=world.gate._replace(leased=False))
            yield Step(f"{name} commits late", Kind.WORK, committed)
        elif stage is Stage.COMMITTED:
            notified = _recorded(world, at, Stage.NOTIFIED)
            for answer, after in _notify(notified, guards):
                yield Step(f"{name} notifies: {answer.name}", Kind.WORK, after)
            if world.faults.producer_dies:
                orphaned = _recorded(world, at, Stage.ORPHANED)
                yield Step(f"{name} dies before it notifies", Kind.FAULT, _spent(orphaned, "producer_dies"))


def _recorded(world: World, at: int, stage: Stage) -> World:
    return world._replace(records=(*world.records[:at], stage, *world.records[at + 1 :]))


# The gate: conditions in, the table's row, and what the row does to the little that is modelled


@cache
def _rows(
    state: State, verb: Verb, known: frozenset[Condition], unknown: frozenset[Condition]
) -> tuple[tuple[Row, bool], ...]:
    """Return each row that may apply, and whether it needs a lease of which nobody knows how long it lives.

    `known` holds; each of `unknown` may hold or not; no other holds.
    """
    asked = {condition for row in TRANSITIONS if row.state is state and row.verb is verb for condition in row.when}
    open_questions = sorted(asked & unknown, key=lambda condition: condition.name)
    found: dict[Row, bool] = {}
    for truths in product((False, True), repeat=len(open_questions)):
        chosen = {condition for condition, holds in zip(open_questions, truths, strict=True) if holds}
        row = choose(state, verb, known | chosen)
        found[row] = found.get(row, True) and Condition.LEASE_ALIVE in chosen
    return tuple(found.items())


def _apply(world: World, row: Row, token: int, guards: Guards) -> World:
    """Go where `row` says: publish with `token` if it publishes, and keep a deadline for every state but idle."""
    if row.next is State.IDLE:
        return world._replace(gate=Gate())
    publishes, leased = row.answer in PUBLISHING, world.gate.leased
    held = row.answer in (Answer.HELD, Answer.POSTPONED) or (world.gate.held and not publishes)
    deadline = (guards.queued_has_deadline or row.next is not State.QUEUED) and (
        guards.postponed_has_deadline or row.answer is not Answer.POSTPONED
    )
    if row.answer is not Answer.ABSORBED:
        leased = is_announced(world) and (row.answer is Answer.BEGUN or Condition.LEASE_ALIVE in row.when)
    gate = Gate(row.next, token, world.gate.new, held, deadline, leased)
    messages = world.messages
    if publishes and messages.count(token) < MOST_COPIES:
        messages = (*messages, token)
    return world._replace(gate=gate, messages=messages)


def _issued(world: World, floor: int) -> Iterator[tuple[World, int]]:
    """Return `world` with room for a new token above `floor`, and that token, in every way there is."""
    highest = max(_tokens(world), default=NONE)
    if not world.clock_stepped:
        yield world, highest + 1
        return
    for below in range(floor, highest + 1):
        yield _renamed(world, [token if token <= below else token + 1 for token in range(highest + 1)]), below + 1


def _token_for(world: World, row: Row, floor: int, guards: Guards) -> Iterator[tuple[World, int]]:
    """Return the gate's token after `row`: a new one for a run that is published, not for one published again."""
    new_run = row.answer in PUBLISHING and row.answer is not Answer.REPUBLISHED
    if new_run and (guards.token_per_run or row.answer is Answer.REISSUED or not world.gate.token):
        yield from _issued(world, floor)
    else:
        yield world, world.gate.token


def _notify(world: World, guards: Guards, *, found: bool = False) -> Iterator[tuple[Answer, World]]:
    gate = world.gate
    truths = {Condition.HELD: gate.held, Condition.FOUND: found}
    known = frozenset(condition for condition, holds in truths.items() if holds)
    noted = world._replace(gate=gate._replace(new=True))
    for row, _ in _rows(gate.state, Verb.NOTIFY, known, SPACING):
        for roomy, token in _token_for(noted, row, gate.token, guards):
            yield row.answer, _apply(roomy, row, token, guards)


# Messages and what a run does with them


def _messages(world: World, guards: Guards) -> Iterator[Step]:
    for token in sorted(set(world.messages)):
        at = world.messages.index(token)
        gone = world._replace(messages=world.messages[:at] + world.messages[at + 1 :])
        if len(world.runs) < world.workers:
            yield from _begin(gone, token, guards)
        if world.faults.message_lost:
            yield Step(f"message {token} is lost", Kind.FAULT, _spent(gone, "message_lost"))
        if world.faults.message_doubled and world.messages.count(token) < MOST_COPIES:
            doubled = world._replace(messages=(*world.messages, token))
            yield Step(f"message {token} is doubled", Kind.FAULT, _spent(doubled, "message_doubled"))


def _begin(world: World, token: int, guards: Guards) -> Iterator[Step]:
    current = token == world.gate.token or not guards.begin_checks_token
    known = frozenset({Condition.CURRENT}) if current else frozenset[Condition]()
    for row, _ in _rows(world.gate.state, Verb.BEGIN, known, _no_room(world, Condition.NO_PLACE)):
        if row.answer is Answer.BEGUN:
            begun = _apply(world._replace(gate=world.gate._replace(new=False)), row, world.gate.token, guards)
            twice = any(run.token == token and not run.ended for run in world.runs)
            text = f"message {token} arrives: run {token} begins"
            yield Step(text, Kind.WORK, _with_run(begun, Run(At.CLAIM, token)), Breach.TWO_RUNS if twice else None)
        else:
            refused = row.answer is Answer.REFUSED
            after = world if refused else _apply(_postponed(world, row), row, world.gate.token, guards)
            yield Step(f"message {token} arrives: {row.answer.name}", Kind.WORK, after)


def _no_room(world: World, condition: Condition) -> frozenset[Condition]:
    """Return what may be the case, as long as there are postponements left."""
    return frozenset({condition}) if world.faults.postponed else frozenset()


def _postponed(world: World, row: Row) -> World:
    return _spent(world, "postponed") if row.answer is Answer.POSTPONED else world


def _claim(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    owner = world.cursor.owner
    if owner > run.token and guards.claim_refuses_lower_tokens:
        refused = Run(At.SETTLE_OUTRANKED, run.token, owner=owner)
        yield Step(f"run {run.token} may not claim the cursor of {owner}", Kind.WORK, _with_run(world, refused))
    else:
        claimed = world._replace(cursor=world.cursor._replace(owner=run.token))
        yield Step(f"run {run.token} claims the cursor", Kind.WORK, _with_run(claimed, Run(At.READ, run.token)))


def _read(world: World, run: Run, _: Guards) -> Iterator[Step]:
    cursor = world.cursor
    if cursor.owner != run.token:
        yield Step(f"run {run.token} may not read: it stops", Kind.WORK, world)
        return
    target = cursor.target or pending(world)
    found = target & ~cursor.handled
    if not found:
        yield Step(f"run {run.token} finds nothing", Kind.WORK, _with_run(world, Run(At.SETTLE_DONE, run.token)))
        return
    batch = found & -found
    reading = Run(At.HAND_OVER, run.token, batch, cursor.handled, target, resumed=cursor.target != 0)
    yield Step(f"run {run.token} reads record {batch.bit_length()}", Kind.WORK, _with_run(world, reading))


def _hand_over(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    """Hand over and advance. Nobody sees the first before the second, so that they are one step hides nothing."""
    if world.faults.handler_fails:
        failed = _with_run(world, Run(At.SETTLE_RETRY, run.token))
        yield Step(f"the handler of run {run.token} fails", Kind.FAULT, _spent(failed, "handler_fails"))
    cursor = world.cursor
    owns = cursor.owner == run.token or not guards.advance_checks_owner
    unmoved = cursor.handled == run.seen or not guards.advance_checks_position
    if not (owns and unmoved):
        yield Step(f"run {run.token} may not advance: it stops", Kind.WORK, world)
        return
    breach = _breach_by_advance(world, run)
    handled = cursor.handled | run.batch
    left = run.target & ~handled
    advanced = world._replace(cursor=Cursor(cursor.owner, handled, run.target if left else 0))
    text = f"run {run.token} advances"
    if not left and not (run.resumed and guards.done_after_own_sweep):
        yield Step(text, Kind.WORK, _with_run(advanced, Run(At.SETTLE_DONE, run.token)), breach)
        return
    # A sweep that an earlier batch began says nothing about events since then, so its end is not the end of the work.
    yield Step(f"{text} and goes on", Kind.WORK, _with_run(advanced, Run(At.READ, run.token)), breach)
    spent = _with_run(advanced, Run(At.SETTLE_MORE, run.token))
    yield Step(f"{text}, its budget is spent", Kind.WORK, spent, breach)
    stopped = _with_run(advanced, Run(At.SETTLE_STOPPED, run.token))
    yield Step(f"{text}, its worker stops", Kind.WORK, stopped, breach)


def _breach_by_advance(world: World, run: Run) -> Breach | None:
    """Return what is wrong with an advance by `run`, whatever the guards let pass."""
    if world.cursor.owner != run.token:
        return Breach.NOT_OWNER
    if world.cursor.handled != run.seen:
        return Breach.SAME_POSITION
    if any(other.token > run.token and other.at in (At.READ, At.HAND_OVER) for other in world.runs):
        return Breach.OVERTAKEN
    return None


def _settle(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    gate, verb = world.gate, SETTLES[run.at]
    known = set()
    if gate.token == run.token:
        known.add(Condition.CURRENT)
    if gate.new and guards.settle_counts_events:
        known.add(Condition.NEW_EVENTS)
    unknown = TIME if guards.closing_sweep else SPACING
    leased = gate.leased if guards.lease_as_of_begin else is_announced(world)
    if leased and guards.closing_sweep:
        known.add(Condition.LEASE_ALIVE)
        unknown = SPACING
    unknown |= _no_room(world, Condition.OTHERS_IN_LINE)
    for row, lease_alive in _rows(gate.state, verb, frozenset(known), unknown):
        text = f"run {run.token} settles {verb.removeprefix('settle: ')}: {row.answer.name}"
        kind = Kind.TRAFFIC if lease_alive else Kind.WORK
        for after, settled in _settled(world, run, row, guards):
            yield Step(text, kind, after)
            if world.faults.reply_lost and row.answer is not Answer.LOST:
                again = _with_run(after, settled._replace(ended=True))
                yield Step(f"{text}, the reply is lost", Kind.FAULT, _spent(again, "reply_lost"))


def _settled(world: World, run: Run, row: Row, guards: Guards) -> Iterator[tuple[World, Run]]:
    """Return the world after `row` and the run as that world names its tokens."""
    if row.answer is Answer.LOST:
        yield world, run
        return
    for roomy, token in _token_for(_with_run(world, run), row, max(run.owner, run.token), guards):
        left = _postponed(roomy._replace(runs=roomy.runs[:-1]), row)
        yield _apply(left, row, token, guards), roomy.runs[-1]


_RUN_STEPS: dict[At, Callable[[World, Run, Guards], Iterator[Step]]] = {
    At.CLAIM: _claim,
    At.READ: _read,
    At.HAND_OVER: _hand_over,
    At.SETTLE_MORE: _settle,
    At.SETTLE_DONE: _settle,
    At.SETTLE_RETRY: _settle,
    At.SETTLE_OUTRANKED: _settle,
    At.SETTLE_STOPPED: _settle,
}


def _with_run(world: World, run: Run) -> World:
    return _with(world, world.messages, (*world.runs, run))


def _with(world: World, messages: tuple[int, ...], runs: tuple[Run, ...]) -> World:
    """Return `world` with these; written out because `_replace` takes three times as long, a million times."""
    records, gate, _, cursor, _, faults, workers, clock_stepped = world
    return World(records, gate, messages, cursor, runs, faults, workers, clock_stepped)


# The ticker


def _ticker(world: World, guards: Guards) -> Iterator[Step]:
    gate = world.gate
    if gate.deadline:
        if not (gate.leased and gate.state is State.WAITING):
            yield from _deadline(world, guards)
    elif pending(world) and guards.reconciles:
        if gate.state is State.IDLE:
            for answer, after in _notify(world, guards, found=True):
                yield Step(f"reconcile notifies: {answer.name}", Kind.CLOCK, after)
        elif guards.reconcile_adopts:
            yield Step("reconcile adopts", Kind.CLOCK, world._replace(gate=gate._replace(deadline=True)))


def _deadline(world: World, guards: Guards) -> Iterator[Step]:
    gate = world.gate
    ((row, _),) = _rows(gate.state, Verb.DEADLINE, frozenset({Condition.OVERDUE}), frozenset())
    text = f"the deadline passes: {row.answer.name}"
    if row.answer is Answer.NOT_DUE:
        yield Step(text, Kind.CLOCK, world._replace(gate=Gate()))
    else:
        for roomy, token in _token_for(world, row, gate.token, guards):
            yield Step(text, Kind.CLOCK, _apply(roomy, row, token, guards))


# Redis is lost: all of it, its last moment, or one key


def _lost_redis(world: World) -> Iterator[Step]:
    if world.faults.clock_steps:
        # A server whose clock is behind takes over, and no ticker had noted how late it was.
        yield Step("the clock steps back", Kind.FAULT, _spent(world, "clock_steps")._replace(clock_stepped=True))
    if world.faults.redis_lost:
        # Its clock may have stepped back. The broker's messages are lost with it, or stand on another server.
        empty = _spent(world, "redis_lost")._replace(gate=Gate(), clock_stepped=True)
        yield Step("Redis is lost", Kind.FAULT, empty)
        if world.messages:
            yield Step("Redis is lost, and all messages", Kind.FAULT, empty._replace(messages=()))
    gate = world.gate
    if world.faults.redis_rewinds and gate.state is State.RUNNING:
        # Redis restarts from a copy that is a little older: the begin is forgotten, the run goes on.
        before = gate._replace(state=State.QUEUED, new=True)
        yield Step("Redis rewinds", Kind.FAULT, _spent(world, "redis_rewinds")._replace(gate=before))
    if world.faults.hash_lost and gate.state is not State.IDLE:
        left = _spent(world, "hash_lost")
        yield Step("the runner's hash is lost", Kind.FAULT, left._replace(gate=Gate(deadline=gate.deadline)))
    if world.faults.deadline_lost and gate.deadline:
        left = _spent(world, "deadline_lost")
        yield Step("the deadline is lost", Kind.FAULT, left._replace(gate=gate._replace(deadline=False)))


def _spent(world: World, fault: str) -> World:
    return world._replace(faults=world.faults._replace(**{fault: getattr(world.faults, fault) - 1}))


# Tokens by rank, and everything without order in one order


def _tokens(world: World) -> set[int]:
    tokens = {world.gate.token, world.cursor.owner, *world.messages}
    for run in world.runs:
        tokens.add(run.token)
        tokens.add(run.owner)
    tokens.discard(NONE)
    return tokens


def _renamed(world: World, names: list[int]) -> World:
    """Return `world` with every token replaced by its entry in `names`."""
    return world._replace(
        gate=world.gate._replace(token=names[world.gate.token]),
        messages=tuple([names[token] for token in world.messages]),
        cursor=world.cursor._replace(owner=names[world.cursor.owner]),
        runs=tuple([run._replace(token=names[run.token], owner=names[run.owner]) for run in world.runs]),
    )


def _canonical(world: World) -> World:
    if len(world.messages) > 1 or len(world.runs) > 1:
        current = [token for token in world.messages if token == world.gate.token]
        late = sorted(token for token in world.messages if token != world.gate.token)
        world = _with(world, tuple(late[-MOST_LATE:] + current), tuple(sorted(world.runs)))
    tokens = _tokens(world)
    if tokens and max(tokens) != len(tokens):
        names = [NONE] * (max(tokens) + 1)
        for rank, token in enumerate(sorted(tokens), 1):
            names[token] = rank
        world = _renamed(world, names)
    return world
