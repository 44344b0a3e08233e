"""The pipelines that the database knows: what each reads, and where its tenants' cursors begin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg

from taskbridge.errors import InvalidPolicy
from taskbridge.store.db import driving, rows, scalar, within
from taskbridge.store.queries import Queries, queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = [
    "EVERYTHING",
    "NOW",
    "forget_pipeline",
    "know",
    "undeclared_readers",
    "unread_sources",
]

EVERYTHING = "everything"
NOW = "now"
EVERY_RECORD: Final = "1:1:"
"""A snapshot that sees no transaction, so that every record lies after it."""


def know(database: Database, pipeline: str, source: str, start: str | datetime = EVERYTHING) -> None:
    """Register a pipeline when it is seen for the first time: what it reads, and where its cursors begin.

    Args:
        database: where it is kept.
        pipeline: its name.
        source: what it reads.
        start: `everything`, `now`, or a time: records that were written before are skipped, except for those of
            transactions that were in progress at that time.

    Raises:
        InvalidPolicy: it has read another source so far, or what was written since `start` is no longer known.
    """
    sql, values = queries(database), {"pipeline": pipeline, "source": source}
    with driving(database) as driver:
        found = scalar(driver, sql("known_source"), values)
        if found is None:
            snapshot = _first_snapshot(driver, sql, pipeline, source, start)
            # One message: a process that freezes between two would block the commits of all batches of the source.
            statements = (sql(block) for block in ("begin", "know_lock", "know_pipeline", "commit"))
            driver.exchange([driver.bound("; ".join(statements), {**values, "start": snapshot})])
            found = scalar(driver, sql("known_source"), values)
    if found != source:
        raise InvalidPolicy(
            f"the pipeline {pipeline!r} has read the source {found!r} until now and cannot read {source!r}: declare it "
            f"with source={found!r}, or give the new one another name"
        )


def _first_snapshot(
    driver: psycopg.Connection[Any], sql: Queries, pipeline: str, source: str, start: str | datetime
) -> str | None:
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


def undeclared_readers(database: Database, declared: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each source that several pipelines read, those that are not among `declared`."""
    readers = defaultdict(list)
    with driving(database) as driver, within(driver, None):
        for row in rows(driver, queries(database)("pipelines")):
            readers[row["source"]].append(row["pipeline"])
    return {source: sorted({*names} - {*declared}) for source, names in readers.items() if len(names) > 1}


def unread_sources(database: Database, read: Collection[str]) -> list[str]:
    """Return the sources that have records or are adopted, are not among `read`, and have no registered pipeline."""
    with driving(database) as driver, within(driver, None):
        found = rows(driver, queries(database)("unread_sources"), {"read": [*read]})
    return [row["source"] for row in found]


def forget_pipeline(database: Database, pipeline: str) -> dict[str, int] | None:
    """Delete the data of a pipeline; return how many cursors and rows of quarantine; None: there was nothing."""
    with driving(database) as driver, within(driver, None):
        (row,) = rows(driver, queries(database)("forget"), {"pipeline": pipeline})
    return dict(row) if any(row.values()) else None
