"""Pauses: tenants, or whole pipelines, whose records stay pending until somebody resumes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from taskbridge.store.db import driving, scalar
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Pause", "Paused", "Pauses"]

WHOLE: Final = ""
"""The tenant of a pipeline's own pause."""


class Pause(NamedTuple):
    """What is paused (`tenant` None: the whole pipeline), since when, by whom, and what was given as the reason.

    `paused_by` None: it was not written down.
    """

    tenant: str | None
    reason: str | None
    paused_at: datetime
    paused_by: str | None = None


class Paused(NamedTuple):
    """What is paused in a pipeline: the pipeline itself, and tenants one by one."""

    whole: Pause | None
    tenants: Mapping[str, Pause]

    def holding(self, tenant: str) -> Pause | None:
        """Return what holds a tenant: its own pause, else its pipeline's."""
        return self.tenants.get(tenant, self.whole)


class Pauses:
    """The pauses of one database."""

    def __init__(self, database: Database) -> None:
        self._query = queries(database)
        self._database = database

    def pause(
        self, pipeline: str, tenant: str | None = None, reason: str | None = None, by: str | None = None
    ) -> tuple[Pause, bool]:
        """Pause a tenant, or with None the whole pipeline. `by`: who does it.

        Returns:
            The pause, and whether it is new. One that was there stays; its reason is replaced where one is given.
        """
        values = {"pipeline": pipeline, "tenant": tenant or WHOLE, "reason": reason, "by": by}
        with driving(self._database) as driver:
            ((*pause, already),) = driver.execute(self._query("pause"), values).fetchall()
        return Pause(*pause), not already

    def release(self, pipeline: str, tenant: str | None = None) -> bool:
        """End the pause of a tenant, or with None the pipeline's own; return whether there was one."""
        values = {"pipeline": pipeline, "tenant": tenant or WHOLE}
        with driving(self._database) as driver:
            return driver.execute(self._query("release"), values).fetchone() is not None

    def of(self, pipeline: str) -> Paused:
        """Return what is paused in a pipeline."""
        with driving(self._database) as driver:
            pauses = [Pause(*row) for row in driver.execute(self._query("pauses"), {"pipeline": pipeline})]
        whole = next((one for one in pauses if one.tenant is None), None)
        return Paused(whole, {one.tenant: one for one in pauses if one.tenant is not None})

    def snapshot(self) -> str:
        """Return the `pg_snapshot` of what is committed now, for `Tenants.pending_before`."""
        with driving(self._database) as driver:
            return str(scalar(driver, self._query("present_snapshot")))
