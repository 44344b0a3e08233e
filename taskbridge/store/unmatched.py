"""The messages that no criterion matched, and why."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.store.db import checked_out, rows, scalar, within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["PAGE", "UnmatchedRecord", "count_unmatched", "is_adopted", "read_unmatched", "unmatched_sources"]

PAGE: Final = 500


class UnmatchedRecord(NamedTuple):
    """A record that no criterion matched, and why."""

    id: int
    message_id: str
    reason: str
    payload: Any
    recorded_at: datetime


def read_unmatched(
    database: Database, source: str, reason: str | None = None, page_size: int = PAGE, *, thin: bool = True
) -> Iterator[UnmatchedRecord]:
    """Return the records of a source that no criterion matched, oldest first; with `reason`, only those that have it.

    Without `thin`, those of adopted tables are left out: no criterion applies to them. At most `page_size` are in
    memory at once.
    """
    query, after = queries(database)("unmatched"), (0, "")
    while True:
        position = {"after": after[0], "after_key": after[1]}
        values = {"source": source, "reason": reason, **position, "limit": page_size, "thin": thin}
        with checked_out(database) as driver:
            page = [UnmatchedRecord(*row) for row in driver.execute(query, values)]
        yield from page
        if len(page) < page_size:
            return
        after = (page[-1].id, page[-1].message_id)


def count_unmatched(database: Database, source: str) -> int:
    """Return how many records of a source no criterion matched."""
    with checked_out(database) as driver, within(driver, None):
        return int(scalar(driver, queries(database)("count_unmatched"), {"source": source}))


def unmatched_sources(database: Database, most: int = 100_000) -> dict[str, int]:
    """Return how many unmatched records each source has, including sources without a reader, if it has any.

    At most `most` are counted in total.
    """
    with checked_out(database) as driver, within(driver, None):
        return {
            row["source"]: row["count"] for row in rows(driver, queries(database)("unmatched_sources"), {"size": most})
        }


def is_adopted(database: Database, source: str) -> bool:
    """Return whether a source is or was an adopted table: its rows may be unmatched even without criteria."""
    with checked_out(database) as driver, within(driver, None):
        return source in {row["source"] for row in rows(driver, queries(database)("once_adopted"))}
