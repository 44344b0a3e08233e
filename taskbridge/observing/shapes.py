"""What `taskbridge.observing.answers` gives: plain values, without HTML and without a terminal.

Times are in UTC, and `None` where nothing is known. A sentence is text for people on one line: it names tenants and
keys as they are, so whoever shows it takes care of markup and of characters that are not printable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from taskbridge.gate import Survey

__all__ = [
    "ActiveTenant",
    "BurstRow",
    "By",
    "Cause",
    "Colour",
    "DayRow",
    "ErrorGroup",
    "FailedGroup",
    "FailedRuns",
    "Finding",
    "Finds",
    "Found",
    "Health",
    "Holder",
    "Minute",
    "Noisy",
    "NoisyTenants",
    "PauseRow",
    "PipelineLine",
    "PipelinePulse",
    "Pulse",
    "QuarantineRow",
    "RunRow",
    "Sort",
    "Step",
    "Story",
    "TenantAnswer",
    "TenantLine",
]

Colour = Literal["green", "yellow", "red"]
By = Literal["events", "runs", "records", "failures", "run time"]
"""What tenants are noisy by."""
Sort = Literal["name", "runs", "events", "records", "failures", "oldest", "pending", "quarantined"]
"""What tenants are sorted by: by name from the first, else those with the most first."""


class Cause(StrEnum):
    """Why a tenant is not running, or that it is."""

    UNKNOWN = "unknown"
    """It has no records, no cursor, no runner and no pause."""
    NOTHING = "nothing to do"
    """It is idle, and nothing is pending."""
    FOUND_SOON = "not seen yet"
    """Records are pending and it has no runner yet: the tail finds them."""
    NO_WORKER = "no worker"
    """It could run, and no worker has acted on its deadline or its message."""
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
    """Its next run comes with its tick, or with its criterion's delay."""
    LINGERING = "lingering"
    """All is handled; its runner ends when the lease ends."""
    QUEUED = "queued"
    """Its run message lies in a queue."""
    RUNNING = "running"
    FROZEN = "no heartbeat"
    """A run has it, and there was no heartbeat for longer than one may be late."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator may have to do something about.

    `remedy`: a command or what to do; empty: none. `tenant`: the one that the sentence names. `page`: of the dashboard,
    which tells more where no tenant is named.
    """

    colour: Colour
    sentence: str
    remedy: str = ""
    pipeline: str | None = None
    tenant: str | None = None
    page: Literal["checks", "failing"] = "checks"


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """How one pipeline stands. Records and failing tenants count up to a bound.

    `oldest_tenant`: whose pending record is the oldest; `fails`: a tenant whose last run failed. `unseen`: there may be
    more pending records, and older ones. `survey` has its circuit, and the tenants whose runners are due first.
    """

    pipeline: str
    runners: int
    pending: int
    oldest_seconds: float
    oldest_tenant: str | None
    quarantined: int
    failing: int
    fails: str | None
    unseen: bool
    survey: Survey


@dataclass(frozen=True, slots=True)
class Health:
    """Whether it is healthy, over all pipelines. Times are seconds.

    `tail_seconds`: since any worker last looked for records; infinite: never. `workers`: the names of those whose runs
    are on, as far as the runners that are due first tell. `overdue_seconds`: since the earliest deadline passed
    on which no worker has acted. Records, in quarantine or pending, count up to a bound of each pipeline. Pending are
    those of the tenants whose runners are due first; `unseen`: there may be others, and older ones.
    """

    colour: Colour
    sentence: str
    oldest_pending_seconds: float
    overdue_seconds: float
    tail_seconds: float
    open_circuits: list[str]
    runners: int
    workers: list[str]
    pending: int
    unseen: bool
    quarantined: int
    paused: int
    failing: int
    findings: list[Finding]
    at: datetime
    pipelines: list[PipelineLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that a search has found.

    `kind`: `tenant` (with its pipeline), `record` (once for each pipeline that reads it; `pipeline` is None where none
    does), `unmatched` (a record that no criterion matched), `message` (its id is known and its record is gone) or
    `delivery` (a webhook that was received).
    """

    kind: Literal["tenant", "record", "unmatched", "message", "delivery"]
    source: str
    pipeline: str | None
    tenant: str
    key: str
    sentence: str
    at: datetime | None = None


class Finds(list[Found]):
    """What a search has found. `note`: what was not looked through, and what to do; None: it looked everywhere."""

    def __init__(self, found: Iterable[Found], note: str | None = None) -> None:
        super().__init__(found)
        self.note = note


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a record's story. `token`: the run that it tells of.

    `what`: `received`, `recorded`, `started` (its event began a burst), `absorbed` (by the runner of a burst), `failed`
    (a run failed before one read it), `read`, `handled`, `rejected`, `quarantined`, `retrying`, `discarded`, `pending`
    or `skipped` (older than the pipeline's start).
    """

    at: datetime | None
    what: str
    sentence: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """What became of a record in one pipeline, in the order of time. `note`: what cannot be told, and why."""

    source: str
    tenant: str
    key: str
    pipeline: str
    revision: int
    deleted: bool
    state: str
    steps: list[Step]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that has a tenant: its token, its worker, since when, and its last heartbeat by Redis's clock.

    `alive`: whether the heartbeat is no older than it may be; None: nothing tells when the last one was.
    """

    token: str
    worker: str | None
    since: datetime | None
    beat_at: datetime | None
    alive: bool | None


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause; `tenant` None: of the whole pipeline. `by` is who made it, None where that was not written down."""

    pipeline: str
    tenant: str | None
    at: datetime
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A record in quarantine. `state`: `quarantined`, `retrying` or `discarded`; `cause`: `failed` or `rejected`."""

    pipeline: str
    tenant: str
    key: str
    revision: int
    state: str
    cause: str
    reason: str
    attempts: int
    at: datetime


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the history; the columns are those of the table `runs`."""

    pipeline: str
    tenant: str
    token: str
    began_at: datetime
    ended_at: datetime
    reason: str
    worker: str | None
    events: int
    burst_run: int
    records: int
    rejected: int
    outcome: str
    error: str | None
    first_event_ms: int | None

    @property
    def run_ms(self) -> float:
        """How long it took, in milliseconds."""
        return (self.ended_at - self.began_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True)
class TenantAnswer:
    """How a tenant stands in a pipeline, and in one `sentence` why it does not run, or since when it does.

    `due_at`: when the gate acts next on it. `events` and `runs` are those of its burst. `counts` are all since the
    tenant's first run: events, runs, sweeps, records, failures (in a row). Records count up to 10,000 of each state.
    `history`: whether there is a history of runs; without one `runs_shown` is empty.
    """

    pipeline: str
    tenant: str
    cause: Cause
    state: str
    sentence: str
    holder: Holder | None = None
    due_at: datetime | None = None
    lease_seconds: float = 0.0
    events: int = 0
    runs: int = 0
    pending: int = 0
    pending_since: datetime | None = None
    handled: int | None = 0
    """None: not known, for so many are pending or in quarantine that they were not all counted."""
    quarantined: int = 0
    discarded: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    last_run_at: datetime | None = None
    failing_since: datetime | None = None
    last_error: str | None = None
    pause: PauseRow | None = None
    quarantine: list[QuarantineRow] = field(default_factory=list)
    """The first 10."""
    runs_shown: list[RunRow] = field(default_factory=list)
    """The last 20, the last one first."""
    history: bool = False

    @property
    def known(self) -> bool:
        """Whether there is such a tenant."""
        return self.cause is not Cause.UNKNOWN


@dataclass(frozen=True, slots=True)
class TenantLine:
    """One tenant of a list. Counters are all since its first run; records of each state count up to a bound.

    `burst_events` and `burst_runs` are those of its current burst, or of its last one. `held`: a back-off, a limit or
    a pause keeps it from running; `next_try_at`: when it is tried again. `due_at`: when its waiting runner is due.
    `handled` is None if it is not known.
    """

    pipeline: str
    tenant: str
    state: str
    pending: int
    pending_since: datetime | None
    quarantined: int
    events: int
    runs: int
    records: int
    failures: int
    last_error: str | None
    last_run_at: datetime | None
    handled: int | None = None
    discarded: int = 0
    sweeps: int = 0
    first_event_ms: int | None = None
    failing_since: datetime | None = None
    burst_events: int = 0
    burst_runs: int = 0
    lease_seconds: float = 0.0
    held: bool = False
    paused: bool = False
    due_at: datetime | None = None
    next_try_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Noisy:
    """A tenant with what it caused."""

    pipeline: str
    tenant: str
    events: int
    runs: int
    records: int
    failures: int
    run_ms: int


@dataclass(frozen=True, slots=True)
class NoisyTenants:
    """The noisiest first, and the `basis`: from what the figures come, in one sentence."""

    tenants: list[Noisy]
    basis: str


@dataclass(frozen=True, slots=True)
class BurstRow:
    """One burst: its first run's token and start, and the sums over its runs.

    `first_event_ms`: from its first event to the delivery of the first record; None: not known. `windowed_ms`: the same
    had its events been collected for 500 ms first.
    """

    pipeline: str
    tenant: str
    token: str
    began_at: datetime
    ended_at: datetime
    events: int
    runs: int
    records: int
    failed: int
    first_event_ms: int | None
    windowed_ms: int | None

    @property
    def runs_saved(self) -> int:
        """How many runs fewer there were than events."""
        return max(0, self.events - self.runs)


@dataclass(frozen=True, slots=True)
class DayRow:
    """What one day (UTC) cost and saved.

    The delays of first events are upper ends of buckets, in milliseconds: infinite where one is longer than 10,000 ms.
    """

    day: datetime
    events: int
    bursts: int
    runs: int
    records: int
    rejected: int
    failed: int
    run_ms: int
    first_event_p50_ms: float | None
    first_event_p99_ms: float | None

    @property
    def runs_saved(self) -> int:
        """How many runs fewer there were than events."""
        return max(0, self.events - self.runs)


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Tenants, or records in quarantine, with the same kind of error. `tenants` and `quarantined` are counts.

    `error`: the last text of that kind, of `texts` different ones. `sample`: up to 5 tenants. `quarantined`: records
    that lie in quarantine with such a reason. `cut`: the counts may be too low, for there are more than are looked at.
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
class FailedGroup:
    """Runs that failed with the same kind of error; `tenants` is a count, of whom `sample` has up to 5.

    `error`: the last text of that kind, of `texts` different ones. `first` and `last`: when the first and the last of
    the runs ended.
    """

    pipeline: str
    error: str
    texts: int
    runs: int
    tenants: int
    first: datetime
    last: datetime
    sample: list[str]


@dataclass(frozen=True, slots=True)
class FailedRuns:
    """What failed in a time, that of the most runs first, and the `basis`: from what the figures come.

    `more`: so many kinds of error are left out. `rejected`: records that the runs of that time rejected.
    """

    groups: list[FailedGroup]
    basis: str
    more: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Minute:
    """One point of time: the sums from `at` on, over `seconds`. Delays as in `DayRow`; `run_ms` is a sum."""

    at: datetime
    seconds: int
    runs: int
    failed: int
    events: int
    bursts: int
    records: int
    rejected: int
    run_ms: int
    first_event_mean_ms: float | None
    first_event_p50_ms: float | None
    first_event_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class ActiveTenant:
    """A tenant that has a runner. `events` and `runs` are those of its burst; `since`: when its run began."""

    tenant: str
    state: str
    lease_seconds: float
    events: int
    runs: int
    worker: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class PipelinePulse:
    """How a pipeline stands at this moment. Rates are per second, over the last seconds; None: there is no history.

    `runners`: tenants with a runner, `waiting`: those of them in the wait queue. `tenants`: those due first.
    """

    pipeline: str
    runners: int
    waiting: int
    overdue_seconds: float
    circuit_open: bool
    circuit_until: datetime | None
    paused: bool
    events_rate: float | None
    runs_rate: float | None
    records_rate: float | None
    tenants: list[ActiveTenant]


@dataclass(frozen=True, slots=True)
class Pulse:
    """One look at everything that moves.

    `queued`: run messages in the two queues; None: the broker is another server.
    """

    at: datetime
    queued: int | None
    pipelines: list[PipelinePulse]
