"""The values that answers consist of, for pages, commands and metrics to format.

Times are in UTC; None means unknown. A sentence is one line of text. It contains the names of tenants and keys
unchanged, so whatever displays it must escape markup and unprintable characters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from taskbridge.common.texts import counted, one_line

if TYPE_CHECKING:
    from taskbridge.store import Pause
    from taskbridge.store.stats import WaitingRecords

__all__ = [
    "ActiveTenant",
    "Burst",
    "By",
    "Cause",
    "ErrorGroup",
    "FailedGroup",
    "FailedRuns",
    "Found",
    "Holder",
    "Noisy",
    "NoisyTenants",
    "QuarantineRow",
    "RecordLine",
    "RunRow",
    "Saved",
    "Sort",
    "Step",
    "Story",
    "Sums",
    "TenantAnswer",
    "TenantLine",
]

By = Literal["events", "runs", "records", "run time"]
"""What makes a tenant noisy."""
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
class RecordLine:
    """A record in a pipeline that reads it; `pipeline` is None if none does. `unmatched`: why it is unmatched.

    `state`: `pending`, `handled`, `quarantined` or `discarded`. `reason` and `attempts` are those of its quarantine;
    `failures` (in a row) and `last_error` are those of its tenant.
    """

    source: str
    tenant: str
    key: str
    revision: int
    deleted: bool
    recorded_at: datetime
    changed_at: datetime
    unmatched: str | None
    pipeline: str | None
    state: str | None
    reason: str | None
    attempts: int | None
    failures: int | None
    last_error: str | None

    @property
    def sentence(self) -> str:
        """Where the record is, in words."""
        if self.unmatched:
            return f"unmatched: {one_line(self.unmatched)}"
        if self.pipeline is None:
            return f"no pipeline reads the source {self.source}"
        where = f"{self.state} in {self.pipeline}"
        if self.reason:
            return f"{where} after {counted(self.attempts or 0, 'attempt')}: {one_line(self.reason)}"
        if self.state == "pending" and self.failures:
            times = counted(self.failures, "time")
            return f"{where}; its tenant failed {times} in a row, last: {one_line(self.last_error or '')}"
        return where


@dataclass(frozen=True, slots=True)
class Found:
    """A search result.

    `kind`: `tenant` (with its pipeline), `record` (once for each pipeline that reads it; `pipeline` is None if none
    does), `unmatched` (it could not become a record) or `delivery` (a webhook that was received).
    """

    kind: Literal["tenant", "record", "unmatched", "delivery"]
    source: str
    pipeline: str | None
    tenant: str
    key: str
    sentence: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a record's story. `token`: the run of this step.

    `what`: `received`, `recorded`, `started` (its event started a burst), `absorbed` (by an existing runner), `failed`
    (a run failed before one read it), `read`, `handled`, `rejected`, `quarantined`, `retrying`, `discarded`, `pending`
    or `skipped` (older than the pipeline's start).
    """

    at: datetime | None
    what: str
    sentence: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to a record in a pipeline, in chronological order. `note`: what is unknown, and why."""

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
    """The current run of a tenant: its token and worker, when it began, and its last heartbeat by Redis's clock.

    `alive`: whether the heartbeat is recent enough; None if unknown.
    """

    token: str
    worker: str | None
    since: datetime | None
    beat_at: datetime | None
    alive: bool | None


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


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run of the history; the fields are columns of the table `runs`."""

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
class TenantAnswer(TenantLine):
    """A tenant in detail; its `sentence` says why it is not running, or since when it has been.

    `delay`: for a pipeline with criteria, the records that wait.
    """

    cause: Cause
    sentence: str
    holder: Holder | None = None
    pause: Pause | None = None
    quarantine: list[QuarantineRow] = field(default_factory=list)
    """The first 10."""
    runs_shown: list[RunRow] = field(default_factory=list)
    """The last 20, the last one first."""
    delay: WaitingRecords | None = None

    @property
    def known(self) -> bool:
        """Whether the pipeline knows the tenant."""
        return self.cause is not Cause.UNKNOWN


@dataclass(frozen=True, slots=True)
class Noisy:
    """A tenant and the load that it caused."""

    pipeline: str
    tenant: str
    events: int
    runs: int
    records: int
    failures: int
    run_ms: int


@dataclass(frozen=True, slots=True)
class NoisyTenants:
    """The noisiest tenants, the first one first. `basis`: where the numbers come from, in a sentence."""

    tenants: list[Noisy]
    basis: str


@dataclass(frozen=True, slots=True)
class Saved:
    """The events of a pipeline over some days, and the runs and records that they caused.

    Records that nobody notified of have no event, so there may be more records than events.
    """

    pipeline: str
    events: int
    runs: int
    records: int

    @property
    def jobs(self) -> int:
        """How many jobs a system with one job per change would have run."""
        return max(self.events, self.records)

    @property
    def runs_saved(self) -> int:
        """How many fewer runs than these there were."""
        return max(0, self.jobs - self.runs)


@dataclass(frozen=True, slots=True)
class Burst(Saved):
    """A burst: its first run's token and start, and the totals of its runs.

    `first_event_ms`: from its first event to the delivery of the first record; None if unknown.
    """

    tenant: str
    token: str
    began_at: datetime
    ended_at: datetime
    failed: int
    first_event_ms: int | None


@dataclass(frozen=True, slots=True)
class Sums:
    """The totals of an interval of `seconds` that starts at `at`.

    The delays of first events are upper bounds of buckets, in milliseconds; infinite above 10,000 ms.
    """

    at: datetime
    seconds: int
    runs: int
    failed: int
    events: int
    bursts: int
    records: int
    rejected: int
    run_ms: int
    first_event_p50_ms: float | None
    first_event_p99_ms: float | None


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
class FailedGroup:
    """Runs that failed with the same kind of error; `tenants` is a count, `sample` has up to 5 of them.

    `error`: the latest of `texts` different texts of that kind. `first` and `last`: when the first and the last of the
    runs ended.
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
    """Failures, with the error of the most runs first. `basis`: where the numbers come from.

    `more`: how many kinds of error are left out.
    """

    groups: list[FailedGroup]
    basis: str
    more: int = 0
