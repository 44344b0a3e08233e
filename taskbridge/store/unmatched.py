"""What could not become a record (messages, webhooks, rows of adopted tables), and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.store.db import checked_out, fetch_within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["PAGE", "UnmatchedRecord", "count_unmatched", "is_adopted", "read_unmatched", "unmatched_sources"]

PAGE: Final = 500


class UnmatchedRecord(NamedTuple):
    """Something that could not become a record, and why."""

    id: int
    message_id: str
    reason: str
    payload: Any
    recorded_at: datetime


def read_unmatched(database: Engine, source: str, *, thin: bool = True) -> Iterator[UnmatchedRecord]:
    """Return the unmatched records of a source, oldest first; at most `PAGE` are in memory at once.

    Without `thin`, those of adopted tables are left out: no criterion applies to them.
    """
    query, after = queries(database)("unmatched"), (0, "")
    while True:
        values = {"source": source, "after": after[0], "after_key": after[1], "limit": PAGE, "thin": thin}
        with checked_out(database) as driver:
            page = [UnmatchedRecord(*row) for row in driver.execute(query, values)]
        yield from page
        if len(page) < PAGE:
            return
        after = (page[-1].id, page[-1].message_id)


def count_unmatched(database: Engine, source: str) -> int:
    """Return how many records of a source are unmatched."""
    (row,) = fetch_within(database, None, "count_unmatched", {"source": source})
    return int(row["count"])


def unmatched_sources(database: Engine, most: int = 100_000) -> dict[str, int]:
    """Return how many unmatched records each source has, including sources without a reader, if it has any.

    At most `most` are counted in total.
    """
    found = fetch_within(database, None, "unmatched_sources", {"size": most})
    return {row["source"]: row["count"] for row in found}


def is_adopted(database: Engine, source: str) -> bool:
    """Return whether a source is or was an adopted table: its rows may be unmatched even without criteria."""
    return any(row["source"] == source for row in fetch_within(database, None, "once_adopted"))
