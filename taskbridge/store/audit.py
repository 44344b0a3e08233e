"""The audit: what people did, and who did it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from taskbridge.common.texts import storable
from taskbridge.store.db import driving
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Action", "Audit"]


class Action(NamedTuple):
    """What somebody did, and when. `tenant` None: to the whole pipeline; `key` None: to no single record."""

    id: int
    at: datetime
    who: str
    action: str
    pipeline: str | None
    tenant: str | None
    key: str | None
    detail: str | None


class Audit:
    """The audit of one database."""

    def __init__(self, database: Database) -> None:
        self._query = queries(database)
        self._database = database

    def note(
        self,
        who: str,
        action: str,
        *,
        pipeline: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Write down that `who` did `action`; texts are kept as Postgres can hold them."""
        values = {"pipeline": pipeline, "tenant": tenant, "key": key}
        values |= {"who": storable(who), "action": action, "detail": None if detail is None else storable(detail)}
        with driving(self._database) as driver:
            driver.execute(self._query("audit_note"), values)

    def last(self, limit: int = 50, before: int | None = None) -> list[Action]:
        """Return up to `limit` actions, the last one first; `before`: only those with a smaller `id`."""
        with driving(self._database) as driver:
            return [
                Action(*row) for row in driver.execute(self._query("audit_last"), {"limit": limit, "before": before})
            ]
