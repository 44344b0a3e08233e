"""Where a record is, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from taskbridge.common.names import check_tenant
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import ago, moment
from taskbridge.errors import InvalidName
from taskbridge.gate import RunnerStatus, State
from taskbridge.observing.history import NO_HISTORY, run_row
from taskbridge.observing.reach import Reach
from taskbridge.observing.shapes import Finds, Found, RunRow, Step, Story

__all__ = ["find", "find_records", "story"]

MOST: Final = 50
MOST_TENANTS: Final = 10
"""So many tenants of a pipeline are found by the beginning of their names."""
MOST_LOOKED: Final = 1_000
"""Records of so many tenants are looked through for a key, beside those that have a runner."""
SHOWN_FAILED: Final = 5


def find(reach: Reach, text: str) -> Finds:
    """Return up to 50 tenants, records, messages and deliveries called `text`; tenants also by their beginning.

    Its `note` says where the records of only some tenants were looked through.
    """
    if not text:
        return Finds([])
    readers = _readers(reach)
    found = [*_tenants(reach, text, readers)]
    try:
        records = find_records(reach, text)
    except InvalidName:
        return Finds(found)
    sources = sorted({*readers.values()})
    found += records
    known = {one.source for one in records}
    for source in reach.looks.messages(text, sources):
        if source not in known:
            said = f"{source}: a message with the id {text!r} was recorded; its record was not found, or was pruned"
            found.append(Found("message", source, None, "", text, said))
    found += _deliveries(reach, text, sources)
    return Finds(found[:MOST], records.note)


def find_records(reach: Reach, key: str, *, source: str | None = None, tenant: str | None = None) -> Finds:
    """Return the records with a key, of one source and tenant or of all: once for each pipeline that reads them.

    Without a tenant, and without an index on the key, the records of a bounded number of tenants are looked through;
    the `note` says so where there may be others.
    """
    readers = {name: of for name, of in _readers(reach).items() if source in (None, of)}
    tenants, note = ([tenant], None) if tenant is not None else _candidates(reach, readers)
    # Without these names an index finds the records of sources that no pipeline reads, too.
    sources = [source] if source is not None else None if tenants is None else sorted({*readers.values()})
    return Finds([_found(row) for row in reach.looks.records(key, sources, tenants, MOST)], note)


def _readers(reach: Reach) -> dict[str, str]:
    """Return the source of each pipeline, of those too that nobody declares here: their records are found too."""
    return reach.looks.readers() | {name: one.source for name, one in reach.pipelines.items()}


def _candidates(reach: Reach, readers: Mapping[str, str]) -> tuple[list[str] | None, str | None]:
    """Return the tenants whose records are looked through (None: an index finds all), and what is left out."""
    if reach.looks.finds_keys:
        return None, None
    found, most = {""}, MOST_LOOKED // max(1, len(readers))
    cut = False
    at_work = reach.at_work([*readers], most)
    for name, source in readers.items():
        names = reach.tenants_of(source).after(name, "", most + 1)
        cut = cut or len(names) > most
        found.update(names, at_work[name])
    note = (
        f"only {len(found) - 1:,} tenants were looked through for the key, those that have a runner and the first by "
        "name: name the tenant, or let an index on `records (key)` find all"
    )
    return sorted(found), note if cut else None


def _found(row: dict[str, Any]) -> Found:
    kind: Literal["unmatched", "record"] = "unmatched" if row["unmatched"] else "record"
    place = (row["source"], row["pipeline"], row["tenant"], row["key"])
    what = f"revision {row['revision']}{', deleted' if row['deleted'] else ''}"
    if row["unmatched"]:
        said = f"no criterion matched it: {one_line(row['unmatched'])}"
    elif row["pipeline"] is None:
        said = f"{what}: no pipeline reads the source {row['source']}"
    else:
        said = f"{what}: {row['state']} in {row['pipeline']}"
        if row["reason"]:
            said += f" after {counted(row['attempts'], 'attempt')}: {one_line(row['reason'])}"
        elif row["state"] == "pending" and row["failures"]:
            times = counted(row["failures"], "time")
            said += f"; its tenant failed {times} in a row: {one_line(row['last_error'] or '')}"
    return Found(kind, *place, said, row["changed_at"])


def _tenants(reach: Reach, text: str, readers: Mapping[str, str]) -> Iterator[Found]:
    try:
        check_tenant(text)
    except InvalidName:
        return
    for name, source in sorted(readers.items()):
        names = reach.looks.tenants(name, source, text, MOST_TENANTS)
        if text not in names:
            runner = reach.runner(name, text)
            if runner is not None and (runner.token is not None or runner.deadline_ms is not None):
                names.insert(0, text)
        here = "" if name in reach.pipelines else ", which this process does not declare"
        for tenant in names:
            yield Found("tenant", source, name, tenant, "", f"a tenant of {name}{here}")


def _deliveries(reach: Reach, text: str, sources: Sequence[str]) -> Iterator[Found]:
    rows = reach.looks.deliveries(text, sources, MOST)
    for row in rows:
        source, tenant, key = row["source"], row["tenant"] or "", row["key"] or ""
        if row["key"] is None:
            said = f"{source}: the webhook was received; its record has changed since, or was pruned"
        elif sum(one["source"] == source for one in rows) == 1:
            said = f"{source}: the webhook was received; it wrote the record {key!r} of {tenant!r}"
        else:
            said = f"{source}: the webhook was received; it wrote this record or another of the same transaction"
        yield Found("delivery", source, None, tenant, key, said, row["received_at"])


def story(reach: Reach, source: str, tenant: str, key: str, pipeline: str) -> Story | None:
    """Return what became of a record in a pipeline; None: there is no such record."""
    reach.pipeline(pipeline)
    row = reach.looks.record(pipeline, source, tenant, key)
    if row is None:
        return None
    state = _state(row)
    runs, note = _runs(reach, pipeline, tenant, row, state)
    runner = reach.runner(pipeline, tenant)
    decisions = reach.looks.decisions(pipeline, tenant, key, row["changed_at"])
    if row["cause"] is None and not any(run.rejected or run.outcome == "failed" for run, _ in runs):
        # It never was in quarantine.
        decisions = []
    again = _again(reach, pipeline, tenant, row, runs, decisions)
    steps = [
        *_written(row),
        *_event(reach, pipeline, tenant, row, runs),
        *_failed(runs),
        *_end(row, state, runs, runner, again, perhaps_again=_perhaps_again(reach, row, runs, decisions)),
        *_decided(row, decisions),
    ]
    # Of equal times, and without one, in the order of the steps.
    steps.sort(key=lambda step: (step.at is None, step.at or row["changed_at"]))
    return Story(source, tenant, key, pipeline, row["revision"], row["deleted"], state, steps, note)


def _again(
    reach: Reach,
    pipeline: str,
    tenant: str,
    row: dict[str, Any],
    runs: Sequence[tuple[RunRow, bool]],
    decisions: Sequence[dict[str, Any]],
) -> RunRow | None:
    """Return the run that had the record last, where that is another than the one that read it first; None: it is not.

    Somebody asked for another try: what the record's quarantine says is of that run, or it left quarantine with it.
    """
    first = next((run for run, read in runs if read), None)
    if first is None or row["retry_at"] is not None:
        return None
    tries = [one for one in decisions if one["action"] == "retry" and one["at"] > first.began_at]
    if row["cause"] == "rejected" or (row["cause"] and tries):
        found = reach.past.of_tenant(pipeline, tenant, failed=False, before=row["quarantined_at"], limit=1)
    elif row["cause"] is None and any(one["key"] for one in tries):
        found = reach.past.after(pipeline, tenant, max(one["at"] for one in tries if one["key"]))
    else:
        found = []
    return next((run_row(one) for one in found if one["token"] > first.token), None)


def _perhaps_again(
    reach: Reach, row: dict[str, Any], runs: Sequence[tuple[RunRow, bool]], decisions: Sequence[dict[str, Any]]
) -> bool:
    """Whether a later run may have had the record: it was perhaps among many that somebody wanted another try of."""
    first = next((run for run, read in runs if read), None)
    if first is None or row["cause"] is not None:
        return False
    tries = [one for one in decisions if one["action"] == "retry" and one["at"] > first.began_at]
    # Those of this record alone are known.
    known = max((one["at"] for one in tries if one["key"]), default=first.began_at)
    of_many = [one["at"] for one in tries if not one["key"] and one["at"] > known]
    # Had the run after the try not ended, the record would be in quarantine still.
    return bool(of_many) and bool(reach.past.after(first.pipeline, first.tenant, min(of_many)))


def _state(row: dict[str, Any]) -> str:
    if row["retry_at"] is not None:
        return "pending"
    if row["discarded_at"] is not None:
        return "discarded"
    if row["cause"] is not None:
        return "quarantined"
    return "handled" if row["handled"] else "pending"


def _runs(
    reach: Reach, pipeline: str, tenant: str, row: dict[str, Any], state: str
) -> tuple[list[tuple[RunRow, bool]], str | None]:
    """Return the runs since the record was written, up to the one that read it, and what the history cannot tell."""
    if not reach.past.exists:
        return (
            [],
            f"{NO_HISTORY}, so nothing tells which runs had it",
        )
    found = [(run_row(one), one["read"]) for one in reach.past.readers(pipeline, tenant, row)]
    if any(read for _, read in found) or state == "pending" or (row["cause"] == "failed" and found):
        return found, None
    return [], "the run history does not go back to the run that read the record"


def _written(row: dict[str, Any]) -> Iterator[Step]:
    if row["deliveries"] == 1:
        yield Step(row["changed_at"], "received", f"received as the webhook {row['delivery']!r}")
    elif row["deliveries"]:
        yield Step(
            row["changed_at"], "received", f"received in one of {row['deliveries']:,} webhooks that came together"
        )
    if row["recorded_at"] != row["changed_at"]:
        yield Step(row["recorded_at"], "recorded", "recorded for the first time")
    what = "deleted in the adopted table" if row["deleted"] else "recorded"
    matched = f" by the criterion {row['criterion']!r}" if row["criterion"] else ""
    yield Step(row["changed_at"], "recorded", f"{what} as revision {row['revision']}{matched}")


def _event(
    reach: Reach, pipeline: str, tenant: str, row: dict[str, Any], runs: Sequence[tuple[RunRow, bool]]
) -> Iterator[Step]:
    """Say what its event did: it began a burst, or a runner that was there took it in.

    When the event came is stored nowhere. So the sentence is about what has the step's time: the run, or the record.
    """
    if not runs or row["skipped"]:
        return
    near = runs[0][0]
    first = reach.past.first_of_burst(pipeline, tenant, near.token)
    if first is None:
        return
    run, at = run_row(first), row["changed_at"]
    if run.began_at >= at:
        how = {"record": ": the record was found before an event, or without one", "retry": ""}
        why = how.get(run.reason, ", which its event had started")
        yield Step(run.began_at, "started", f"run {run.token} began{why}", run.token)
    else:
        had_events = any(one.events for one, _ in runs)
        then = " and absorbed its event" if had_events else "; no event of its own is known"
        said = f"written while there was a runner, which began with run {run.token}{then}"
        yield Step(at, "absorbed", said, run.token)


def _failed(runs: Sequence[tuple[RunRow, bool]]) -> Iterator[Step]:
    # The run that took the place of one that died says that it did, some time after it began.
    begins = [run.began_at for run, _ in runs[1:]]
    ends = [min([run.ended_at, *begins[at : at + 1]]) for at, (run, _) in enumerate(runs)]
    failed = [(run, at) for (run, _), at in zip(runs, ends, strict=True) if run.outcome == "failed"]
    for run, at in failed[:SHOWN_FAILED]:
        error = one_line(run.error or "no error was written down")
        yield Step(at, "failed", f"run {run.token} of its tenant failed: {error}", run.token)
    if len(failed) > SHOWN_FAILED:
        last, at = failed[-1]
        yield Step(at, "failed", f"{counted(len(failed) - SHOWN_FAILED, 'more run')} failed", last.token)


def _end(
    row: dict[str, Any],
    state: str,
    runs: Sequence[tuple[RunRow, bool]],
    runner: RunnerStatus | None,
    again: RunRow | None,
    *,
    perhaps_again: bool,
) -> Iterator[Step]:
    reader = next((run for run, read in runs if read), None)
    is_read = reader is not None
    if row["cause"] == "failed" and (reader is None or row["quarantined_at"] < reader.began_at):
        # A run that failed put it into quarantine, and a later one moves the cursor past it.
        reader = next((run for run, _ in reversed(runs) if run.outcome == "failed"), None)
    at: datetime | None = None if reader is None else reader.ended_at
    token = None if reader is None else reader.token
    if reader is not None and (is_read or reader.outcome == "handled"):
        where = f" on the worker {reader.worker}" if reader.worker else ""
        # Written while that run was on, the record was read after that.
        yield Step(max(reader.began_at, row["changed_at"]), "read", f"read by run {token}{where}", token)
    elif row["delivered_at"] is not None:
        at, token = row["delivered_at"], row["delivered_by"]
        yield Step(at, "read", f"read by run {token}, as the journal says", token)
    if again is not None:
        at, token = again.ended_at, again.token
        where = f" on the worker {again.worker}" if again.worker else ""
        yield Step(again.began_at, "read", f"read again by run {token}{where}", token)
    if row["cause"] is not None:
        yield from _quarantine(row, token)
    elif state == "handled" and row["skipped"] and reader is None:
        yield Step(None, "skipped", "it is older than the start of the pipeline, which passed it over")
    elif state == "handled" and perhaps_again:
        said = f"handled: by run {token} or, if it was among those records, by a run after that try"
        yield Step(None, "handled", said, None)
    elif state == "handled":
        yield Step(at, "handled", "handled", token)
    else:
        failures = row["failures"] or 0
        last = f": its tenant failed {counted(failures, 'time')} in a row, last: {one_line(row['last_error'] or '')}"
        has_it, token = "", row["owner"] if failures else None
        if runner is not None and runner.state is State.RUNNING:
            token = runner.token
            has_it = f"; run {token} of its tenant is on, begun {ago(moment(runner.began_ms))}, and may have it in hand"
        yield Step(None, "pending", f"pending{last if failures else ''}{has_it}", token)


def _quarantine(row: dict[str, Any], token: str | None) -> Iterator[Step]:
    reason = one_line(row["reason"])
    if row["cause"] == "rejected":
        yield Step(row["quarantined_at"], "rejected", f"rejected by the handler: {reason}", token)
    else:
        said = f"quarantined after {counted(row['attempts'], 'attempt')}: {reason}"
        yield Step(row["quarantined_at"], "quarantined", said, token)


def _by(decision: Mapping[str, Any]) -> str:
    """Say who decided about a record, or about many among which it may have been."""
    who: str = decision["who"]
    return who if decision["key"] is not None else f"{who}, about many records at once,"


def _decided(row: dict[str, Any], decisions: Sequence[dict[str, Any]]) -> Iterator[Step]:
    """Say who wanted another try, and who gave the record up; those who decided about many at once are not known."""
    tries = [(one["at"], _by(one)) for one in decisions if one["action"] == "retry"]
    if row["retry_at"] is not None:
        # The audit has it a moment before.
        by = tries.pop()[1] if tries and tries[-1][0] <= row["retry_at"] else "somebody"
        said = f"{by} asked for another try; the next run of its tenant takes it"
        yield Step(row["retry_at"], "retrying", said)
    for at, by in tries:
        yield Step(at, "retrying", f"{by} asked for another try")
    if row["discarded_at"] is not None:
        last = decisions[-1] if decisions else None
        by = _by(last) if last and last["action"] == "discard" else "somebody"
        yield Step(row["discarded_at"], "discarded", f"{by} gave it up")
