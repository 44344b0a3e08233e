"""The tenants of a pipeline, and current failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Literal

from taskbridge.common.times import moment
from taskbridge.gate import Hold, RunnerStatus, State
from taskbridge.observe.context import Context
from taskbridge.process.heartbeat import BEATS

__all__ = [
    "LATE_MS",
    "MOST_OF_A_TENANT",
    "MOST_SORTED",
    "ActiveTenant",
    "Cause",
    "ErrorGroup",
    "QuarantineRow",
    "Sort",
    "TenantLine",
    "active",
    "failing",
    "is_alive",
    "late_ms",
    "quarantined",
    "state_of",
    "tenant_values",
    "tenants",
]

MOST_ERRORS: Final = 1_000
MOST_SORTED: Final = 100
"""How many tenants of each kind are compared when sorting."""
MOST_OF_A_TENANT: Final = 100
"""In a list of tenants, records of each state are counted up to this number."""
MOST_TROUBLED: Final = 2_000
LATE_MS: Final = 1_000
"""Workers act on a deadline within this time, unless they are busy or none is running."""

Sort = Literal["name", "failures", "oldest", "pending", "quarantined"]
"""The order of tenants: by name, or the largest value first."""


class Cause(StrEnum):
    """Why a tenant is not running, or that it is."""

    UNKNOWN = "unknown"
    """It has neither records nor a cursor, a runner or a pause."""
    NOTHING = "nothing to do"
    """It is idle, and nothing is pending."""
    FOUND_SOON = "not seen yet"
    """Records are pending, but it has no runner yet: the change poller will find them."""
    NO_WORKER = "no worker"
    """It could run, but no worker has acted on its deadline or its message."""
    PAUSED = "paused"
    BACK_OFF = "back-off"
    """Its last run failed."""
    ASKED_TO_WAIT = "asked to wait"
    """Its handler raised RetryAfter for the tenant, or for the whole pipeline."""
    RATE = "rate limit"
    CIRCUIT = "circuit"
    WAIT_QUEUE = "wait queue"
    TURN = "turn"
    TICK = "tick"
    """Its next run is due after its tick, or after its criterion's delay."""
    LINGERING = "lingering"
    """Everything is handled; its runner ends when the lease ends."""
    QUEUED = "queued"
    """Its run message is in a queue."""
    RUNNING = "running"
    FROZEN = "no heartbeat"
    """It has a run whose last heartbeat is overdue."""


HELD: Final[Mapping[Hold, Cause]] = {
    Hold.TURN: Cause.TURN,
    Hold.WAIT_QUEUE: Cause.WAIT_QUEUE,
    Hold.RATE: Cause.RATE,
    Hold.RETRY: Cause.BACK_OFF,
    Hold.ASKED: Cause.ASKED_TO_WAIT,
    Hold.PAUSED: Cause.PAUSED,
}
UNTIL_A_TIME: Final = (Hold.RATE, Hold.RETRY, Hold.ASKED)
"""These hold a runner only until its deadline; after that it waits for a worker."""


@dataclass(frozen=True, slots=True)
class ActiveTenant:
    """A tenant with a runner. `events` and `runs` count those of its burst; `since`: when its run began."""

    tenant: str
    state: str
    lease_seconds: float
    events: int
    runs: int
    worker: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class TenantLine:
    """The current state of a tenant. Counters are totals; records of each state are counted up to a limit.

    `failures` counts failures in a row. `burst_events` and `burst_runs` belong to its current or last burst. `held`: it
    waits for a back-off, a limit, the wait queue, its turn or the end of a pause; `next_try_at`: when it is retried.
    `due_at`: when its waiting runner is due. `handled` is None if there are too many records to count.
    """

    pipeline: str
    tenant: str
    state: str
    pending: int
    pending_since: datetime | None
    handled: int | None
    quarantined: int
    discarded: int
    events: int
    runs: int
    sweeps: int
    records: int
    failures: int
    failing_since: datetime | None
    last_error: str | None
    last_run_at: datetime | None
    first_event_ms: int | None
    burst_events: int
    burst_runs: int
    lease_seconds: float
    held: bool
    paused: bool
    due_at: datetime | None
    next_try_at: datetime | None


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Tenants and records in quarantine with the same kind of error. `tenants` and `quarantined` are counts.

    `error`: the latest of `texts` different texts of that kind. `sample`: up to 5 tenants. `cut`: the counts may be too
    low, because not all tenants and records were considered.
    """

    pipeline: str
    kind: str
    error: str
    texts: int
    tenants: int
    quarantined: int
    since: datetime | None
    last: datetime | None
    sample: list[str]
    cut: bool


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A record in quarantine. `state`: `quarantined` or `retrying`; `cause`: `failed` or `rejected`."""

    pipeline: str
    tenant: str
    key: str
    revision: int
    state: str
    cause: str
    reason: str
    attempts: int
    at: datetime


def late_ms(runner: RunnerStatus, now_ms: int) -> int:
    """Return how many milliseconds ago a runner's deadline passed."""
    return 0 if runner.deadline_ms is None else max(0, now_ms - runner.deadline_ms)


def is_alive(runner: RunnerStatus, now_ms: int, ttl_ms: int) -> bool | None:
    """Whether the current run's last heartbeat is recent enough; None: there is no current run."""
    if runner.state is not State.RUNNING or runner.deadline_ms is None:
        return None
    return now_ms - (runner.deadline_ms - ttl_ms) <= 2 * ttl_ms / BEATS


def state_of(runner: RunnerStatus, now_ms: int, ttl_ms: int, *, paused: bool, pending: bool = False) -> str:
    """Return the runner's state in a few words, such as what holds it, or that its run is frozen.

    `pending`: whether its tenant has pending records.
    """
    if paused and runner.state in (State.IDLE, State.WAITING):
        return "paused"
    if pending and runner.state is State.IDLE:
        return str(Cause.FOUND_SOON)
    if is_alive(runner, now_ms, ttl_ms) is False:
        return str(Cause.FROZEN)
    if runner.hold is None or (runner.hold in UNTIL_A_TIME and late_ms(runner, now_ms) > LATE_MS):
        return str(runner.state)
    return str(HELD[runner.hold])


def tenants(
    context: Context,
    pipeline: str,
    *,
    failing: bool = False,
    sort: Sort = "name",
    after: str = "",
    limit: int = 50,
    records: int = MOST_OF_A_TENANT,
) -> list[TenantLine]:
    """Return up to `limit` tenants of a pipeline; with `failing`, only those whose last run failed.

    Records of each state are counted up to `records` for each tenant.

    Sorted by name, they are those that follow the tenant `after`. Any other order compares up to 400 tenants: those
    whose runners are due first, those with the most failures, those with the most records in quarantine, and the first
    by name.
    """
    of_source = context.tenants_of(context.pipeline(pipeline).source)
    if sort == "name" and failing:
        names = [row["tenant"] for row in context.rows("look_failing", pipeline=pipeline, after=after, limit=limit)]
    elif sort == "name":
        # A tenant that has only been notified so far has a runner, but neither a record nor a cursor.
        active = _active(context, pipeline)
        names = sorted({*of_source.after(pipeline, after, limit), *(one for one in active if one > after)})[:limit]
    else:
        active = [] if failing else _active(context, pipeline)
        first = [] if failing else of_source.after(pipeline, "", MOST_SORTED)
        names = sorted({*active, *first, *of_source.troubled(pipeline, MOST_SORTED, MOST_TROUBLED)})
    lines = [TenantLine(**values) for values in _values(context, pipeline, names, records)]
    if sort == "name":
        return lines
    if sort == "oldest":
        now = datetime.now(UTC)
        lines.sort(key=lambda one: (one.pending_since or now, one.tenant))
    else:
        lines.sort(key=lambda one: (-getattr(one, sort), one.tenant))
    return [one for one in lines if one.failures or not failing][:limit]


def _active(context: Context, pipeline: str) -> list[str]:
    """Return the tenants whose runners are due first."""
    return context.inspector_of(pipeline).survey([pipeline], MOST_SORTED)[pipeline].tenants


def _values(context: Context, pipeline: str, names: list[str], records: int) -> list[dict[str, Any]]:
    if not names:
        return []
    counts = context.tenants_of(context.pipeline(pipeline).source).counts(pipeline, names, records)
    inspector = context.inspector_of(pipeline)
    runners = dict(zip(names, inspector.look(pipeline, names), strict=True))
    paused = {row["tenant"] or "" for row in context.rows("pauses", pipeline=pipeline, tenants=names)}
    now_ms = inspector.now_ms()
    return [
        tenant_values(
            context, pipeline, row, runners[row["tenant"]], now_ms, paused=not paused.isdisjoint((row["tenant"], ""))
        )
        for row in counts
    ]


def tenant_values(
    context: Context, pipeline: str, counts: dict[str, Any], runner: RunnerStatus, now_ms: int, *, paused: bool
) -> dict[str, Any]:
    """Return the fields of a `TenantLine`, from a tenant's counts in Postgres and its runner in Redis."""
    stored = (
        *("tenant", "pending", "pending_since", "handled", "quarantined", "discarded", "events", "runs", "sweeps"),
        *("records", "failures", "failing_since", "last_error", "last_run_at", "first_event_ms"),
    )
    # A cursor only has the events of a burst once a run has begun.
    of_burst = (counts["burst_events"], counts["burst_runs"])
    if runner.state is not State.IDLE:
        of_burst = (runner.events, runner.runs)
    due_at = moment(runner.deadline_ms) if runner.state is State.WAITING and not runner.waits_for_turn else None
    return {name: counts[name] for name in stored} | {
        "pipeline": pipeline,
        "state": state_of(runner, now_ms, context.ttl_ms, paused=paused, pending=bool(counts["pending"])),
        "burst_events": of_burst[0],
        "burst_runs": of_burst[1],
        "lease_seconds": _lease_seconds(runner, now_ms),
        "held": runner.held,
        "paused": paused,
        "due_at": due_at,
        "next_try_at": due_at if runner.hold in UNTIL_A_TIME and not paused else None,
    }


def active(context: Context, pipeline: str, tenants: Sequence[str], *, paused: bool) -> list[ActiveTenant]:
    """Return tenants with their runners; `paused`: whether their pipeline is paused."""
    inspector = context.inspector_of(pipeline)
    now_ms, found = inspector.now_ms(), []
    for tenant, runner in zip(tenants, inspector.look(pipeline, tenants), strict=True):
        is_running = runner.state is State.RUNNING
        found.append(
            ActiveTenant(
                tenant,
                state_of(runner, now_ms, context.ttl_ms, paused=paused),
                _lease_seconds(runner, now_ms),
                runner.events,
                runner.runs,
                (runner.worker or None) if is_running else None,
                moment(runner.began_ms) if is_running else None,
            )
        )
    return found


def _lease_seconds(runner: RunnerStatus, now_ms: int) -> float:
    return max(0.0, ((runner.lease_ends_ms or 0) - now_ms) / 1000)


def failing(context: Context, pipeline: str | None = None, limit: int = 50) -> list[ErrorGroup]:
    """Return current failures, grouped by kind of error; the groups with the most tenants come first.

    Up to 1,000 failing tenants and 1,000 records in quarantine are considered for each pipeline.
    """
    found = [
        ErrorGroup(name, **row)
        for name in context.names(pipeline)
        for row in context.rows(
            "look_errors", pipeline=name, source=context.pipelines[name].source, size=MOST_ERRORS, limit=limit
        )
    ]
    return sorted(found, key=lambda one: (-one.tenants, -one.quarantined, one.pipeline, one.error))[:limit]


def quarantined(context: Context, pipeline: str, tenant: str | None = None, *, limit: int = 50) -> list[QuarantineRow]:
    """Return up to `limit` records in quarantine, of a pipeline or of one tenant, by tenant and key."""
    source = context.pipeline(pipeline).source
    found = context.rows("look_quarantine", pipeline=pipeline, source=source, tenant=tenant, limit=limit)
    return [QuarantineRow(**row) for row in found]
