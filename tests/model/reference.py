"""The gate in plain Python, one tenant at a time: the same table, with the numbers that decide its conditions.

`step` computes which conditions hold, lets `choose` pick the row, and does to the numbers what the row says. Which
state comes next is decided by the table and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from taskbridge.gate import Answer, Outcome, State, Timing
from taskbridge.gate.transitions import Condition, Row, Verb, choose
from taskbridge.policy import Spacing

__all__ = ["PUBLISHING", "Beat", "Begin", "Deadline", "Event", "Notify", "Settle", "Tenant", "step"]

LONGEST_REPUBLISH = 300_000

PUBLISHING = frozenset({Answer.STARTED, Answer.CONTINUED, Answer.REISSUED, Answer.PUBLISHED, Answer.REPUBLISHED})


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. Times and spans are milliseconds, a token is the microsecond that it stands for; None: not set.

    An idle tenant has nothing but its lease, its last run and, where its hash was lost, a deadline.
    """

    state: State = State.IDLE
    token: int | None = None
    events: int = 0
    swept: int = 0
    runs: int = 0
    failures: int = 0
    first: int = 0
    began: int | None = None
    before: int | None = None
    delay: int | None = None
    held: bool = False
    patience: int = 0
    deadline: int | None = None
    lease_end: int | None = None
    last: int | None = None
    last_end: int | None = None


@dataclass(frozen=True, slots=True)
class Notify:
    """An event of the tenant."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A run message with this token arrived."""

    token: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The run with this token is alive."""

    token: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The run with this token ends; it took this many records."""

    token: int
    outcome: Outcome
    took: int = 1
    retry: int = 0
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A ticker looks at the tenant's deadline."""


Event = Notify | Begin | Beat | Settle | Deadline

_SETTLES = {
    Outcome.MORE: Verb.MORE,
    Outcome.DONE: Verb.DONE,
    Outcome.RETRY: Verb.RETRY,
    Outcome.OUTRANKED: Verb.OUTRANKED,
}


@dataclass(frozen=True, slots=True)
class _Now:
    """What stays the same during one step."""

    us: int
    spacing: Spacing
    timing: Timing

    @property
    def ms(self) -> int:
        return self.us // 1000


def step(
    tenant: Tenant, event: Event, now_us: int, spacing: Spacing, timing: Timing, rows: set[Row] | None = None
) -> tuple[Tenant, Answer]:
    """Return `tenant` after `event` at `now_us` (microseconds), and what the gate answers.

    The row that applied is added to `rows`.
    """
    now = _Now(now_us, spacing, timing)
    if isinstance(event, Notify):
        tenant = _counted(tenant, now)
    if isinstance(event, Settle):
        tenant = _without_empty_run(tenant, event, now)
    row = choose(tenant.state, _verb(event), _holding(tenant, event, now))
    if rows is not None:
        rows.add(row)
    return replace(_EFFECTS[row.answer](tenant, event, row, now), state=row.next), row.answer


def _verb(event: Event) -> Verb:
    match event:
        case Notify():
            return Verb.NOTIFY
        case Begin():
            return Verb.BEGIN
        case Beat():
            return Verb.BEAT
        case Settle():
            return _SETTLES[event.outcome]
        case Deadline():
            return Verb.DEADLINE


def _holding(tenant: Tenant, event: Event, now: _Now) -> frozenset[Condition]:
    delay = now.spacing.delay if isinstance(event, Notify) else tenant.delay
    token = event.token if isinstance(event, Begin | Beat | Settle) else None
    truths = {
        Condition.SPACING_OVER: tenant.began is None or delay is None or tenant.began + delay <= now.ms,
        Condition.HELD: tenant.held,
        Condition.CURRENT: token is not None and token == tenant.token,
        Condition.NEW_EVENTS: tenant.events > tenant.swept,
        Condition.LEASE_ALIVE: tenant.lease_end is not None and tenant.lease_end > now.ms,
        Condition.OVERDUE: tenant.deadline is not None and tenant.deadline <= now.ms,
    }
    return frozenset(condition for condition, holds in truths.items() if holds)


def _counted(tenant: Tenant, now: _Now) -> Tenant:
    """Count the event before the table is asked: lease, counter and pending delay move whatever row applies."""
    if now.spacing.lease:
        tenant = replace(tenant, lease_end=now.ms + now.spacing.lease)
    if tenant.state is State.IDLE:
        return replace(tenant, events=1, delay=now.spacing.delay, first=now.ms, began=tenant.last)
    delay = now.spacing.delay if tenant.delay is None else min(tenant.delay, now.spacing.delay)
    return replace(tenant, events=tenant.events + 1, delay=delay)


def _without_empty_run(tenant: Tenant, event: Settle, now: _Now) -> Tenant:
    """Where delays count from the last run, a run that took nothing was none."""
    ends = tenant.state is State.RUNNING and tenant.token == event.token and event.outcome is Outcome.DONE
    return replace(tenant, began=tenant.before) if ends and not event.took and now.spacing.last_ttl else tenant


# What each answer does to the numbers


def _queued(tenant: Tenant, now: _Now, token: int | None, wait: int) -> Tenant:
    return replace(tenant, token=token, patience=wait, held=False, deadline=now.ms + wait)


def _publish(tenant: Tenant, event: Event, row: Row, now: _Now) -> Tenant:
    """Publish a new run: its token is above the tenant's last one, or above the one that outranked it."""
    floor = event.owner if isinstance(event, Settle) and row.answer is Answer.REISSUED else tenant.token
    token = now.us if floor is None else max(now.us, floor + 1)
    return _queued(tenant, now, token, now.timing.republish)


def _publish_again(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    return _queued(tenant, now, tenant.token, min(tenant.patience * 2, LONGEST_REPUBLISH))


def _continue(tenant: Tenant, event: Event, row: Row, now: _Now) -> Tenant:
    return _publish(replace(tenant, failures=0), event, row, now)


def _delay(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    assert tenant.began is not None
    due = tenant.began + now.spacing.delay
    if tenant.state is State.WAITING and tenant.deadline is not None:
        due = min(due, tenant.deadline)
    return replace(tenant, deadline=due)


def _begin(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    return replace(
        tenant,
        swept=tenant.events,
        began=now.ms,
        before=tenant.began,
        delay=None,
        runs=tenant.runs + 1,
        deadline=now.ms + now.timing.runner_ttl,
    )


def _keep(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    return replace(tenant, deadline=now.ms + now.timing.runner_ttl)


def _linger(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    assert tenant.began is not None
    if tenant.events > tenant.swept:
        assert tenant.delay is not None
        due = tenant.began + tenant.delay
    else:
        assert tenant.lease_end is not None
        due = tenant.lease_end
        if now.spacing.empty_tick:
            due = min(due, max(now.ms, tenant.began + now.spacing.empty_tick))
    return replace(tenant, deadline=due, failures=0)


def _finish(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    rest = Tenant(lease_end=tenant.lease_end, last=tenant.last, last_end=tenant.last_end)
    if tenant.began is None:
        return rest
    end = tenant.began + now.spacing.last_ttl
    return replace(rest, last=tenant.began, last_end=end) if now.spacing.last_ttl and end > now.ms else rest


def _hold(tenant: Tenant, event: Event, _: Row, now: _Now) -> Tenant:
    assert isinstance(event, Settle)
    return replace(tenant, held=True, failures=tenant.failures + 1, deadline=now.ms + event.retry)


def _same(tenant: Tenant, _: Event, __: Row, ___: _Now) -> Tenant:
    return tenant


def _not_due(tenant: Tenant, _: Event, __: Row, now: _Now) -> Tenant:
    """Forget a deadline that passed without a runner: its hash was lost."""
    stale = tenant.state is State.IDLE and tenant.deadline is not None and tenant.deadline <= now.ms
    return replace(tenant, deadline=None) if stale else tenant


_EFFECTS: dict[Answer, Callable[[Tenant, Event, Row, _Now], Tenant]] = {
    Answer.STARTED: _publish,
    Answer.DELAYED: _delay,
    Answer.ABSORBED: _same,
    Answer.BEGUN: _begin,
    Answer.REFUSED: _same,
    Answer.KEPT: _keep,
    Answer.LOST: _same,
    Answer.CONTINUED: _continue,
    Answer.LINGERING: _linger,
    Answer.FINISHED: _finish,
    Answer.HELD: _hold,
    Answer.REISSUED: _publish,
    Answer.PUBLISHED: _publish,
    Answer.REPUBLISHED: _publish_again,
    Answer.NOT_DUE: _not_due,
}
