"""How a tenant stands, and why it is not running."""

from __future__ import annotations

from typing import Any, Final

from taskbridge.common.times import moment
from taskbridge.gate import RunnerStatus, State
from taskbridge.observing.causes import Seen, text_of_state, used_up, why
from taskbridge.observing.history import tenant_runs
from taskbridge.observing.reach import Reach
from taskbridge.observing.shapes import Holder, PauseRow, QuarantineRow, TenantAnswer
from taskbridge.store import LOOK_SECONDS, Pause, Quarantine, read_ages

__all__ = ["tenant"]

MOST_RECORDS: Final = 10_000
"""So many records of each state are counted."""
SHOWN_RUNS: Final = 20
SHOWN_QUARANTINE: Final = 10
LOOKS: Final = 3
"""A runner that goes on each time that it is looked at is looked at so many times."""


def tenant(reach: Reach, pipeline: str, name: str) -> TenantAnswer:
    """Return how a tenant stands in a pipeline, and why it does not run; raises as `Reach.pipeline`."""
    declared = reach.pipeline(pipeline)
    runner, counts, pause = _at_one_time(reach, pipeline, name)
    seen = Seen(
        pipeline,
        name,
        runner,
        reach.inspector.places(pipeline, [name])[0],
        reach.inspector.circuit(pipeline),
        counts,
        pause,
        reach.inspector.now_ms(),
        read_ages(reach.database, [pipeline])[pipeline].tail,
        reach.ttl_ms,
        reach.settings.tail_interval,
        declared.max_runs,
        used_up(reach.inspector, declared, {name: runner}).get(name, ()),
    )
    cause, sentence = why(seen)
    found, _ = Quarantine(reach.database, declared.source, seconds=LOOK_SECONDS).find(
        pipeline, tenant=name, limit=SHOWN_QUARANTINE
    )
    runs = tenant_runs(reach, pipeline, name, SHOWN_RUNS)
    return TenantAnswer(
        pipeline=pipeline,
        tenant=name,
        cause=cause,
        state=text_of_state(
            runner, seen.now_ms, seen.ttl_ms, paused=pause is not None, pending=bool(counts["pending"])
        ),
        sentence=sentence,
        holder=_holder(seen),
        due_at=moment(runner.deadline_ms) if runner.state is State.WAITING else None,
        lease_seconds=max(0.0, ((runner.lease_ends_ms or 0) - seen.now_ms) / 1000),
        events=runner.events,
        runs=runner.runs,
        pending=counts["pending"],
        pending_since=counts["pending_since"],
        handled=counts["handled"],
        quarantined=counts["quarantined"],
        discarded=counts["discarded"],
        counts={name: counts[name] for name in ("events", "runs", "sweeps", "records", "failures")},
        last_run_at=counts["last_run_at"],
        failing_since=counts["failing_since"],
        last_error=counts["last_error"],
        pause=None if pause is None else _pause_row(pipeline, pause),
        quarantine=[
            QuarantineRow(
                pipeline,
                one.tenant,
                one.external_id,
                one.revision,
                one.state,
                one.cause,
                one.reason,
                one.attempts,
                one.quarantined_at,
            )
            for one in found
        ],
        runs_shown=runs,
        history=bool(runs) or reach.past.exists,
    )


def _at_one_time(reach: Reach, pipeline: str, name: str) -> tuple[RunnerStatus, dict[str, Any], Pause | None]:
    """Return its runner, its counts and its pause, read while the runner stayed as it is, if it ever does.

    Redis has the one and Postgres the others. A run stores its failure before it gives the runner up. So who is held
    has its failure in counts that were read later, and need not have it in those that were read before.
    """
    (after,) = reach.inspector.look(pipeline, [name])
    for _ in range(LOOKS):
        runner = after
        (counts,) = reach.tenants_in(pipeline).counts(pipeline, [name], MOST_RECORDS)
        pause = reach.looks.pause(pipeline, name)
        (after,) = reach.inspector.look(pipeline, [name])
        if (runner.token, runner.state, runner.hold) == (after.token, after.state, after.hold):
            break
    return runner, counts, pause


def _pause_row(pipeline: str, pause: Pause) -> PauseRow:
    return PauseRow(pipeline, pause.tenant, pause.paused_at, pause.paused_by, pause.reason)


def _holder(seen: Seen) -> Holder | None:
    runner = seen.runner
    if runner.state is not State.RUNNING or runner.token is None:
        return None
    return Holder(runner.token, runner.worker or None, moment(runner.began_ms), moment(seen.beat_ms), seen.is_alive)
