"""The gate in plain Python, one tenant at a time: the same table, with the numbers that decide its conditions.

`step` computes which conditions hold, lets `choose` pick the row, and does to the numbers what the row says. Which
state comes next is decided by the table and nowhere else.

What the tenants of a pipeline share (circuit, run slots, wait queue) is a record of its own beside the tenant. `Shared`
has tables of its own too, in `admission.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Outcome, Settlement, State, Timing
from taskbridge.gate.constants import Constant
from verification.model import admission
from verification.model.admission import CIRCUIT, SLOTS, WAIT_QUEUE, Effect, Queueing
from verification.model.tables import choose
from verification.model.transitions import TRANSITIONS, Condition, Row, Verb

__all__ = [
    "PUBLISHING",
    "AnyRow",
    "Beat",
    "Begin",
    "Circuit",
    "Deadline",
    "Decline",
    "Event",
    "FairQueue",
    "Notify",
    "Remind",
    "Settle",
    "Shared",
    "Tenant",
    "step",
]

PUBLISHING = frozenset({Answer.STARTED, Answer.CONTINUED, Answer.REISSUED, Answer.PUBLISHED, Answer.REPUBLISHED})


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. Times and spans are milliseconds, a token is the microsecond that it stands for; None: not set.

    `lease` is the end of the lease that was alive when the run began. `issuer` is the call that issued the token and
    `beginner` the one that began the run, where the course may send these again.

    An idle tenant has nothing but its lease, its last run and, where its hash was lost, a deadline.
    """

    state: State = State.IDLE
    token: int | None = None
    events: int = 0
    swept: int = 0
    runs: int = 0
    failures: int = 0
    first: int | None = None
    began: int | None = None
    before: int | None = None
    delay: int | None = None
    held: bool = False
    paused: bool = False
    turn: bool = False
    found: bool = False
    republish: int = 0
    deadline: int | None = None
    lease_end: int | None = None
    last: int | None = None
    last_end: int | None = None
    earliest: int | None = None
    last_earliest: int | None = None
    joined: int | None = None
    reminded: bool = False
    lease: int | None = None
    died: bool = False
    first_queue: bool = False
    burst: int | None = None
    issuer: str | None = None
    beginner: str | None = None

    @property
    def is_first_event(self) -> bool:
        return self.runs == 0

    @property
    def told(self) -> int:
        """Its events but for a reminder, which counts as one until a run begins."""
        return self.events - self.reminded


AnyRow = Row | admission.Row[admission.Circuit] | admission.Row[admission.Slots] | admission.Row[admission.Queueing]


@dataclass(slots=True)
class Circuit:
    """A pipeline's circuit, and how many of its runs may be on. Times and spans are milliseconds; None: not set.

    `rest` and `width`: all wait until then, and how many runs may be on since then. `state` and `slots` are what the
    tables say; they are not stored, since the numbers tell them.
    """

    state: admission.Circuit = admission.Circuit.CLOSED
    slots: admission.Slots = admission.Slots.STEADY
    until: int | None = None
    wait: int = 0
    probe: str | None = None
    probes: int = 0
    walk: bool = False
    failures: int = 0
    failed: tuple[str, ...] = ()
    says: str | None = None
    agreed: bool = False
    opened: int = 0
    opened_at: int | None = None
    closed_at: int | None = None
    rest: int | None = None
    width: int | None = None

    @property
    def record(self) -> int | None:
        """Which record a probe tries; None while closed."""
        if self.until is None:
            return None
        turn = self.probes % Constant.WALK if self.walk else 0
        return int(2 ** (turn - 1)) if turn else 0

    def is_general(self, tenant: str, blame: Blame) -> bool:
        """Count a failure; return whether it is more than one tenant's or one record's."""
        third = len({*self.failed, tenant}) == 3
        if not third:
            self.failed = tuple(dict.fromkeys((*self.failed, tenant)))
        if blame is Blame.RECORD:
            return third
        self.says = self.says or tenant
        self.agreed = self.agreed or self.says != tenant
        self.failures += Constant.CIRCUIT_OPENS_AFTER if blame is Blame.PIPELINE else 1
        return third or (self.agreed and self.failures >= Constant.CIRCUIT_OPENS_AFTER)

    def forget_failures(self) -> None:
        """Something was handled."""
        self.failures, self.failed, self.says, self.agreed = 0, (), None, False


Subject = tuple[str, str]
Asked = admission.Condition


@dataclass(slots=True)
class FairQueue:
    """What the tenants of all pipelines share: who waits for its turn, with which start tag, and who was given it.

    `virtual_time` has the last start tag of each pipeline. `in_flight` says of a run that a turn or a reminder
    published whether it was a reminder, and when the message counts as lost. `head`: when the oldest message in the
    queue of first events was published, in microseconds.
    """

    waiting: dict[Subject, int] = field(default_factory=dict)
    virtual_time: dict[str, int] = field(default_factory=dict)
    in_flight: dict[Subject, tuple[bool, int]] = field(default_factory=dict)
    head: int | None = None

    def count(self, now: int, *, by_reminder: bool) -> int:
        """Return how many runs are in flight that reminders published, or turns."""
        graced = now - Constant.GRACE_MS
        return sum(reminded is by_reminder and lost > graced for reminded, lost in self.in_flight.values())

    def stay(self, subject: Subject, deadline: int, now: int) -> bool:
        """Let a run that is in flight count as lost later; return whether it is."""
        by_reminder, lost = self.in_flight.get(subject, (False, 0))
        if lost > now - Constant.GRACE_MS:
            self.in_flight[subject] = by_reminder, deadline
            return True
        return False

    def wait(self, subject: Subject) -> None:
        """Let a tenant wait behind those of its pipeline, which takes turns with the others."""
        if not self.waiting:
            self.virtual_time.clear()
        tag = max(self.virtual_time.get(subject[0], 0) + 1, min(self.waiting.values(), default=0))
        self.waiting[subject] = self.virtual_time[subject[0]] = tag

    def leave(self, subject: Subject) -> None:
        """Let a tenant go that was not given its turn."""
        if self.waiting.pop(subject, None) is not None:
            self.virtual_time[subject[0]] -= 1

    def order(self) -> list[Subject]:
        """Return who waits, the next first."""
        return sorted(self.waiting, key=lambda subject: (self.waiting[subject], ":".join(subject).encode()))


@dataclass(slots=True)
class Shared:
    """What the tenants of one pipeline share; `step` changes it.

    `due` has the deadlines of all tenants, `called` the first in the wait queue for which the last settle kept a run
    slot, `turn` the one that it gave its turn to. `in_flight_due` has who was published by a deadline, and when that
    counts as lost.
    """

    pipeline: str = ""
    fair_queue: FairQueue = field(default_factory=FairQueue)
    in_flight_due: dict[str, int] = field(default_factory=dict)
    turn: Subject | None = None

    most_runs: int = 0
    running: dict[str, int] = field(default_factory=dict)
    wait_queue: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    circuit: Circuit = field(default_factory=Circuit)
    called: str | None = None
    rows: set[AnyRow] = field(default_factory=set)

    @property
    def most(self) -> int:
        """How many runs may be on, by the cap and by the slow start; 0: any number."""
        return min((most for most in (self.most_runs, self.circuit.width) if most), default=0)

    def has_slot(self, tenant: str, now: int) -> bool:
        """Whether a run slot is free for the tenant."""
        others = sum(deadline >= now for other, deadline in self.running.items() if other != tenant)
        return self.circuit.slots is not admission.Slots.ALL_WAIT and (not self.most or others < self.most)

    def time_passes(self, now: int) -> None:
        """Take the rows that time takes."""
        circuit, over = self.circuit, frozenset({Asked.WAIT_OVER})
        if circuit.state is admission.Circuit.OPEN and circuit.until is not None and circuit.until <= now:
            self.ask_circuit(admission.Verb.TIME, over)
        if circuit.slots is admission.Slots.ALL_WAIT and circuit.rest is not None and circuit.rest <= now:
            self.ask_slots(admission.Verb.TIME, over)

    def ask_circuit(self, verb: admission.Verb, holding: frozenset[Asked]) -> Effect:
        """Take the row of the circuit's table."""
        row = choose(CIRCUIT, self.circuit.state, verb, holding)
        self.rows.add(row)
        self.circuit.state = row.next
        return row.effect

    def ask_slots(self, verb: admission.Verb, holding: frozenset[Asked]) -> Effect:
        """Take the row of the slots' table."""
        row = choose(SLOTS, self.circuit.slots, verb, holding)
        self.rows.add(row)
        self.circuit.slots = row.next
        return row.effect

    def queue(self, tenant: str, verb: admission.Verb, score: int = 0, due: int | None = None) -> None:
        """Take the row of the wait queue's table; with `due` the tenant's deadline moves."""
        state = Queueing.INSIDE if tenant in self.wait_queue else Queueing.OUTSIDE
        row = choose(WAIT_QUEUE, state, verb, frozenset())
        self.rows.add(row)
        if row.next is Queueing.OUTSIDE:
            self.wait_queue.pop(tenant, None)
        elif row.effect in (Effect.ENTER, Effect.TO_THE_END):
            self.wait_queue[tenant] = score
        if row.effect in (Effect.START, Effect.MOVE):
            assert due is not None
            self.due[tenant] = due

    def ordered(self) -> list[str]:
        """Return the wait queue, the first one first."""
        return sorted(self.wait_queue, key=lambda tenant: (self.wait_queue[tenant], tenant.encode()))

    def head(self) -> str | None:
        """Return the first in the wait queue. Who has no deadline leaves it."""
        for tenant in self.ordered():
            if tenant in self.due:
                return tenant
            self.queue(tenant, admission.Verb.DEADLINE_LOST)
        return None

    def call_head(self, at: int) -> None:
        """Move the deadline of the first in the wait queue."""
        head = self.head()
        if head is not None:
            self.queue(head, admission.Verb.CALLED, due=at)

    def keep_slots(self, count: int, until: int, now: int) -> None:
        """Keep free slots for those who are first in the wait queue, and start them."""
        for _ in range(count):
            head = self.head()
            if head is None:
                return
            self.queue(head, admission.Verb.KEPT, due=now)
            self.running[head] = until
            self.called = self.called or head

    def fill(self, until: int, now: int) -> None:
        """Let as many in the wait queue come as may be on now; without a bound all wait for their turn."""
        if self.most:
            self.running = {tenant: deadline for tenant, deadline in self.running.items() if deadline >= now}
            self.keep_slots(self.most - len(self.running), until, now)
            return
        for tenant in self.ordered():
            self.queue(tenant, admission.Verb.TURNS)
            self.fair_queue.wait((self.pipeline, tenant))


@dataclass(frozen=True, slots=True)
class Notify:
    """An event of the tenant. `call` tells one call from others in courses that send calls again; so it does below."""

    call: str | None = None


@dataclass(frozen=True, slots=True)
class Remind:
    """The tenant has records that no run has looked at; its last run was then, as Postgres has it.

    `by_reconciler`: the reconciler found them, and one may have.
    """

    last: int | None = None
    by_reconciler: bool = False
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """A run message with this token arrived."""

    token: int
    call: str | None = None


@dataclass(frozen=True, slots=True)
class Decline:
    """A run message with this token came to a worker that does not declare the pipeline."""

    token: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The run with this token is alive."""

    token: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The run with this token ends."""

    token: int
    end: Settlement
    call: str | None = None

    @property
    def gives_back(self) -> bool:
        """Whether the run was stopped before it did anything."""
        return self.end.outcome is Outcome.STOPPED and not self.end.took


@dataclass(frozen=True, slots=True)
class Deadline:
    """A ticker looks at the tenant's deadline; with `early` an operator starts a tenant that waits.

    With `turn` it is given its turn.
    """

    early: bool = False
    turn: bool = False
    call: str | None = None


Event = Notify | Remind | Begin | Decline | Beat | Settle | Deadline


@dataclass(frozen=True, slots=True)
class _Now:
    """What stays the same during one step."""

    us: int
    spacing: Spacing
    timing: Timing
    name: str
    shared: Shared
    admitting: tuple[admission.Row[admission.Circuit], admission.Row[admission.Slots]] | None = None
    """What circuit and slots say to a run that begins."""

    @property
    def ms(self) -> int:
        return self.us // 1000

    @property
    def subject(self) -> Subject:
        return self.shared.pipeline, self.name


def step(
    tenant: Tenant,
    event: Event,
    now_us: int,
    spacing: Spacing,
    timing: Timing,
    rows: set[AnyRow],
    name: str,
    shared: Shared,
) -> tuple[Tenant, Answer]:
    """Return `tenant`, which is called `name`, after `event` at `now_us` (microseconds), and what the gate answers.

    The row that applied is added to `rows`. `shared` is changed, and with it the deadlines of other tenants.
    """
    now = _Now(now_us, spacing, timing, name, shared)
    shared.called = shared.turn = None
    shared.rows = rows
    shared.time_passes(now.ms)
    if _is_repeated(tenant, event):
        return _repeat(tenant, event, now)
    if isinstance(event, Begin) and tenant.state is State.QUEUED and tenant.token == event.token:
        now = replace(now, admitting=_admitting(tenant, now))
    tenant = _before_the_table(tenant, event, now)
    row = choose(TRANSITIONS, tenant.state, _verb(event), _holding(tenant, event, now))
    rows.add(row)
    if isinstance(event, Deadline) and now.subject in shared.fair_queue.waiting and not tenant.held:
        del shared.fair_queue.waiting[now.subject]
    if tenant.found and row.answer is Answer.STARTED:
        shared.fair_queue.leave(now.subject)
    after = replace(_EFFECTS[row.answer](tenant, event, row, now), state=row.next)
    _set_deadline(after, now)
    if isinstance(event, Settle) and row.answer is not Answer.LOST:
        if row.answer is Answer.HELD and event.end.all_wait:
            shared.call_head(shared.circuit.rest or 0)
        after = _learned(tenant, after, event, now)
        was_open = shared.circuit.until is not None
        after = _judge(after, event, now)
        _pass_on_the_slot(event, now, closes=was_open and shared.circuit.until is None)
        _give_the_next_its_turn(now)
    elif now.admitting is not None:
        _admit(*now.admitting, now)
    return replace(after, deadline=shared.due.get(name)), row.answer


def _before_the_table(tenant: Tenant, event: Event, now: _Now) -> Tenant:
    """Do what is done whatever row applies."""
    match event:
        case Notify():
            return _counted(tenant, now)
        case Remind():
            return _reminded(tenant, event, now)
        case Settle():
            return _without_empty_run(tenant, event, now)
    return tenant


def _is_repeated(tenant: Tenant, event: Event) -> bool:
    """Whether the call has done this already, and is sent again because its reply was lost."""
    if isinstance(event, Decline | Beat) or event.call is None:
        return False
    if isinstance(event, Begin):
        return tenant.state is State.RUNNING and tenant.beginner == event.call
    return tenant.state is State.QUEUED and tenant.issuer == event.call


def _repeat(tenant: Tenant, event: Event, now: _Now) -> tuple[Tenant, Answer]:
    current = isinstance(event, Begin) and event.token == tenant.token
    holding = frozenset({Condition.REPEATED, *([Condition.CURRENT] if current else [])})
    row = choose(TRANSITIONS, tenant.state, _verb(event), holding)
    now.shared.rows.add(row)
    if isinstance(event, Notify) and now.spacing.lease:
        tenant = replace(tenant, lease_end=now.ms + now.spacing.lease)
    return tenant, row.answer


def _learned(tenant: Tenant, after: Tenant, event: Settle, now: _Now) -> Tenant:
    """A run that did nothing leaves to the next one what it was told when it began."""
    if event.end.outcome is Outcome.STALE or event.gives_back:
        began = tenant.before if now.spacing.last_ttl else after.began
        return replace(after, failures=tenant.failures, began=began, died=tenant.died and not event.end.counted)
    waits = event.end.outcome in (Outcome.RETRY, Outcome.PAUSED)
    return replace(after, first=None, died=waits and tenant.died and not event.end.counted)


def _set_deadline(tenant: Tenant, now: _Now) -> None:
    if tenant.deadline is None:
        now.shared.due.pop(now.name, None)
    else:
        now.shared.due[now.name] = tenant.deadline


def _verb(event: Event) -> Verb:
    match event:
        case Notify():
            return Verb.NOTIFY
        case Remind():
            return Verb.REMIND
        case Begin():
            return Verb.BEGIN
        case Decline():
            return Verb.DECLINE
        case Beat():
            return Verb.BEAT
        case Settle():
            return Verb.STALE if event.end.outcome is Outcome.STALE else Verb(f"settle: {event.end.outcome}")
        case Deadline():
            return Verb.DEADLINE


def _holding(tenant: Tenant, event: Event, now: _Now) -> frozenset[Condition]:
    delay = now.spacing.delay if isinstance(event, Notify | Remind) else tenant.delay
    token = event.token if isinstance(event, Begin | Decline | Beat | Settle) else None
    early = isinstance(event, Deadline) and event.early and tenant.state is State.WAITING
    called = isinstance(event, Deadline) and event.turn
    in_turns = tenant.held and now.subject in now.shared.fair_queue.waiting
    past = not called and tenant.deadline is not None and tenant.deadline <= now.ms
    truths = {
        Condition.SPACING_OVER: _start(tenant, delay) <= now.ms,
        Condition.HELD: tenant.held and not tenant.paused,
        Condition.PAUSED: tenant.paused,
        Condition.FOUND: tenant.found,
        Condition.CURRENT: token is not None and token == tenant.token,
        Condition.MANY: isinstance(event, Remind)
        and (event.by_reconciler or now.shared.fair_queue.count(now.ms, by_reminder=True) >= 1),
        Condition.NEW_EVENTS: tenant.events > tenant.swept,
        Condition.LEASE_ALIVE: tenant.lease is not None,
        Condition.QUIET: not early and not called and _is_quiet(tenant, now),
        Condition.OVERDUE: early or past or (called and in_turns),
        Condition.STILL_QUEUED: tenant.first_queue and _is_behind(now.shared.fair_queue.head, tenant.token),
        Condition.IN_TURNS: in_turns and not early and not called,
        Condition.OTHERS_IN_TURNS: _others_in_turns(event, now),
        Condition.NO_SLOT: now.admitting is not None and now.admitting[1].effect is not Effect.TAKE,
        Condition.OTHERS_IN_QUEUE: now.name in now.shared.running and bool(now.shared.wait_queue),
    }
    return frozenset(condition for condition, holds in truths.items() if holds)


def _start(tenant: Tenant, delay: int | None) -> int:
    """When the tenant's next run may start."""
    spaced = 0 if tenant.began is None or delay is None else tenant.began + delay
    return max(spaced, tenant.earliest or 0)


def _is_behind(head: int | None, token: int | None) -> bool:
    return head is not None and token is not None and head <= token


def _others_in_turns(event: Event, now: _Now) -> bool:
    queue = now.shared.fair_queue
    return isinstance(event, Settle) and (bool(queue.waiting) or queue.count(now.ms, by_reminder=False) >= 1)


def _is_quiet(tenant: Tenant, now: _Now) -> bool:
    lingers = tenant.state is State.WAITING and not tenant.held and tenant.events == tenant.swept
    return tenant.paused or (lingers and (tenant.lease is None or tenant.lease <= now.ms))


def _admitting(tenant: Tenant, now: _Now) -> tuple[admission.Row[admission.Circuit], admission.Row[admission.Slots]]:
    """Return what circuit and slots say to the run, and change nothing."""
    shared, circuit = now.shared, now.shared.circuit
    truths = {
        Asked.SLOT: shared.has_slot(now.name, now.ms),
        Asked.OWN_PROBE: circuit.probe == now.name,
        Asked.PROBE_DIED: shared.due.get(circuit.probe or "", 0) <= now.ms,
    }
    may_probe = circuit.state is admission.Circuit.HALF_OPEN or (
        circuit.state is admission.Circuit.PROBING and (truths[Asked.OWN_PROBE] or truths[Asked.PROBE_DIED])
    )
    truths[Asked.FIRST] = may_probe and _is_first(tenant, now)
    holding = frozenset(condition for condition, holds in truths.items() if holds)
    of_circuit = choose(CIRCUIT, circuit.state, admission.Verb.BEGIN, holding)
    lets = truths[Asked.SLOT] and of_circuit.effect in (Effect.NONE, Effect.PROBE)
    holding = frozenset({Asked.LET}) if lets else frozenset()
    return of_circuit, choose(SLOTS, circuit.slots, admission.Verb.BEGIN, holding)


def _is_first(tenant: Tenant, now: _Now) -> bool:
    head = now.shared.head()
    score = _score(tenant, now.ms if tenant.joined is None else tenant.joined)
    return head in (None, now.name) or score < now.shared.wait_queue[head or ""]


def _admit(of_circuit: admission.Row[admission.Circuit], of_slots: admission.Row[admission.Slots], now: _Now) -> None:
    """Let the run begin, or not."""
    shared, circuit = now.shared, now.shared.circuit
    shared.rows |= {of_circuit, of_slots}
    circuit.state, circuit.slots = of_circuit.next, of_slots.next
    match of_circuit.effect:
        case Effect.PROBE:
            circuit.probe = now.name
        case Effect.GIVE_UP | Effect.GIVE_UP_AND_CALL:
            circuit.probe = None
    match of_slots.effect:
        case Effect.TAKE if shared.most:
            shared.running = {name: deadline for name, deadline in shared.running.items() if deadline > now.ms}
            shared.running[now.name] = now.ms + now.timing.runner_ttl
        case Effect.GIVE_BACK | Effect.GIVE_BACK_AND_CALL:
            shared.running.pop(now.name, None)
    if of_slots.effect is Effect.GIVE_BACK_AND_CALL:
        shared.call_head(circuit.rest or 0)
    elif of_circuit.effect in (Effect.REFUSE_AND_CALL, Effect.GIVE_UP_AND_CALL):
        shared.call_head(max(now.ms, circuit.until or 0))


def _score(tenant: Tenant, joined: int) -> int:
    return joined if tenant.is_first_event else joined + Constant.BEHIND


def _counted(tenant: Tenant, now: _Now) -> Tenant:
    """Count the event before the table is asked: lease, counter and pending delay move whatever row applies."""
    if now.spacing.lease:
        tenant = replace(tenant, lease_end=now.ms + now.spacing.lease)
    if tenant.state is State.IDLE:
        return replace(
            tenant, events=1, delay=now.spacing.delay, first=now.ms, began=tenant.last, earliest=tenant.last_earliest
        )
    delay = now.spacing.delay if tenant.delay is None else min(tenant.delay, now.spacing.delay)
    return replace(tenant, events=tenant.events + 1, delay=delay)


def _reminded(tenant: Tenant, event: Remind, now: _Now) -> Tenant:
    """Count one event until a run begins, unless one is counted already, where a run would not come anyway."""
    if tenant.state is State.IDLE:
        told = event.last
        if told is not None and told > now.ms:
            told = now.ms if tenant.last is None else tenant.last
        last = max((moment for moment in (told, tenant.last) if moment is not None), default=None)
        fresh = replace(tenant, events=1, reminded=True, first=now.ms, began=last, earliest=tenant.last_earliest)
        return replace(fresh, delay=now.spacing.delay)
    if tenant.deadline is None:
        tenant = replace(tenant, deadline=now.ms)
    if tenant.paused:
        tenant = replace(tenant, held=False, paused=False)
    if tenant.state is State.QUEUED or tenant.held or (tenant.state is State.RUNNING and event.by_reconciler):
        return tenant
    delay = now.spacing.delay if tenant.delay is None else min(tenant.delay, now.spacing.delay)
    counted = tenant.events > tenant.swept
    return replace(tenant, events=tenant.events + (not counted), reminded=tenant.reminded or not counted, delay=delay)


def _without_empty_run(tenant: Tenant, event: Settle, now: _Now) -> Tenant:
    """Where delays count from the last run, a run that took nothing was none."""
    ends = tenant.state is State.RUNNING and tenant.token == event.token and event.end.outcome is Outcome.DONE
    if not ends or event.end.took or not now.spacing.last_ttl:
        return tenant
    assert tenant.began is not None
    return replace(tenant, began=tenant.before, earliest=tenant.began + Constant.EMPTY_RUN_MS)


# What each answer does to the numbers


def _queued(tenant: Tenant, now: _Now, token: int | None, wait: int) -> Tenant:
    return replace(
        tenant, token=token, republish=wait, held=False, paused=False, turn=False, found=False, deadline=now.ms + wait
    )


def _add_in_flight(event: Event, deadline: int, now: _Now) -> None:
    """Count a run that a deadline, a turn or a reminder published."""
    queue = now.shared.fair_queue
    if isinstance(event, Deadline):
        queue.waiting.pop(now.subject, None)
        if event.turn:
            queue.in_flight[now.subject] = False, deadline
        elif not queue.stay(now.subject, deadline, now.ms):
            now.shared.in_flight_due[now.name] = deadline
    elif isinstance(event, Settle) and event.end.outcome is not Outcome.STALE:
        queue.in_flight[now.subject] = False, deadline
    elif isinstance(event, Remind):
        queue.in_flight[now.subject] = True, deadline


def _publish(tenant: Tenant, event: Event, row: Row, now: _Now) -> Tenant:
    """Publish a new run: its token is above the tenant's last one, or above the one that owned the cursor."""
    floor = int(event.end.owner[:16]) if isinstance(event, Settle) and row.answer is Answer.REISSUED else tenant.token
    token = now.us if floor is None else max(now.us, floor + 1)
    _add_in_flight(event, now.ms + now.timing.republish, now)
    died = tenant.died or (isinstance(event, Deadline) and row.answer is Answer.REISSUED)
    first = isinstance(event, Notify | Remind)
    issuer = None if isinstance(event, Decline | Beat) else event.call
    return replace(_queued(tenant, now, token, now.timing.republish), died=died, first_queue=first, issuer=issuer)


def _publish_again(tenant: Tenant, event: Event, __: Row, now: _Now) -> Tenant:
    wait = min(tenant.republish * 2, Constant.LONGEST_REPUBLISH_MS)
    _add_in_flight(event, now.ms + wait, now)
    return _queued(tenant, now, tenant.token, wait)


def _continue(tenant: Tenant, event: Event, row: Row, now: _Now) -> Tenant:
    return _publish(replace(tenant, failures=0), event, row, now)


def _delay(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    due = max(now.ms, _start(tenant, now.spacing.delay))
    if tenant.state is State.WAITING and tenant.deadline is not None:
        due = min(due, tenant.deadline)
    return replace(tenant, deadline=due)


def _arrived(tenant: Tenant, now: _Now) -> None:
    _left_the_queue(now)
    if tenant.joined is not None:
        now.shared.fair_queue.waiting.pop(now.subject, None)


def _left_the_queue(now: _Now) -> None:
    now.shared.fair_queue.in_flight.pop(now.subject, None)
    now.shared.in_flight_due.pop(now.name, None)


def _begin(tenant: Tenant, event: Event, __: Row, now: _Now) -> Tenant:
    assert isinstance(event, Begin)
    shared = now.shared
    _arrived(tenant, now)
    # Whoever lost its hash while it stood there stays until it is called.
    if tenant.joined is not None or now.name not in shared.wait_queue:
        shared.queue(now.name, admission.Verb.BEGUN)
    return replace(
        tenant,
        events=tenant.told,
        swept=tenant.told,
        beginner=event.call,
        burst=tenant.token if tenant.burst is None else tenant.burst,
        reminded=False,
        first_queue=False,
        began=now.ms,
        before=tenant.began,
        earliest=None,
        delay=None,
        joined=None,
        lease=tenant.lease_end if (tenant.lease_end or 0) > now.ms else None,
        runs=tenant.runs + 1,
        deadline=now.ms + now.timing.runner_ttl,
    )


def _postpone(tenant: Tenant, event: Event, row: Row, now: _Now) -> Tenant:
    if Condition.STILL_QUEUED in row.when:
        deadline = now.ms + now.timing.republish
        now.shared.fair_queue.stay(now.subject, deadline, now.ms)
        return replace(tenant, deadline=deadline)
    if Condition.IN_TURNS in row.when:
        return replace(tenant, deadline=now.ms + Constant.TURN_DEADLINE_MS)
    if Condition.MANY in row.when or Condition.OTHERS_IN_TURNS in row.when:
        now.shared.fair_queue.wait(now.subject)
        found, deadline = isinstance(event, Remind), now.ms + Constant.TURN_DEADLINE_MS
        failures = tenant.failures if found else 0
        return replace(tenant, failures=failures, held=True, turn=True, found=found, deadline=deadline)
    if isinstance(event, Settle):
        tenant = _to_the_end(replace(tenant, failures=0), now)
        return replace(tenant, deadline=now.ms + now.timing.republish)
    _arrived(tenant, now)
    joined = now.ms if tenant.joined is None else tenant.joined
    wait = min(Constant.LONGEST_REPUBLISH_MS, max(now.timing.republish, now.ms - joined))
    begins = max(now.ms, now.shared.circuit.rest or 0)
    now.shared.queue(now.name, admission.Verb.REFUSED, _score(tenant, joined))
    return replace(tenant, held=True, turn=False, joined=joined, deadline=begins + wait)


def _to_the_end(tenant: Tenant, now: _Now) -> Tenant:
    now.shared.queue(now.name, admission.Verb.LAST, _score(tenant, now.ms))
    return replace(tenant, held=True, turn=False, joined=now.ms)


def _judge(tenant: Tenant, event: Settle, now: _Now) -> Tenant:
    shared, circuit = now.shared, now.shared.circuit
    blame = event.end.blame if event.end.outcome is Outcome.RETRY else Blame.NOBODY
    verb = admission.Verb.HANDLED if event.end.handled else admission.Verb.NOTHING
    holding = {Asked.OWN_PROBE} if circuit.probe == now.name else set()
    if blame:
        verb = admission.Verb.FAILED
        if event.end.handled:
            circuit.forget_failures()
        if circuit.state is admission.Circuit.CLOSED and circuit.is_general(now.name, blame):
            holding.add(Asked.GENERAL)
    effect = shared.ask_circuit(verb, frozenset(holding))
    match effect:
        case Effect.FORGET:
            circuit.forget_failures()
        case Effect.CLOSE:
            _close(now)
        case Effect.NEXT_PROBE:
            circuit.probe = None
            shared.call_head(now.ms)
        case Effect.JOIN:
            tenant = _to_the_end(tenant, now)
        case Effect.OPEN | Effect.REOPEN:
            if effect is Effect.OPEN:
                circuit.wait, circuit.opened, circuit.opened_at = Constant.CIRCUIT_WAIT_MS, circuit.opened + 1, now.ms
            else:
                circuit.probe = None
                circuit.wait, circuit.probes = (
                    min(circuit.wait * 2, Constant.LONGEST_CIRCUIT_WAIT_MS),
                    circuit.probes + 1,
                )
            tenant = _to_the_end(tenant, now)
            circuit.until = now.ms + circuit.wait
            many = effect is Effect.REOPEN and circuit.probes >= Constant.WALKS_AFTER
            circuit.walk = circuit.walk or blame is not Blame.DOWNSTREAM or many
            shared.call_head(circuit.until)
    return tenant


def _close(now: _Now) -> None:
    shared, circuit = now.shared, now.shared.circuit
    shared.circuit = Circuit(
        state=circuit.state,
        slots=circuit.slots,
        opened=circuit.opened,
        opened_at=circuit.opened_at,
        closed_at=now.ms,
        rest=circuit.rest,
        width=circuit.width,
    )


def _pass_on_the_slot(event: Settle, now: _Now, *, closes: bool) -> None:
    shared, circuit = now.shared, now.shared.circuit
    shared.time_passes(now.ms)
    is_closed, had_slot = circuit.until is None, shared.running.pop(now.name, None) is not None
    wider = (circuit.width or 0) * 2
    truths = {
        Asked.CLOSES: closes,
        Asked.CIRCUIT_CLOSED: is_closed and had_slot,
        Asked.FULL: not shared.wait_queue or wider >= (shared.most_runs or Constant.SLOW_START_ENDS),
    }
    holding = frozenset(condition for condition, holds in truths.items() if holds)
    verb = admission.Verb.HANDLED if event.end.handled else admission.Verb.NOTHING
    until = now.ms + now.timing.republish
    effect = shared.ask_slots(verb, holding)
    match effect:
        case Effect.KEEP:
            shared.keep_slots(1, until, now.ms)
        case Effect.FREE_AND_CALL:
            shared.call_head(circuit.rest or 0)
        case Effect.DOUBLE:
            circuit.width = wider
        case Effect.STEADY:
            circuit.rest = circuit.width = None
    if effect in (Effect.FILL, Effect.DOUBLE, Effect.STEADY) and is_closed:
        shared.fill(until, now.ms)


def _give_the_next_its_turn(now: _Now) -> None:
    shared = now.shared
    if shared.called is None and shared.fair_queue.waiting and shared.fair_queue.count(now.ms, by_reminder=False) < 1:
        shared.turn = shared.fair_queue.order()[0]


def _decline(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    queue = now.shared.fair_queue
    by_reminder, lost = queue.in_flight.get(now.subject, (True, 0))
    if queue.waiting and not by_reminder and lost > now.ms - Constant.GRACE_MS:
        now.shared.turn = queue.order()[0]
    _left_the_queue(now)
    return replace(tenant, republish=now.timing.republish, deadline=now.ms + Constant.DECLINED_MS)


def _keep(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    if now.name in now.shared.running:
        now.shared.running[now.name] = now.ms + now.timing.runner_ttl
    return replace(tenant, deadline=now.ms + now.timing.runner_ttl)


def _linger(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    if tenant.events > tenant.swept:
        due = _start(tenant, tenant.delay)
    else:
        assert tenant.lease is not None
        due = tenant.lease
        if now.spacing.empty_tick:
            assert tenant.began is not None
            due = min(due, tenant.began + now.spacing.empty_tick)
        tenant, due = _with_last(tenant, now), max(due, now.ms)
    return replace(tenant, deadline=due, failures=0)


def _with_last(tenant: Tenant, now: _Now) -> Tenant:
    """Keep the last run as long as it can delay the next one."""
    spaced = tenant.began + now.spacing.last_ttl if tenant.began is not None and now.spacing.last_ttl else 0
    end = max(spaced, tenant.earliest or 0)
    if end <= now.ms:
        return tenant
    return replace(tenant, last=tenant.began, last_end=end, last_earliest=tenant.earliest)


def _finish(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    return _end(_with_last(tenant, now), _, __, now)


def _end(tenant: Tenant, _: Event, __: Row, ___: _Now) -> Tenant:
    return Tenant(
        lease_end=tenant.lease_end, last=tenant.last, last_end=tenant.last_end, last_earliest=tenant.last_earliest
    )


def _hold(tenant: Tenant, event: Event, _: Row, now: _Now) -> Tenant:
    assert isinstance(event, Settle)
    if event.end.outcome is Outcome.PAUSED:
        return replace(tenant, held=True, paused=True, turn=False, deadline=now.ms + Constant.DAY_MS)
    circuit, ends = now.shared.circuit, now.ms + event.end.retry_ms
    tenant = replace(tenant, held=True, turn=False, failures=tenant.failures + event.end.failed, deadline=ends)
    if not event.end.all_wait:
        return tenant
    now.shared.ask_slots(admission.Verb.ALL_WAIT, frozenset())
    circuit.rest, circuit.width = max(ends, circuit.rest or 0), 1
    return replace(_to_the_end(tenant, now), deadline=circuit.rest + now.timing.republish)


def _same(tenant: Tenant, _: Event, __: Row, ___: _Now) -> Tenant:
    return tenant


def _not_due(tenant: Tenant, event: Event, _: Row, now: _Now) -> Tenant:
    """Forget a deadline that passed without a runner: its hash was lost."""
    assert isinstance(event, Deadline)
    stale = not event.turn and tenant.state is State.IDLE and tenant.deadline is not None and tenant.deadline <= now.ms
    return replace(tenant, deadline=None) if stale else tenant


_EFFECTS: dict[Answer, Callable[[Tenant, Event, Row, _Now], Tenant]] = {
    Answer.STARTED: _publish,
    Answer.DELAYED: _delay,
    Answer.ABSORBED: _same,
    Answer.BEGUN: _begin,
    Answer.REFUSED: _same,
    Answer.DECLINED: _decline,
    Answer.KEPT: _keep,
    Answer.LOST: _same,
    Answer.CONTINUED: _continue,
    Answer.LINGERING: _linger,
    Answer.FINISHED: _finish,
    Answer.ENDED: _end,
    Answer.HELD: _hold,
    Answer.REISSUED: _publish,
    Answer.PUBLISHED: _publish,
    Answer.REPUBLISHED: _publish_again,
    Answer.NOT_DUE: _not_due,
    Answer.POSTPONED: _postpone,
}
