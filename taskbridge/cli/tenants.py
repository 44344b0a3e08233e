"""How tenants stand: what Postgres counts, beside what the gate knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final

from taskbridge.common.texts import counted
from taskbridge.common.times import moment
from taskbridge.gate import Hold, RunnerStatus, State, Survey
from taskbridge.observing.causes import text_of_state
from taskbridge.observing.troubles import nobody_looks, unseen
from taskbridge.store import MOST_RECORDS, Backlog, Looks, Pause, Paused, read_ages, read_backlogs

if TYPE_CHECKING:
    from taskbridge.process.light_runtime import LightRuntime
    from taskbridge.process.runtime import Runtime

__all__ = [
    "ORDERS",
    "TenantView",
    "Totals",
    "busiest",
    "has_pending",
    "is_idle",
    "page",
    "page_of_failing",
    "sorted_by",
    "totals",
    "unknown",
    "view",
]


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant of one pipeline. `counts` are the columns of `tenant_counts`; `pause` is what holds it.

    `ttl_ms`: after so long without a heartbeat another run takes the place of one.
    """

    tenant: str
    runner: RunnerStatus
    lease_seconds: float
    counts: dict[str, Any]
    now_ms: int
    ttl_ms: int
    pause: Pause | None

    @property
    def state(self) -> str:
        """The runner's state; a pause, what holds it and a run that is not alive are named."""
        pending = bool(self.counts["pending"])
        return text_of_state(self.runner, self.now_ms, self.ttl_ms, paused=self.pause is not None, pending=pending)

    def count(self, name: str) -> str:
        """Return one of the counts as it is shown; one that is not known is a dash."""
        return "-" if self.counts[name] is None else f"{self.counts[name]:,}"

    @property
    def last_run_at(self) -> datetime | None:
        """Start of the last run."""
        at: datetime | None = self.counts["last_run_at"]
        return at

    @property
    def due_at(self) -> datetime | None:
        """When a runner that waits is due."""
        return moment(self._due_ms)

    @property
    def due_seconds(self) -> float | None:
        """In how long a runner that waits is due, by Redis's clock."""
        deadline = self._due_ms
        return None if deadline is None else (deadline - self.now_ms) / 1000

    @property
    def next_try_at(self) -> datetime | None:
        """When a tenant that a back-off or a rate limit holds is tried again."""
        return self.due_at if self.runner.hold in (Hold.RATE, Hold.RETRY, Hold.ASKED) and self.pause is None else None

    @property
    def _due_ms(self) -> int | None:
        waits = self.runner.state is State.WAITING and not self.runner.waits_for_turn
        return self.runner.deadline_ms if waits else None


def _age(one: TenantView) -> float:
    since: datetime | None = one.counts["pending_since"]
    return inf if since is None else since.timestamp()


ORDERS: Final[Mapping[str, Callable[[TenantView], float]]] = {
    "age": _age,
    "failures": lambda one: -one.counts["failures"],
    "pending": lambda one: -one.counts["pending"],
    "quarantine": lambda one: -one.counts["quarantined"],
    "runs": lambda one: -one.counts["runs"],
}
"""What tenants are sorted by, beside the name: the first is the one with the least."""

MOST_RUNNERS: Final = 1_000
"""Tenants without records and cursor are shown if they are among so many runners that are due first."""
MOST_COUNTED: Final = 10_000
"""Records that are counted of a tenant on a page of many."""
MOST_TO_SORT: Final = 1_000_000
"""Records that are counted of all tenants at a time, of each state, to sort them."""


@dataclass(frozen=True, slots=True)
class Totals:
    """How a whole pipeline stands, counted up to a limit; `survey` has the tenants whose runners are due first.

    `tail_seconds`: since a worker last looked for its records. `unseen`: there may be more pending records.
    """

    pipeline: str
    survey: Survey
    backlog: Backlog
    paused: Paused
    tail_seconds: float
    unseen: bool

    def __str__(self) -> str:
        seen = self.backlog
        numbers = f"{counted(self.survey.runners, 'runner')}, {self._pending}, {seen.quarantined:,} in quarantine"
        return f"{self.pipeline}: {numbers}, {counted(seen.failing, 'tenant')} failing"

    @property
    def _pending(self) -> str:
        count = self.backlog.pending
        if self.unseen and not count:
            return "pending not known"
        return f"{count:,}{' or more' if self.unseen else ''} pending"

    def as_json(self) -> dict[str, Any]:
        """Return the figures; None is what is not known."""
        found = {"runners": self.survey.runners, **self.backlog._asdict(), "unseen": self.unseen}
        if self.unseen and not self.backlog.pending:
            found |= {"pending": None, "oldest_seconds": None}
        return found


def totals(runtime: LightRuntime, pipeline: str) -> Totals:
    """Return how a pipeline stands. What it costs does not grow with the tenants that there are."""
    survey = runtime.gate.survey([pipeline], MOST_RUNNERS)[pipeline]
    source = runtime.pipelines[pipeline].source
    backlogs = read_backlogs(runtime.database, {pipeline: source}, {pipeline: survey.tenants})
    paused, tail = runtime.pauses.of(pipeline), read_ages(runtime.database, [pipeline])[pipeline].tail
    hidden = unseen(
        survey,
        backlogs[pipeline],
        is_looked_for=not nobody_looks(tail, runtime.settings.tail_interval),
        is_paused=bool(paused.tenants or paused.whole),
        runners=MOST_RUNNERS,
        records=MOST_RECORDS,
    )
    return Totals(pipeline, survey, backlogs[pipeline], paused, tail, hidden)


def unknown(runtime: LightRuntime, tenant: str) -> str:
    """Say that there is no such tenant, as far as this process can tell."""
    said = f"no tenant is called {tenant!r}: it has neither records nor a runner"
    others = Looks(runtime.database).undeclared(runtime.pipelines.names())
    if not others:
        return said
    return (
        f"{said} in {', '.join(runtime.pipelines.names())}; {', '.join(others)} cannot be asked here, where "
        "TASKBRIDGE_PIPELINES names no module that declares it"
    )


def view(runtime: LightRuntime, pipeline: str, tenant: str) -> list[TenantView]:
    """Return a tenant, if it has records, a cursor, a runner or a pause."""
    return _views(runtime, pipeline, [tenant], None, runtime.pauses.of(pipeline))


def busiest(runtime: LightRuntime, whole: Totals, limit: int) -> tuple[list[TenantView], bool]:
    """Return up to `limit` tenants, and whether there are more: those whose runners are due first, then by name.

    What it costs is bounded as that of `page`.
    """
    tenants, first = runtime.tenants_of(whole.pipeline), whole.survey.tenants[: limit + 1]
    names = list(dict.fromkeys([*first, *tenants.after(whole.pipeline, "", limit + 1)]))
    return _views(runtime, whole.pipeline, names[:limit], MOST_COUNTED, whole.paused), len(names) > limit


def page(runtime: LightRuntime, whole: Totals, after: str, limit: int) -> tuple[list[TenantView], bool]:
    """Return the next `limit` tenants by name, after "" the first ones, and whether more follow.

    What it costs does not grow with the tenants that there are. Of each tenant up to `MOST_COUNTED` records count.
    """
    pipeline, tenants = whole.pipeline, runtime.tenants_of(whole.pipeline)
    others = {*whole.survey.tenants, *whole.paused.tenants}
    names = sorted({*tenants.after(pipeline, after, limit + 1), *(name for name in others if name > after)})
    return _views(runtime, pipeline, names[:limit], MOST_COUNTED, whole.paused), len(names) > limit


def page_of_failing(runtime: LightRuntime, whole: Totals, after: str, limit: int) -> tuple[list[TenantView], bool]:
    """Return the next `limit` tenants by name whose last run failed, and whether more follow; bounded as `page`."""
    names = Looks(runtime.database).failing(whole.pipeline, after, limit + 1)
    return _views(runtime, whole.pipeline, names[:limit], MOST_COUNTED, whole.paused), len(names) > limit


def sorted_by(
    runtime: LightRuntime, whole: Totals, order: str, limit: int, *, failing: bool = False
) -> tuple[list[TenantView], bool]:
    """Return the first `limit` tenants in one of `ORDERS`, and whether there are more.

    What it costs does not grow with the tenants that there are: it looks at up to `MOST_RUNNERS` of those whose runners
    are due first, of those with the most failures, of those with the most in quarantine, of those that are paused, and
    of the first ones by name. The more tenants, the fewer records of each are counted, up to `MOST_TO_SORT` in all; of
    those that may be among the first, more are counted then. With `failing` only tenants whose last run failed count.
    """
    pipeline, tenants, key = whole.pipeline, runtime.tenants_of(whole.pipeline), ORDERS[order]
    by_name = tenants.after(pipeline, "", MOST_RUNNERS + 1)
    paused = sorted(whole.paused.tenants)[:MOST_RUNNERS]
    names = sorted({*whole.survey.tenants, *tenants.troubled(pipeline, MOST_RUNNERS), *paused, *by_name[:MOST_RUNNERS]})
    if failing:
        counts = tenants.counts(pipeline, tenants.troubled(pipeline, MOST_RUNNERS), 1)
        names, by_name = [row["tenant"] for row in counts if row["failures"]], []
    views, most = _sorted(runtime, whole, order, names)
    more = len(views) > limit or len(by_name) > MOST_RUNNERS
    while most < MOST_COUNTED:
        # A tenant with as many records as were counted may have more than another.
        edge = max((key(one) for one in views[:limit]), default=inf)
        first = [one.tenant for one in views if key(one) <= edge]
        if len(first) > len(names) // 2:
            names = [one.tenant for one in views[:limit]]
            return _sorted(runtime, whole, order, names)[0], more
        names = first
        views, most = _sorted(runtime, whole, order, names)
    return views[:limit], more


def _sorted(runtime: LightRuntime, whole: Totals, order: str, names: Sequence[str]) -> tuple[list[TenantView], int]:
    """Return tenants in one of `ORDERS`, and how many records of each were counted."""
    most = min(MOST_COUNTED, MOST_TO_SORT // max(1, len(names)))
    views = _views(runtime, whole.pipeline, names, most, whole.paused)
    return sorted(views, key=lambda one: (ORDERS[order](one), one.tenant)), most


def _views(
    runtime: LightRuntime, pipeline: str, names: Sequence[str], most: int | None, paused: Paused
) -> list[TenantView]:
    """Return those of `names` that have records, a cursor, a runner or a pause; up to `most` records of each count."""
    # A run stores its failure before the gate holds its tenant: who is held here has one below.
    runners = runtime.gate.look(pipeline, names)
    counts = {row["tenant"]: row for row in runtime.tenants_of(pipeline).counts(pipeline, names, most)}
    now_ms = runtime.gate.now_ms()
    views = [
        TenantView(
            name,
            runner,
            max(0.0, ((runner.lease_ends_ms or 0) - now_ms) / 1000),
            counts[name] | _of_burst(runner),
            now_ms,
            round(runtime.settings.runner_ttl * 1000),
            paused.holding(name),
        )
        for name, runner in zip(names, runners, strict=True)
    ]
    return [
        one
        for one in views
        if one.counts["known"] or one.tenant in paused.tenants or one.runner.deadline_ms is not None
    ]


def _of_burst(runner: RunnerStatus) -> dict[str, int]:
    """Return what the gate has counted of a burst that is on: a cursor knows of no event before its run has begun."""
    return {} if runner.state is State.IDLE else {"burst_events": runner.events, "burst_runs": runner.runs}


def is_idle(runtime: Runtime) -> bool:
    """Whether no tenant of any pipeline has a runner or a pending record; one that waits for a delay has both."""
    surveys = runtime.gate.survey(runtime.pipelines.names(), 1).values()
    return not any(one.runners for one in surveys) and not has_pending(runtime)


def has_pending(runtime: Runtime) -> bool:
    """Whether any tenant of any pipeline has a pending record, due or not."""
    return any(True for name in runtime.pipelines.names() for _ in runtime.pending(name))
