"""How tenants stand: their records by state, and the counters of their cursors. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.store.db import driving, rows, within
from taskbridge.store.figures import MOST_RECORDS
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Tenants", "WaitingRecords"]

PAGE: Final = 1_000


class WaitingRecords(NamedTuple):
    """How many records wait for a tenant, and the criterion and delay (milliseconds) that set when they are due."""

    waiting: int
    delay_ms: int
    criterion: str


class Tenants:
    """The tenants of pipelines that read one source.

    Args:
        database: where they are.
        source: what the pipelines read.
        seconds: how long each statement may take; None: any time.
    """

    def __init__(self, database: Database, source: str = "invoices", *, seconds: float | None = None) -> None:
        self._database = database
        self._source = source
        self._seconds = seconds
        self._query = queries(database)

    def after(self, pipeline: str, after: str, limit: int) -> list[str]:
        """Return the next `limit` tenants by name that have records or a cursor; after "" the first ones."""
        return [row["tenant"] for row in self._rows("tenants_after", pipeline, after=after, limit=limit)]

    def troubled(self, pipeline: str, limit: int, size: int = MOST_RECORDS) -> list[str]:
        """Return up to `limit` tenants with the most failures in a row, and as many with the most in quarantine.

        Of more than `size` failing tenants, or records in quarantine, so many are looked at.
        """
        return [row["tenant"] for row in self._rows("troubled", pipeline, limit=limit, size=size)]

    def every_count(self, pipeline: str) -> Iterator[dict[str, Any]]:
        """Return what `counts` says of every tenant, by name, page by page."""
        after = ""
        while tenants := self.after(pipeline, after, PAGE):
            yield from self.counts(pipeline, tenants)
            after = tenants[-1]

    def counts(self, pipeline: str, tenants: Collection[str], most: int | None = None) -> list[dict[str, Any]]:
        """Return records by state and the cursor's counters of each tenant; `tenant_counts` has the columns.

        Up to `most` records of each tenant and state are counted; None: all. A tenant without records and cursor has
        zeros, and is not `known`.
        """
        return self._rows("tenant_counts", pipeline, tenants=list(tenants), size=most)

    def waiting(self, pipeline: str, tenant: str, smallest: int) -> WaitingRecords | None:
        """Return what waits for one tenant; None: nothing."""
        values = {"pipeline": pipeline, "source": self._source, "tenant": tenant, "smallest": smallest, "size": None}
        with driving(self._database) as driver:
            row = driver.execute(self._query("waiting_records"), values).fetchone()
        return None if row is None else WaitingRecords(*row)

    def delays(self, pipeline: str, tenants: Collection[str], smallest: int) -> dict[str, int]:
        """Return, of `tenants`, those for whom records wait, and the smallest delay (milliseconds) of each."""
        asked, found = list(tenants), dict[str, int]()
        values = {"pipeline": pipeline, "source": self._source, "smallest": smallest, "size": None}
        for start in range(0, len(asked), PAGE):
            some = {"tenants": asked[start : start + PAGE]}
            with driving(self._database) as driver:
                found.update(driver.execute(self._query("waiting_delays"), values | some).fetchall())
        return found

    def pending_before(self, pipeline: str, tenants: Collection[str], snapshot: str) -> dict[str, int]:
        """Return, of `tenants`, those with pending records that are visible in `snapshot`, and how many each has.

        A record that is tried again is pending; one that changed after the snapshot is not visible in it.
        """
        found = self._rows("pending_before", pipeline, tenants=list(tenants), snapshot=snapshot, size=None)
        return {row["tenant"]: row["records"] for row in found}

    def delivery_counts(self, pipeline: str) -> tuple[int, int]:
        """Return how many deliveries the journal holds, and how many repeat one of the same revision."""
        (row,) = self._rows("delivery_counts", pipeline)
        return row["deliveries"], row["duplicates"]

    def _rows(self, name: str, pipeline: str, **values: Any) -> list[dict[str, Any]]:
        values |= {"pipeline": pipeline, "source": self._source}
        with driving(self._database) as driver, within(driver, self._seconds):
            return rows(driver, self._query(name), values)
