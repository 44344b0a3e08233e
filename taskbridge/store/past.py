"""What operators ask of the run history. Each question is bounded, and one that takes long all the same is given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.store.db import rows, scalar
from taskbridge.store.figures import bucket_sums, limited
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Before", "Past"]

MOST_OF_A_TENANT: Final = 2_000
"""So many of a tenant's last runs are looked through for those that failed."""
MOST_LATELY: Final = 50_000
"""So many runs of the last seconds are counted, of each pipeline."""
MOST_DRAWN: Final = 10_000
"""So many runs are looked at for who is noisy; of more a part is drawn by chance."""
MOST_READERS: Final = 20_000
"""So many runs of a tenant are looked through for the one that read a record."""
LONGEST_RUN: Final = timedelta(hours=1)
"""A record's reader was made no longer than this before the record was written."""
MOST_FAILED: Final = 100
"""So many runs are returned that failed before the one that read a record."""


class Before(NamedTuple):
    """What runs are wanted before: those that ended at `at` only with a token below this one."""

    at: datetime
    token: str = ""


class Past:
    """Questions to the run history. Rows have the columns of the query.

    Raises, in every call:
        psycopg.errors.QueryCanceled: it took longer than 3 s.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = queries(database)

    @property
    def exists(self) -> bool:
        """Whether the history has any run: none is written where it is switched off."""
        return bool(self._one("past_any"))

    def ended_within(self, pipelines: Sequence[str], seconds: float) -> bool | None:
        """Whether any run of these pipelines ended within the last seconds; None: there is no history."""
        found: bool | None = self._one("past_lately", pipelines=list(pipelines), seconds=seconds)
        return found

    def of_tenant(
        self, pipeline: str, tenant: str, *, failed: bool, before: datetime | None, token: str = "", limit: int
    ) -> list[dict[str, Any]]:
        """Return the last runs of a tenant that began before a time, or before a run; those that failed of 2,000."""
        size = MOST_OF_A_TENANT if failed else limit
        values = {"pipeline": pipeline, "tenant": tenant, "failed": failed, "before": before, "token": token}
        return self._rows("past_of_tenant", **values, size=size, limit=limit)

    def of_all(
        self, pipelines: Sequence[str], since: datetime, before: Before, *, failed: bool, limit: int
    ) -> list[dict[str, Any]]:
        """Return the last runs of some pipelines that ended between two times, or those that failed."""
        values = {"pipelines": list(pipelines), "since": since, "before": before.at, "token": before.token}
        return self._rows("past_failed" if failed else "past_of_all", **values, limit=limit)

    def sums(
        self, pipeline: str | None, since: datetime, width: timedelta, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Return the sums over each `width`, the first one first; `until` None: up to now."""
        with limited(self._database) as driver:
            text = bucket_sums(self._query("past_sums"))
            return rows(driver, text, {"pipeline": pipeline, "since": since, "until": until, "width": width})

    def count(self, pipeline: str | None, since: datetime, *, failed: bool) -> int:
        """Return how many runs ended since a time, or how many of them failed, but for those of the last minute."""
        return int(self._one("past_count", pipeline=pipeline, since=since, failed=failed))

    def noisy(
        self, pipeline: str | None, since: datetime, by: str, *, percent: float, limit: int
    ) -> list[dict[str, Any]]:
        """Return the tenants that caused the most, of `percent` of the history's pages."""
        values = {"pipeline": pipeline, "since": since, "by": by, "percent": percent, "failed": by == "failures"}
        return self._rows("past_noisy", **values, size=MOST_DRAWN, limit=limit)

    def readers(self, pipeline: str, tenant: str, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the runs of a tenant since a record was written, up to the one that read it, which says `read`.

        `record` is a row of `look_story`. Up to 100 of those before the reader are returned.
        """
        since: datetime = record["changed_at"] - LONGEST_RUN
        values = {"pipeline": pipeline, "tenant": tenant, "xid": record["xid"], "id": record["id"]}
        times = {"since": since, "changed_at": record["changed_at"], "floor": f"{int(since.timestamp() * 1e6):016}"}
        found = self._rows("past_reader", **values, **times, size=MOST_READERS, limit=MOST_READERS)
        return [*found[:-1][:MOST_FAILED], *found[-1:]]

    def after(self, pipeline: str, tenant: str, at: datetime) -> list[dict[str, Any]]:
        """Return the first run of a tenant that ended after a time and did not fail, if one is known."""
        return self._rows("past_after", pipeline=pipeline, tenant=tenant, at=at, size=MOST_OF_A_TENANT)

    def first_of_burst(self, pipeline: str, tenant: str, token: str) -> dict[str, Any] | None:
        """Return the first run of the burst of a run; None: the history has lost it."""
        values = {"pipeline": pipeline, "tenant": tenant, "token": token}
        found = self._rows("past_first", **values, size=MOST_OF_A_TENANT)
        return found[0] if found else None

    def rates(self, pipelines: Sequence[str], since: datetime) -> dict[str, dict[str, Any]]:
        """Return events, runs and records of each of these pipelines since a time, of up to 50,000 runs."""
        found = self._rows("past_rates", pipelines=list(pipelines), since=since, size=MOST_LATELY)
        return {row["pipeline"]: row for row in found}

    def _rows(self, name: str, **values: Any) -> list[dict[str, Any]]:
        with limited(self._database) as driver:
            return rows(driver, self._query(name), values)

    def _one(self, name: str, **values: Any) -> Any:
        with limited(self._database) as driver:
            return scalar(driver, self._query(name), values)
