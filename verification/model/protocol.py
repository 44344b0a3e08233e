"""The whole protocol for one tenant, small enough to visit every state: `World` is a state, `steps` its actions.

What is in it
    Records are committed, and events come: before a record's commit, after it, or never. The gate moves by the
    project's own table (`choose`). Run messages travel in any order. A run begins, then sweeps: it claims the cursor,
    reads a batch of one record, delivers it, advances; after that it sweeps again or settles. Passes of the poller read
    what T does not see, remind the tenant, store T; passes of the reconciler read what B does not see, remind, store B.
    A heartbeat is not in it: all that it does is to keep a deadline from firing.

What time is
    There is none. A deadline may fire whenever it exists, and a condition that depends on a clock or on how long ago
    something was (`SPACING_OVER`, `LEASE_ALIVE`, the end of a lease in `QUIET`) may hold or not. So a run or a pass
    that stands still while the others go on is a frozen one, and nothing more has to be said about freezing.

What snapshots are
    Sets of records, one bit each. Records are committed in the order of their bits, since nothing tells them apart;
    only where a guard takes a snapshot for a number does the order matter, and then there is every order.

What a line is
    Whoever may not begin, or not go on, waits held with a deadline of its own. That others call it sooner is not in the
    model: a deadline may fire at any time anyway. `Faults.postponed` bounds how often it happens.

What tokens are
    Their rank, 1 for the lowest. A new token is above all others; once the clock of Redis has stepped back it may have
    any rank that its floor allows.

What goes wrong
    Each fault takes one of its kind from `Faults`; the search visits every place where it can strike. That nobody
    notifies, or too early, is no fault: it happens everywhere.

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

from taskbridge.gate.state import Answer, State
from verification.model.tables import choose
from verification.model.transitions import TRANSITIONS, Condition, Row, Verb

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
refused is all that can happen to them, and one shows it. (Where Redis comes back older one may, see `_canonical`.)"""

TIME = frozenset({Condition.SPACING_OVER, Condition.LEASE_ALIVE})
SPACING = frozenset({Condition.SPACING_OVER})
MANY = frozenset({Condition.MANY})
FOUND = frozenset({Condition.FOUND})
REPEATED = frozenset({Condition.REPEATED})
NOTHING: frozenset[Condition] = frozenset()

PUBLISHING = frozenset({Answer.STARTED, Answer.CONTINUED, Answer.REISSUED, Answer.PUBLISHED, Answer.REPUBLISHED})


@dataclass(frozen=True, slots=True)
class Guards:
    """What the protocol is careful about. Each can be switched off, to see that the search notices.

    With `needs_events` a record's event comes after its commit, in one step with it, as if there were no poller.
    """

    # Tokens and the cursor
    begin_checks_token: bool = True
    begin_knows_its_caller: bool = True
    token_per_run: bool = True
    claim_refuses_lower_tokens: bool = True
    advance_checks_owner: bool = True
    advance_checks_position: bool = True
    # How a run and a runner end
    settle_counts_events: bool = True
    done_after_own_sweep: bool = True
    end_counts_events: bool = True
    end_spares_held: bool = True
    # Deadlines
    queued_has_deadline: bool = True
    postponed_has_deadline: bool = True
    asks_the_queue: bool = True
    # Reminders
    remind_counts_lingering: bool = True
    remind_counts_running: bool = True
    remind_adopts: bool = True
    remind_ends_pause: bool = True
    # The poller
    polls: bool = True
    poller_reminds_first: bool = True
    poller_takes_snapshot_first: bool = True
    poller_stores_a_snapshot: bool = True
    stores_where_it_read: bool = True
    # The reconciler
    reconciles: bool = True
    reconciler_takes_snapshot_first: bool = True
    reconciler_leaves_out_pending: bool = True
    reconciler_asks_the_cursor: bool = True
    reconciler_finds_retries: bool = True
    reset_forgets_snapshots: bool = True
    needs_events: bool = False


class Faults(NamedTuple):
    """How many faults of each kind may still happen."""

    worker_dies: int = 0
    pass_dies: int = 0
    handler_fails: int = 0
    message_lost: int = 0
    message_doubled: int = 0
    redis_lost: int = 0
    redis_rewinds: int = 0
    clock_steps: int = 0
    deadline_lost: int = 0
    hash_lost: int = 0
    reply_lost: int = 0
    postponed: int = 0
    started_early: int = 0
    retried: int = 0
    reset: int = 0
    paused: int = 0


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
    TRAFFIC = "never: new work, a lease that does not end, or a pass that would change nothing"
    FAULT = "never: faults are over"


class At(IntEnum):
    """What a run does next."""

    CLAIM = 0
    READ = 1
    DELIVER = 2
    SETTLE_MORE = 3
    SETTLE_DONE = 4
    SETTLE_RETRY = 5
    SETTLE_STALE = 6
    SETTLE_STOPPED = 7
    BEGIN_AGAIN = 8
    SETTLE_PAUSED = 9


SETTLES = {
    At.SETTLE_MORE: Verb.MORE,
    At.SETTLE_DONE: Verb.DONE,
    At.SETTLE_RETRY: Verb.RETRY,
    At.SETTLE_STALE: Verb.STALE,
    At.SETTLE_STOPPED: Verb.STOPPED,
    At.SETTLE_PAUSED: Verb.PAUSED,
}


class Gate(NamedTuple):
    """What Redis knows. `new` stands for events > swept; `paused` that a pause holds it, and `held` anything else."""

    state: State = State.IDLE
    token: int = NONE
    new: bool = False
    held: bool = False
    deadline: bool = False
    paused: bool = False


class Cursor(NamedTuple):
    """What Postgres knows: the highest token that claimed it, and records, one bit each.

    `target` is what a sweep of several batches was begun for: until it is done, what was committed later has to wait.
    `looked` is what was committed when it was claimed last, `retry` what an operator took out of quarantine, `paused`
    that the tenant is.
    """

    owner: int = NONE
    handled: int = 0
    target: int = 0
    looked: int = 0
    retry: int = 0
    paused: bool = False


class Run(NamedTuple):
    """One run under way.

    `seen` is the cursor's position when it read and `target` what its sweep is for, `resumed` that an earlier batch
    began that sweep, `owner` the token that owned the cursor, and `ended` that its settle was done but the reply was
    lost, so that it will settle again. `BEGIN_AGAIN`: the reply of its begin was lost.
    """

    at: At
    token: int
    batch: int = 0
    seen: int = 0
    target: int = 0
    resumed: bool = False
    owner: int = NONE
    ended: bool = False


class Pass(NamedTuple):
    """A pass of the reconciler or of the poller: what it read, what it will store, and what is left to do."""

    reconciles: bool
    before: int
    snapshot: int
    reminds: bool
    stores: bool = True


class Copy(NamedTuple):
    """What Redis would come back with."""

    gate: Gate
    messages: tuple[int, ...]


class World(NamedTuple):
    """One state of everything. `records` is how many may be committed, `events` how many may still come."""

    records: int
    committed: int
    events: int
    polled: int
    reconciled: int
    gate: Gate
    messages: tuple[int, ...]
    cursor: Cursor
    runs: tuple[Run, ...]
    passes: tuple[Pass, ...]
    faults: Faults
    workers: int
    lookers: int
    clock_stepped: bool = False
    copy: Copy | None = None


class Step(NamedTuple):
    """One action: what it says in a trace, when a quiet end takes it, the state after it, and what it breaks."""

    text: str
    kind: Kind
    world: World
    breach: Breach | None = None


def first_world(records: int, events: int, faults: Faults, workers: int, lookers: int) -> World:
    """Return the state before anything happened.

    `workers` is how many runs can be under way at once, and `lookers` how many passes.
    """
    return World(records, 0, events, 0, 0, Gate(), (), Cursor(), (), (), faults, workers, lookers)


def is_finished(world: World) -> bool:
    """Whether nothing is left to do and nothing is left over: every committed record handled, the tenant idle."""
    return is_handled(world) and world.gate == Gate()


def is_handled(world: World) -> bool:
    """Whether nothing is left to do: every committed record handled, and nothing more will happen by itself."""
    return not (pending(world) or world.gate.deadline or world.messages or world.runs or world.passes)


def pending(world: World) -> int:
    """Return the records that are committed and not handled, one bit each."""
    return world.committed & ~world.cursor.handled


def steps(world: World, guards: Guards) -> Iterator[Step]:
    """Return every step that can be taken in `world`."""
    for step in _steps(world, guards):
        yield Step(step.text, step.kind, _canonical(step.world), step.breach)


def describe(world: World) -> str:
    """Return `world` as one line."""
    gate, cursor = world.gate, world.cursor
    parts = [f"gate {gate.state}"]
    if gate.token:
        parts.append(f"token {gate.token}")
    parts += [name for name in ("new", "held", "paused", "deadline") if getattr(gate, name)]
    parts.append(f"| committed {world.committed:b}, T {world.polled:b}, B {world.reconciled:b}")
    parts.append(f"| cursor owner {cursor.owner or '-'}, handled {cursor.handled:b}")
    if world.messages:
        parts.append(f"| messages {' '.join(map(str, world.messages))}")
    for run in world.runs:
        parts.append(f"| run {run.token} at {run.at.name.lower()}")
    for one in world.passes:
        parts.append(f"| a pass of the {'reconciler' if one.reconciles else 'poller'} to store {one.snapshot:b}")
    if world.copy is not None:
        parts.append(f"| copy {world.copy.gate.state}")
    return " ".join(parts)


def _steps(world: World, guards: Guards) -> Iterator[Step]:
    yield from _producers(world, guards)
    yield from _messages(world, guards)
    for at, run in enumerate(world.runs):
        others = _with(world, world.messages, world.runs[:at] + world.runs[at + 1 :])
        yield from _RUN_STEPS[run.at](others, run, guards)
        if world.faults.worker_dies:
            yield Step(f"the worker of run {run.token} dies", Kind.FAULT, _spent(others, "worker_dies"))
    yield from _deadline(world, guards)
    yield from _passes(world, guards)
    yield from _operators(world, guards)
    yield from _lost_redis(world)


# Producers


def _producers(world: World, guards: Guards) -> Iterator[Step]:
    for at in range(world.records):
        if not world.committed >> at & 1:
            committed = world._replace(committed=world.committed | 1 << at)
            if guards.needs_events:
                for answer, after in _notify(committed, guards):
                    yield Step(f"record {at + 1} and its event: {answer.name}", Kind.TRAFFIC, after)
                break
            yield Step(f"record {at + 1} is committed", Kind.TRAFFIC, committed)
            if guards.poller_stores_a_snapshot:
                break
    if world.events and not guards.needs_events:
        for answer, after in _notify(world._replace(events=world.events - 1), guards):
            yield Step(f"an event: {answer.name}", Kind.TRAFFIC, after)


# The gate: conditions in, the table's row, and what the row does to the little that is modelled


@cache
def _rows(state: State, verb: Verb, known: frozenset[Condition], unknown: frozenset[Condition]) -> tuple[Row, ...]:
    """Return each row that may apply. `known` holds; each of `unknown` may hold or not; no other holds."""
    asked = {condition for row in TRANSITIONS if row.state is state and row.verb is verb for condition in row.when}
    open_questions = sorted(asked & unknown, key=lambda condition: condition.name)
    found: dict[Row, None] = {}
    for truths in product((False, True), repeat=len(open_questions)):
        chosen = {condition for condition, holds in zip(open_questions, truths, strict=True) if holds}
        found[choose(TRANSITIONS, state, verb, known | chosen)] = None
    return tuple(found)


def _apply(world: World, row: Row, token: int, guards: Guards) -> World:
    """Go where `row` says: publish with `token` if it publishes, and keep a deadline for every state but idle."""
    if row.next is State.IDLE:
        return world._replace(gate=Gate())
    publishes, deadline = row.answer in PUBLISHING, True
    pauses = row.verb is Verb.PAUSED and row.answer is Answer.HELD
    held = row.next is not State.QUEUED and (
        (row.answer in (Answer.HELD, Answer.POSTPONED) and not pauses) or world.gate.held
    )
    paused = row.next is State.WAITING and (pauses or (world.gate.paused and row.verb is Verb.NOTIFY))
    if row.answer is Answer.ABSORBED:
        deadline = world.gate.deadline
    elif row.next is State.QUEUED:
        deadline = guards.queued_has_deadline
    elif row.answer is Answer.POSTPONED:
        deadline = guards.postponed_has_deadline
    gate = Gate(row.next, token, world.gate.new, held, deadline, paused)
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
    again = row.answer is Answer.REPUBLISHED or Condition.REPEATED in row.when
    new_run = row.answer in PUBLISHING and not again
    if new_run and (guards.token_per_run or row.answer is Answer.REISSUED or not world.gate.token):
        yield from _issued(world, floor)
    else:
        yield world, world.gate.token


def _held(gate: Gate) -> frozenset[Condition]:
    conditions = ((Condition.HELD, gate.held), (Condition.PAUSED, gate.paused))
    return frozenset(condition for condition, holds in conditions if holds)


def _notify(world: World, guards: Guards) -> Iterator[tuple[Answer, World]]:
    gate = world.gate
    noted = world._replace(gate=gate._replace(new=True))
    unknown = SPACING | FOUND if gate.held else SPACING
    for row in _rows(gate.state, Verb.NOTIFY, _held(gate), unknown):
        for roomy, token in _token_for(noted, row, gate.token, guards):
            yield row.answer, _apply(roomy, row, token, guards)


def _remind(world: World, guards: Guards, *, reconciles: bool) -> Iterator[tuple[Answer, World]]:
    gate = world.gate
    if gate.paused and not guards.remind_ends_pause:
        yield Answer.ABSORBED, world
        return
    known, unknown = (_held(gate) | MANY, SPACING) if reconciles else (_held(gate), SPACING | MANY)
    for row in _rows(gate.state, Verb.REMIND, known, unknown):
        counts = (
            row.state is State.IDLE
            or (row.state is State.WAITING and not gate.held and guards.remind_counts_lingering)
            or (row.state is State.RUNNING and guards.remind_counts_running and not reconciles)
        )
        if row.state is State.WAITING and not gate.held and not guards.remind_counts_lingering:
            yield row.answer, world
            continue
        noted = world._replace(gate=gate._replace(new=gate.new or counts))
        for roomy, token in _token_for(noted, row, gate.token, guards):
            after = _apply(roomy, row, token, guards)
            if guards.remind_adopts:
                after = after._replace(gate=after.gate._replace(deadline=True))
            yield row.answer, after


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
    known = frozenset({Condition.CURRENT}) if current else NOTHING
    if not guards.begin_knows_its_caller:
        known |= REPEATED
    for row in _rows(world.gate.state, Verb.BEGIN, known, _no_room(world, Condition.NO_SLOT)):
        if row.answer is Answer.BEGUN:
            begun = _apply(world._replace(gate=world.gate._replace(new=False)), row, world.gate.token, guards)
            twice = any(run.token == token and not run.ended for run in world.runs)
            text = f"message {token} arrives: run {token} begins"
            breach = Breach.TWO_RUNS if twice else None
            yield Step(text, Kind.WORK, _with_run(begun, Run(At.CLAIM, token)), breach)
            if world.faults.reply_lost:
                again = _with_run(begun, Run(At.BEGIN_AGAIN, token))
                yield Step(f"{text}, the reply is lost", Kind.FAULT, _spent(again, "reply_lost"), breach)
        else:
            refused = row.answer is Answer.REFUSED
            after = world if refused else _apply(_postponed(world, row), row, world.gate.token, guards)
            yield Step(f"message {token} arrives: {row.answer.name}", Kind.WORK, after)


def _begin_again(world: World, run: Run, _: Guards) -> Iterator[Step]:
    """Send the call again whose reply was lost. Another run may have the runner by now."""
    known = REPEATED | ({Condition.CURRENT} if run.token == world.gate.token else NOTHING)
    (row,) = _rows(world.gate.state, Verb.BEGIN, known, NOTHING)
    after = _with_run(world, Run(At.CLAIM, run.token)) if row.answer is Answer.BEGUN else world
    yield Step(f"run {run.token} asks again whether it has begun: {row.answer.name}", Kind.WORK, after)


def _no_room(world: World, condition: Condition) -> frozenset[Condition]:
    """Return what may be the case, as long as there are postponements left."""
    return frozenset({condition}) if world.faults.postponed else NOTHING


def _postponed(world: World, row: Row) -> World:
    return _spent(world, "postponed") if row.answer is Answer.POSTPONED else world


def _claim(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    owner = world.cursor.owner
    if owner > run.token and guards.claim_refuses_lower_tokens:
        refused = Run(At.SETTLE_STALE, run.token, owner=owner)
        yield Step(f"run {run.token} may not claim the cursor of {owner}", Kind.WORK, _with_run(world, refused))
    else:
        claimed = world._replace(cursor=world.cursor._replace(owner=run.token, looked=world.committed))
        yield Step(f"run {run.token} claims the cursor", Kind.WORK, _with_run(claimed, Run(At.READ, run.token)))


def _read(world: World, run: Run, _: Guards) -> Iterator[Step]:
    cursor = world.cursor
    if cursor.owner != run.token:
        yield Step(f"run {run.token} may not read: it stops", Kind.WORK, world)
        return
    if cursor.paused:
        yield Step(f"run {run.token} finds a pause", Kind.WORK, _with_run(world, Run(At.SETTLE_PAUSED, run.token)))
        return
    target = cursor.target or pending(world)
    # What an operator took out of quarantine comes first, whatever the sweep is for.
    found = (target | cursor.retry) & ~cursor.handled
    if not found:
        yield Step(f"run {run.token} finds nothing", Kind.WORK, _with_run(world, Run(At.SETTLE_DONE, run.token)))
        return
    batch = found & -found
    reading = Run(At.DELIVER, run.token, batch, cursor.handled, target, resumed=cursor.target != 0)
    yield Step(f"run {run.token} reads record {batch.bit_length()}", Kind.WORK, _with_run(world, reading))


def _deliver(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    """Deliver and advance. Nobody sees the first before the second, so that they are one step hides nothing."""
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
    moved = cursor._replace(handled=handled, target=run.target if left else 0, retry=cursor.retry & ~run.batch)
    advanced = world._replace(cursor=moved)
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
    if any(other.token > run.token and other.at in (At.READ, At.DELIVER) for other in world.runs):
        return Breach.OVERTAKEN
    return None


def _settle(world: World, run: Run, guards: Guards) -> Iterator[Step]:
    gate, verb = world.gate, SETTLES[run.at]
    known = set()
    if gate.token == run.token:
        known.add(Condition.CURRENT)
    if gate.new and guards.settle_counts_events:
        known.add(Condition.NEW_EVENTS)
    unknown = TIME | _no_room(world, Condition.OTHERS_IN_QUEUE)
    if run.ended:
        # The runner's token may be the one that this settle issued.
        unknown |= REPEATED
    for row in _rows(gate.state, verb, frozenset(known), unknown):
        text = f"run {run.token} settles {verb.removeprefix('settle: ')}: {row.answer.name}"
        for after, settled in _settled(world, run, row, guards):
            yield Step(text, Kind.WORK, after)
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
    At.DELIVER: _deliver,
    At.SETTLE_MORE: _settle,
    At.SETTLE_DONE: _settle,
    At.SETTLE_RETRY: _settle,
    At.SETTLE_STALE: _settle,
    At.SETTLE_STOPPED: _settle,
    At.BEGIN_AGAIN: _begin_again,
    At.SETTLE_PAUSED: _settle,
}


def _with_run(world: World, run: Run) -> World:
    return _with(world, world.messages, (*world.runs, run))


def _with(world: World, messages: tuple[int, ...], runs: tuple[Run, ...]) -> World:
    """Return `world` with these; by position because `_replace` takes three times as long, a million times."""
    return World(*world[:6], messages, world.cursor, runs, *world[9:])


# The ticker


def _deadline(world: World, guards: Guards) -> Iterator[Step]:
    gate = world.gate
    if not gate.deadline:
        return
    if gate.state is State.QUEUED and (gate.token in world.messages or not guards.asks_the_queue):
        waits = frozenset({Condition.OVERDUE, Condition.STILL_QUEUED})
        yield from _deadline_passes(world, waits, "the deadline passes", guards)
        if not guards.asks_the_queue:
            return
    may_end = (
        gate.state is State.WAITING
        and not (gate.new and guards.end_counts_events)
        and not (gate.held and guards.end_spares_held)
    ) or gate.paused
    known = {Condition.OVERDUE, Condition.QUIET} if may_end else {Condition.OVERDUE}
    yield from _deadline_passes(world, frozenset(known), "the deadline passes", guards)
    if may_end and world.faults.started_early:
        # By an operator, or because it was the tick of a lease that lives.
        early = _spent(world, "started_early")
        yield from _deadline_passes(early, frozenset({Condition.OVERDUE}), "a run without news", guards)


def _deadline_passes(world: World, known: frozenset[Condition], what: str, guards: Guards) -> Iterator[Step]:
    gate = world.gate
    (row,) = _rows(gate.state, Verb.DEADLINE, known, NOTHING)
    text = f"{what}: {row.answer.name}"
    if row.answer is Answer.NOT_DUE:
        yield Step(text, Kind.CLOCK, world._replace(gate=Gate()))
        return
    # A pause that is over must not hold records until its deadline: that is a day away.
    kind = Kind.TRAFFIC if gate.paused and pending(world) else Kind.CLOCK
    for roomy, token in _token_for(world, row, gate.token, guards):
        yield Step(text, kind, _apply(roomy, row, token, guards))


# The poller and the reconciler


def _passes(world: World, guards: Guards) -> Iterator[Step]:
    if len(world.passes) < world.lookers:
        if guards.polls:
            yield from _poller_reads(world, guards)
        if guards.reconciles:
            yield from _reconciler_reads(world, guards)
    for at, one in enumerate(world.passes):
        others = world._replace(passes=world.passes[:at] + world.passes[at + 1 :])
        yield from _goes_on(others, one, guards)
        if world.faults.pass_dies:
            yield Step(f"the worker of a pass of {_name(one)} dies", Kind.FAULT, _spent(others, "pass_dies"))


def _name(one: Pass) -> str:
    return "the reconciler" if one.reconciles else "the poller"


def _poller_reads(world: World, guards: Guards) -> Iterator[Step]:
    fresh = world.committed & ~world.polled
    if fresh:
        wanted = 0 if world.cursor.paused else fresh & ~world.cursor.handled & ~world.cursor.looked
        snapshot = world.committed
        if not guards.poller_stores_a_snapshot:
            snapshot = (1 << snapshot.bit_length()) - 1
        text = f"the poller reads news {fresh:b}, of them pending {wanted:b}"
        if wanted or not guards.poller_takes_snapshot_first:
            yield Step(text, Kind.CLOCK, _with_pass(world, Pass(False, world.polled, snapshot, bool(wanted))))
        else:
            # That a T which is stored later may be an older one is seen where a tenant was reminded.
            yield Step(text, Kind.CLOCK, world._replace(polled=snapshot))


def _reconciler_reads(world: World, guards: Guards) -> Iterator[Step]:
    cursor = world.cursor
    fresh = world.committed & ~world.reconciled
    if guards.reconciler_finds_retries:
        fresh |= cursor.retry
    if not fresh:
        return
    wanted = fresh & ~cursor.handled
    if not guards.reconciler_asks_the_cursor:
        wanted &= ~cursor.target
    # Which of what is pending it keeps looking at. Whoever is paused is not reminded, and is asked about again.
    snapshot = world.committed & ~wanted if guards.reconciler_leaves_out_pending else world.committed
    text = f"a pass of the reconciler reads {fresh:b}, of it pending {wanted:b}"
    if cursor.paused:
        wanted = 0
    if not wanted and guards.reconciler_takes_snapshot_first:
        yield Step(text, Kind.TRAFFIC, world._replace(reconciled=snapshot))
        return
    helps = all(after != world for _, after in _remind(world, guards, reconciles=True))
    yield Step(
        text,
        Kind.CLOCK if helps else Kind.TRAFFIC,
        _with_pass(world, Pass(True, world.reconciled, snapshot, bool(wanted))),
    )


def _goes_on(world: World, one: Pass, guards: Guards) -> Iterator[Step]:
    if one.reminds and (one.reconciles or guards.poller_reminds_first or not one.stores):
        for answer, after in _remind(world, guards, reconciles=one.reconciles):
            left = _with_pass(after, one._replace(reminds=False)) if one.stores else after
            yield Step(f"{_name(one)} reminds: {answer.name}", Kind.WORK, left)
        return
    takes_first = guards.reconciler_takes_snapshot_first if one.reconciles else guards.poller_takes_snapshot_first
    snapshot = one.snapshot if takes_first else one.snapshot | world.committed & ~(world.polled | one.snapshot)
    if guards.stores_where_it_read and one.before != (world.reconciled if one.reconciles else world.polled):
        stored = world
    else:
        stored = world._replace(reconciled=snapshot) if one.reconciles else world._replace(polled=snapshot)
    left = _with_pass(stored, one._replace(stores=False)) if one.reminds else stored
    yield Step(f"{_name(one)} stores {snapshot:b}", Kind.WORK, left)


def _with_pass(world: World, one: Pass) -> World:
    return world._replace(passes=tuple(sorted((*world.passes, one))))


# Operators


def _operators(world: World, guards: Guards) -> Iterator[Step]:
    cursor = world.cursor
    if world.faults.retried and cursor.handled:
        one = cursor.handled & -cursor.handled
        retried = cursor._replace(handled=cursor.handled & ~one, retry=cursor.retry | one)
        yield Step("a record is to be tried again", Kind.FAULT, _spent(world, "retried")._replace(cursor=retried))
    if world.faults.paused and not cursor.paused:
        paused = _spent(world, "paused")._replace(cursor=cursor._replace(paused=True))
        yield Step("the tenant is paused", Kind.FAULT, paused)
    if cursor.paused:
        # The worst case: whoever resumes it dies before it starts anything.
        yield Step("the tenant is resumed", Kind.CLOCK, world._replace(cursor=cursor._replace(paused=False)))
    if world.faults.reset and cursor.handled:
        anew = _spent(world, "reset")._replace(cursor=Cursor(owner=cursor.owner, paused=cursor.paused))
        if guards.reset_forgets_snapshots:
            anew = anew._replace(polled=0, reconciled=0)
        yield Step("the cursor begins anew", Kind.FAULT, anew)


# Redis is lost: all of it, its last changes, or one key


def _lost_redis(world: World) -> Iterator[Step]:
    faults, gate, copy = world.faults, world.gate, world.copy
    if faults.redis_lost:
        # Its clock may have stepped back, and what it knew of time is lost. Messages are lost too, or are elsewhere.
        empty = _spent(world, "redis_lost")._replace(gate=Gate(), clock_stepped=True)
        yield Step("Redis is lost", Kind.FAULT, empty)
        if world.messages:
            yield Step("Redis is lost, and all messages", Kind.FAULT, empty._replace(messages=()))
    if faults.redis_rewinds and copy is None:
        yield Step("a copy of Redis is kept", Kind.FAULT, world._replace(copy=Copy(gate, world.messages)))
    if faults.redis_rewinds and copy is not None:
        back = _spent(world, "redis_rewinds")._replace(gate=copy.gate, copy=None)
        yield Step("Redis comes back older", Kind.FAULT, back)
        if world.messages != copy.messages:
            yield Step("Redis comes back older, and its messages", Kind.FAULT, back._replace(messages=copy.messages))
    if faults.clock_steps and not world.clock_stepped:
        # A server whose clock is behind takes over, and no ticker had noted how late it was.
        back = _spent(world, "clock_steps")._replace(clock_stepped=True)
        yield Step("the clock steps back", Kind.FAULT, back)
    if faults.hash_lost and gate.state is not State.IDLE:
        left = _spent(world, "hash_lost")
        yield Step("the runner's hash is lost", Kind.FAULT, left._replace(gate=Gate(deadline=gate.deadline)))
    if faults.deadline_lost and gate.deadline:
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
    if world.copy is not None:
        tokens.update((world.copy.gate.token, *world.copy.messages))
    tokens.discard(NONE)
    return tokens


def _renamed(world: World, names: list[int]) -> World:
    """Return `world` with every token replaced by its entry in `names`."""
    return world._replace(
        gate=world.gate._replace(token=names[world.gate.token]),
        messages=tuple([names[token] for token in world.messages]),
        cursor=world.cursor._replace(owner=names[world.cursor.owner]),
        runs=tuple([run._replace(token=names[run.token], owner=names[run.owner]) for run in world.runs]),
        copy=_renamed_copy(world.copy, names),
    )


def _renamed_copy(copy: Copy | None, names: list[int]) -> Copy | None:
    if copy is None:
        return None
    gate = copy.gate._replace(token=names[copy.gate.token])
    return Copy(gate, tuple([names[token] for token in copy.messages]))


def _canonical(world: World) -> World:
    if len(world.messages) > 1 or len(world.runs) > 1:
        live = {world.gate.token, world.copy.gate.token if world.copy else NONE}
        current = sorted(token for token in world.messages if token in live)
        late = sorted(token for token in world.messages if token not in live)
        world = _with(world, tuple(late[-MOST_LATE:] + current), tuple(sorted(world.runs)))
    tokens = _tokens(world)
    if tokens and max(tokens) != len(tokens):
        names = [NONE] * (max(tokens) + 1)
        for rank, token in enumerate(sorted(tokens), 1):
            names[token] = rank
        world = _renamed(world, names)
    return world
