"""The audit: what people did, and who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.texts import storable
from taskbridge.store.db import driving
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Audit"]


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
