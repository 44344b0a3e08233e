"""Registering pipelines, and pruning: deleting old records that every pipeline has finished."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.errors import LockNotAvailable
from sqlalchemy import Engine

from taskbridge.errors import InvalidPolicy
from taskbridge.store.db import (
    LOOKUPS,
    SHORT_WAIT,
    Bounded,
    checked_out,
    fetch_within,
    in_one_message,
    rows,
    scalar,
    within,
)
from taskbridge.store.queries import Queries, queries

__all__ = [
    "EVERYTHING",
    "NOW",
    "PRUNED",
    "STEP",
    "Prune",
    "Step",
    "forget_pipeline",
    "prune",
    "register_pipeline",
    "undeclared_readers",
    "unread_sources",
]

EVERYTHING = "everything"
NOW = "now"
EVERY_RECORD: Final = "1:1:"
"""A snapshot that sees no transaction, so that every record lies after it."""


def register_pipeline(database: Engine, pipeline: str, source: str, start: str | datetime = EVERYTHING) -> None:
    """Register a pipeline when it is seen for the first time: its source, and where its cursors begin.

    Args:
        database: the database.
        pipeline: its name.
        source: the source that it reads.
        start: `everything`, `now`, or a time: records written earlier are skipped, except for those of transactions
            that were in progress at that time.

    Raises:
        InvalidPolicy: it has read another source so far, or it is unknown what was written since `start`.
    """
    sql, values = queries(database), {"pipeline": pipeline, "source": source}
    with checked_out(database) as driver:
        found = scalar(driver, sql("known_source"), values)
        if found is None:
            snapshot = _first_snapshot(driver, sql, pipeline, source, start)
            # One message: a process that freezes between two would block the commits of all batches of the source.
            statements = (sql(block) for block in ("begin", "register_lock", "register_pipeline", "commit"))
            driver.exchange([driver.bound("; ".join(statements), {**values, "start": snapshot})])
            found = scalar(driver, sql("known_source"), values)
    if found != source:
        raise InvalidPolicy(
            f"the pipeline {pipeline!r} has read the source {found!r} until now and cannot read {source!r}: declare it "
            f"with source={found!r}, or give the new one another name"
        )


def _first_snapshot(driver: Bounded, sql: Queries, pipeline: str, source: str, start: str | datetime) -> str | None:
    """Return the snapshot at which a pipeline's cursors begin; None: the present one."""
    if not isinstance(start, datetime):
        return EVERY_RECORD if start == EVERYTHING else None
    with within(driver, None):
        (since,) = rows(driver, sql("snapshot_since"), {"source": source, "since": start})
    if since["is_rebased"]:
        raise InvalidPolicy(
            f"the pipeline {pipeline!r} cannot begin at {start}: the records of the source {source!r} have "
            "been rebased since, and count as written at one time: declare it with start='now' or without"
        )
    return str(since["snapshot"])


def undeclared_readers(database: Engine, declared: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each source with several pipelines, those that are not among `declared`."""
    readers = defaultdict(list)
    for row in fetch_within(database, None, "pipelines"):
        readers[row["source"]].append(row["pipeline"])
    return {source: sorted({*names} - {*declared}) for source, names in readers.items() if len(names) > 1}


def unread_sources(database: Engine, read: Collection[str]) -> list[str]:
    """Return the sources that have records or are adopted, are not among `read`, and have no registered pipeline."""
    return [row["source"] for row in fetch_within(database, None, "unread_sources", {"read": [*read]})]


def forget_pipeline(database: Engine, pipeline: str) -> dict[str, int] | None:
    """Delete the data of a pipeline; return the number of cursors and quarantine rows; None: there were none."""
    (row,) = fetch_within(database, None, "forget", {"pipeline": pipeline})
    return row if any(row.values()) else None


# Pruning.

PRUNED: Final = ("records", "quarantine", "deliveries")
"""The tables, in the order in which they are pruned."""

STEP: Final = 500
"""Rows that a step reads, and may lock; a user who writes one of them waits for the step."""

PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Prune:
    """What to prune.

    Args:
        older_than: the minimum age of a record, since it was last written.
        sources: the source of each declared pipeline; those that the database knows are added.
        pipeline: only what this declared pipeline reads.
        deliveries: the journal as well, by the age of each delivery.
        dry_run: count and delete nothing.
    """

    older_than: timedelta
    sources: Mapping[str, str]
    pipeline: str | None = None
    deliveries: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The committed result of one step: rows deleted from `table` and from quarantine, and old records that stay."""

    table: str
    deleted: int
    quarantine: int
    kept: int


def prune(database: Engine, what: Prune, size: int = STEP) -> Iterator[Step]:
    """Delete step by step, each in a transaction of its own that reads `size` rows; yield the result of each step.

    A record is deleted if every pipeline that reads its source has handled or discarded it, together with its rows of
    quarantine; then rows of quarantine whose record is gone or has changed. Nothing is deleted that is pending, in
    quarantine or to be tried again. It can be stopped after any step.
    """
    query = queries(database)
    with checked_out(database) as driver, within(driver, None):
        before = scalar(driver, query("prune_before"), {"seconds": what.older_than.total_seconds()})
        readers = _readers(driver, query, what)
    values = {"before": before, "pipeline": what.pipeline, "dry_run": what.dry_run, "limit": size}
    for source, names in readers.items():
        yield from _steps(
            database, "prune_records", {**values, "source": source, "readers": names, "after": ["0", "0"]}
        )
    yield from _steps(database, "prune_quarantine", {**values, "after": ["", "", ""]})
    if what.deliveries:
        yield from _steps(database, "prune_deliveries", {**values, "after": 0})


def _steps(database: Engine, statement: str, values: dict[str, Any]) -> Iterator[Step]:
    step, more = queries(database)(statement), True
    # A row that changes while a step waits for it must be looked at again, whatever the database's default is.
    settings = {**LOOKUPS, "transaction_isolation": "read committed", "lock_timeout": SHORT_WAIT}
    while more:
        # One message: a process that freezes in the middle of it keeps nothing locked.
        with checked_out(database) as driver, within(driver, None):
            try:
                ((pruned, quarantine, old, last, more),) = in_one_message(driver, step, values, **settings)
            except LockNotAvailable:
                # Another process has a message of one of these records, and is about to commit.
                time.sleep(PAUSE)
                continue
        values = {**values, "after": last}
        yield Step(statement.removeprefix("prune_"), pruned, quarantine, old - pruned)


def _readers(driver: psycopg.Connection[Any], query: Queries, what: Prune) -> dict[str, list[str]]:
    """Return the pipelines that read each source with records, declared here or known to the database, or none."""
    known = {row["pipeline"]: row["source"] for row in rows(driver, query("pipelines"))}
    readers = defaultdict(list)
    for pipeline, source in sorted({**known, **what.sources}.items()):
        readers[source].append(pipeline)
    only = None if what.pipeline is None else what.sources[what.pipeline]
    sources = (row["source"] for row in rows(driver, query("sources")))
    return {source: readers[source] for source in sources if only in (None, source)}
