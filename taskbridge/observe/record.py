"""Where a record is, and what happened to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from taskbridge.common.names import check_tenant, key_spellings
from taskbridge.common.texts import counted, one_line
from taskbridge.common.times import moment
from taskbridge.errors import InvalidName
from taskbridge.observe.context import Context
from taskbridge.observe.history import RunRow
from taskbridge.store import LOOK_SECONDS
from taskbridge.store.db import fetch_within

__all__ = ["Found", "RecordLine", "Step", "Story", "document", "find", "records", "story"]

MOST: Final = 50
MOST_RECORDS: Final = 100
MOST_TENANTS: Final = 10
"""How many tenants of a pipeline are found by a prefix of their names."""
MOST_SEARCHED: Final = 1_000
"""In how many tenants of a source a key is searched for."""
MOST_ACTIONS: Final = 10_000
"""How many of the last actions are searched for those on one record."""
MOST_READERS: Final = 20_000
"""How many runs of a tenant are searched for the one that read a record."""
LONGEST_RUN_SECONDS: Final = 3_600
"""The run that read a record was created at most this long before the record was written."""
SHOWN_FAILED: Final = 5
_LAST_CHARACTER: Final = "\U0010ffff"


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


def find(context: Context, text: str) -> tuple[list[Found], str | None]:
    """Return up to 50 tenants, records and deliveries named `text`, and tenants that start with it.

    The second value says which records were not searched; None: all were.
    """
    if not text:
        return [], None
    readers = context.readers()
    found, sources = [*_tenants(context, text, readers)], sorted({*readers.values()})
    # With an index, this also finds the records of sources that no pipeline reads.
    is_indexed = context.value("look_key_index")
    tenants, note = (None, None) if is_indexed else _searched(context, readers)
    try:
        found += map(_found, _records(context, text, None if is_indexed else sources, tenants, LOOK_SECONDS))
    except InvalidName:
        return found, None
    found += _deliveries(context.rows("look_deliveries", delivery=text, sources=sources, limit=MOST))
    return found[:MOST], note


def records(context: Context, key: str, source: str | None = None, tenant: str | None = None) -> list[RecordLine]:
    """Return up to 100 records with a key, of one source and tenant or of all, once for each pipeline that reads them.

    Without an index on the key, this may read all records.
    """
    sources, tenants = ([one] if one is not None else None for one in (source, tenant))
    return _records(context, key, sources, tenants, None)


def document(context: Context, source: str, tenant: str, key: str, longest: int) -> tuple[str | None, bool]:
    """Return up to `longest` characters of a record's document, and whether it is longer.

    None: it is in the row of an adopted table, or the record is gone.
    """
    found = context.rows("record_document", source=source, tenant=tenant, key=key, longest=longest)
    if not found:
        return None, False
    text, is_longer = found[0].values()
    return text, bool(is_longer)


def _records(
    context: Context, key: str, sources: Sequence[str] | None, tenants: Sequence[str] | None, seconds: float | None
) -> list[RecordLine]:
    values = {"keys": key_spellings(key), "sources": sources, "tenants": tenants, "limit": MOST_RECORDS}
    return [RecordLine(**row) for row in fetch_within(context.database, seconds, "look_records", values)]


def _searched(context: Context, readers: Mapping[str, str]) -> tuple[list[str], str | None]:
    """Return the tenants whose records are searched, and a note if that is not all of them."""
    names, is_cut = {""}, False
    for pipeline, source in readers.items():
        first = context.tenants_of(source).after(pipeline, "", MOST_SEARCHED // len(readers) + 1)
        names.update(first)
        is_cut = is_cut or len(first) > MOST_SEARCHED // len(readers)
    note = (
        f"only {len(names) - 1:,} tenants were searched for the key, the first by name: search for the tenant, use "
        "`taskbridge inspect --record`, or create an index on `records (key)`"
    )
    return sorted(names), note if is_cut else None


def _found(line: RecordLine) -> Found:
    deleted = ", deleted" if line.deleted else ""
    sentence = line.sentence if line.unmatched else f"revision {line.revision}{deleted}: {line.sentence}"
    kind: Literal["unmatched", "record"] = "unmatched" if line.unmatched else "record"
    return Found(kind, line.source, line.pipeline, line.tenant, line.key, sentence, line.changed_at)


def _tenants(context: Context, text: str, readers: Mapping[str, str]) -> Iterator[Found]:
    try:
        check_tenant(text)
    except InvalidName:
        return
    for pipeline, source in sorted(readers.items()):
        values = {"pipeline": pipeline, "source": source, "first": text, "but": "", "until": text + _LAST_CHARACTER}
        names = [row["tenant"] for row in context.rows("tenants_from", **values, limit=MOST_TENANTS)]
        here = "" if pipeline in context.pipelines else ", which is not declared here"
        for tenant in names:
            yield Found("tenant", source, pipeline, tenant, "", f"a tenant of {pipeline}{here}")


def _deliveries(rows: Sequence[dict[str, Any]]) -> Iterator[Found]:
    for row in rows:
        source, tenant, key = row["source"], row["tenant"] or "", row["key"] or ""
        result = f"its transaction wrote the record {key!r} of {tenant!r}"
        if row["key"] is None:
            result = "its record has since changed, or was pruned"
        sentence = f"{source}: the webhook was received; {result}"
        yield Found("delivery", source, None, tenant, key, sentence, row["received_at"])


def story(context: Context, source: str, tenant: str, key: str, pipeline: str) -> Story | None:
    """Return what happened to a record in a pipeline; None: there is no such record."""
    context.pipeline(pipeline)
    found = context.rows("look_story", pipeline=pipeline, source=source, tenant=tenant, key=key)
    if not found:
        return None
    row, state = found[0], found[0]["state"]
    runs, reader = _runs_since(context, pipeline, tenant, row, state)
    decisions = list[dict[str, Any]]()
    if row["cause"] is not None or any(run.rejected or run.outcome == "failed" for run in runs):
        values = {"pipeline": pipeline, "tenant": tenant, "key": key, "since": row["changed_at"]}
        decisions = context.rows("look_decisions", **values, size=MOST_ACTIONS)
    is_retried = reader is not None and any(
        one["action"] == "retry" and one["at"] > reader.began_at for one in decisions
    )
    steps = [*_written(row), *_event(row, runs), *_failed(runs), *_read(row, reader)]
    if state == "pending":
        steps.append(_pending(row))
    else:
        steps.append(_ended(row, runs, reader, is_retried=is_retried))
    steps += _decided(row, decisions)
    # The sort is stable: steps with equal times, or without one, keep this order.
    steps.sort(key=lambda step: (step.at is None, step.at or row["changed_at"]))
    note = None
    if not runs and state != "pending":
        note = "the run history does not contain the run that read the record"
    return Story(source, tenant, key, pipeline, row["revision"], row["deleted"], state, steps, note)


def _runs_since(
    context: Context, pipeline: str, tenant: str, row: Mapping[str, Any], state: str
) -> tuple[list[RunRow], RunRow | None]:
    """Return the runs since a record was written, up to the first one that read it, and that run.

    There are no runs if the one that read the record is no longer known.
    """
    since = row["changed_at"].timestamp() - LONGEST_RUN_SECONDS
    found = context.rows(
        "past_reader",
        pipeline=pipeline,
        tenant=tenant,
        xid=row["xid"],
        id=row["id"],
        changed_at=row["changed_at"],
        since=moment(round(since * 1000)),
        floor=f"{int(since * 1e6):016}",
        size=MOST_READERS,
    )
    is_read = bool(found) and found[-1].pop("read")
    runs = [RunRow(**{name: value for name, value in one.items() if name != "read"}) for one in found]
    reader = runs[-1] if is_read else None
    is_known = reader is not None or state == "pending" or row["cause"] == "failed"
    return runs if is_known else [], reader


def _written(row: Mapping[str, Any]) -> Iterator[Step]:
    """Yield how the record was received and recorded."""
    at = row["changed_at"]
    if row["deliveries"] == 1:
        yield Step(at, "received", f"received as the webhook {row['delivery']!r}")
    elif row["deliveries"]:
        yield Step(at, "received", f"received in one of {row['deliveries']:,} webhooks that arrived together")
    if row["recorded_at"] != at:
        yield Step(row["recorded_at"], "recorded", "recorded for the first time")
    what = "deleted in the adopted table" if row["deleted"] else "recorded"
    matched = f" by the criterion {row['criterion']!r}" if row["criterion"] else ""
    yield Step(at, "recorded", f"{what} as revision {row['revision']}{matched}")


def _event(row: Mapping[str, Any], runs: Sequence[RunRow]) -> Iterator[Step]:
    """Yield what its event did: it started a burst, or was absorbed by an existing runner.

    The time of the event is not stored, so the step has the time of the run or of the record.
    """
    if not runs or row["skipped"]:
        return
    first = runs[0]
    if first.burst_run == 1 and first.began_at >= row["changed_at"]:
        reasons = {"record": " because a worker found the record before any event", "retry": ""}
        reason = reasons.get(first.reason, ", started by its event")
        yield Step(first.began_at, "started", f"run {first.token} began{reason}", first.token)
    else:
        has_event = any(one.events for one in runs)
        absorbed = ", which absorbed its event" if has_event else "; no event is known"
        yield Step(row["changed_at"], "absorbed", f"written while its tenant had a runner{absorbed}")


def _failed(runs: Sequence[RunRow]) -> Iterator[Step]:
    """Yield the runs that failed before one read it."""
    # That a run has died is only stored some time after its successor has begun.
    begins = [run.began_at for run in runs[1:]]
    failed = [
        (run, min([run.ended_at, *begins[at : at + 1]])) for at, run in enumerate(runs) if run.outcome == "failed"
    ]
    for run, at in failed[:SHOWN_FAILED]:
        error = one_line(run.error or "no error was stored")
        yield Step(at, "failed", f"run {run.token} of its tenant failed: {error}", run.token)
    if len(failed) > SHOWN_FAILED:
        last, at = failed[-1]
        yield Step(at, "failed", f"{counted(len(failed) - SHOWN_FAILED, 'more run')} failed", last.token)


def _read(row: Mapping[str, Any], reader: RunRow | None) -> Iterator[Step]:
    if reader is not None:
        where = f" on the worker {reader.worker}" if reader.worker else ""
        # A record that was written during the run was read later than the run began.
        at = max(reader.began_at, row["changed_at"])
        yield Step(at, "read", f"read by run {reader.token}{where}", reader.token)


def _ended(row: Mapping[str, Any], runs: Sequence[RunRow], reader: RunRow | None, *, is_retried: bool) -> Step:
    """Return the result. `is_retried`: a retry was requested after it was read, so a later run handled it."""
    run = reader
    if row["cause"] == "failed" and (run is None or row["quarantined_at"] < run.began_at):
        # A failed run quarantined it, and a later run advanced the cursor past it.
        run = next((one for one in reversed(runs) if one.outcome == "failed"), None)
    at, token = (None, None) if run is None or is_retried else (run.ended_at, run.token)
    if row["cause"] is not None:
        is_rejected = row["cause"] == "rejected"
        how = f"quarantined after {counted(row['attempts'], 'attempt')}"
        if is_rejected:
            how = "rejected by the handler"
        what = "rejected" if is_rejected else "quarantined"
        return Step(row["quarantined_at"], what, f"{how}: {one_line(row['reason'])}", token)
    if row["skipped"] and reader is None:
        return Step(None, "skipped", "skipped: it is older than the start of the pipeline")
    return Step(at, "handled", "handled after a retry" if is_retried else "handled", token)


def _pending(row: Mapping[str, Any]) -> Step:
    if not row["failures"]:
        return Step(None, "pending", "pending")
    times, last = counted(row["failures"], "time"), one_line(row["last_error"] or "")
    return Step(None, "pending", f"pending: its tenant failed {times} in a row, last: {last}", row["owner"])


def _decided(row: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]) -> Iterator[Step]:
    """Yield who requested a retry, and who discarded it. An action on many records at once may not have included it."""
    for one in decisions:
        if one["action"] == "retry":
            yield Step(one["at"], "retrying", f"{_who(one)} requested a retry")
        elif row["discarded_at"] is not None:
            yield Step(one["at"], "discarded", f"{_who(one)} discarded it")


def _who(decision: Mapping[str, Any]) -> str:
    """Return who acted on a record, or on many records that may have included it."""
    who: str = decision["who"]
    return who if decision["key"] is not None else f"{who} (for many records at once)"
