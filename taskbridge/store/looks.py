"""What operators ask of Postgres. Each look is bounded by a limit, and one that takes long all the same is given up."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskbridge.common.names import key_spellings
from taskbridge.store.db import driving, rows, scalar, within
from taskbridge.store.figures import limited
from taskbridge.store.pauses import Pause
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["MOST_UNDECLARED", "Looks", "PausedCount", "document_of", "where_is"]

MOST_UNDECLARED: Final = 1_000
"""So many tenants of a pipeline that nobody declares here are counted."""
MOST_FOUND: Final = 100
"""So many records with a key are found at the most, where all are looked through."""
MOST_ACTIONS: Final = 10_000
"""Of so many last actions those about one record are found."""
_BEYOND: Final = "\U0010ffff"
"""In the order of code points it comes after every other character."""


class PausedCount(NamedTuple):
    """How many tenants of a pipeline are paused, up to a limit; the first by name; whether the pipeline itself is."""

    tenants: int
    first: str | None
    whole: bool


def where_is(
    database: Database, key: str, source: str | None = None, tenant: str | None = None
) -> list[dict[str, Any]]:
    """Return the records with a key, up to 100, as `Looks.records` does, however long it takes.

    A key that is a JSON array is found however it is spelled.
    """
    sources, tenants = ([one] if one is not None else None for one in (source, tenant))
    values = {"keys": key_spellings(key), "sources": sources, "tenants": tenants, "limit": MOST_FOUND}
    with driving(database) as driver, within(driver, None):
        return rows(driver, queries(database)("look_records"), values)


def document_of(database: Database, source: str, tenant: str, key: str, longest: int) -> tuple[str | None, bool]:
    """Return a record's document as text of up to `longest` characters, and whether it is longer.

    None where there is none: the row of an adopted table has it, or the record is gone.
    """
    values = {"source": source, "tenant": tenant, "key": key, "longest": longest}
    with driving(database) as driver:
        row = driver.execute(queries(database)("record_document"), values).fetchone()
    return (row[0], bool(row[1])) if row else (None, False)


class Looks:
    """Looks at records, quarantine and pauses that change nothing. Rows have the columns of the query's file.

    Raises, in every call:
        psycopg.errors.QueryCanceled: it took longer than 3 s.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = queries(database)

    def tenants(self, pipeline: str, source: str, text: str, limit: int) -> list[str]:
        """Return up to `limit` tenants of a pipeline whose names begin with a text."""
        found = self._rows(
            "look_tenants", pipeline=pipeline, source=source, text=text, until=text + _BEYOND, limit=limit
        )
        return [row["tenant"] for row in found]

    def failing(self, pipeline: str, after: str, limit: int) -> list[str]:
        """Return the next tenants by name whose last run failed."""
        return [row["tenant"] for row in self._rows("look_failing", pipeline=pipeline, after=after, limit=limit)]

    @property
    def finds_keys(self) -> bool:
        """Whether records have an index on the key, which nobody needs to run TaskBridge."""
        with limited(self._database) as driver:
            return bool(scalar(driver, self._query("look_key_index")))

    def records(
        self, key: str, sources: list[str] | None, tenants: list[str] | None, limit: int
    ) -> list[dict[str, Any]]:
        """Return up to `limit` records with a key, each once for each pipeline that reads it.

        None: of all sources, or of all tenants, which takes an index on the key.
        """
        return self._rows("look_records", keys=key_spellings(key), sources=sources, tenants=tenants, limit=limit)

    def record(self, pipeline: str, source: str, tenant: str, key: str) -> dict[str, Any] | None:
        """Return one record and how it stands in a pipeline; None: there is none."""
        found = self._rows("look_story", pipeline=pipeline, source=source, tenant=tenant, key=key)
        return found[0] if found else None

    def deliveries(self, delivery: str, sources: Collection[str], limit: int) -> list[dict[str, Any]]:
        """Return webhooks with this id, with the records that were written with each, as far as that can be told."""
        return self._rows("look_deliveries", delivery=delivery, sources=list(sources), limit=limit)

    def messages(self, key: str, sources: Collection[str]) -> list[str]:
        """Return the sources in which a message with this id was recorded."""
        return [row["source"] for row in self._rows("look_messages", key=key, sources=list(sources))]

    def readers(self) -> dict[str, str]:
        """Return the source of each pipeline that was seen."""
        return {row["pipeline"]: row["source"] for row in self._rows("pipelines")}

    def undeclared(self, declared: Collection[str]) -> dict[str, int]:
        """Return how many tenants each pipeline has that was seen and is not among `declared`; without any: none.

        They are counted up to `MOST_UNDECLARED`.
        """
        found = self._rows("undeclared_pipelines", declared=[*declared], most=MOST_UNDECLARED)
        return {row["pipeline"]: row["tenants"] for row in found}

    def pause(self, pipeline: str, tenant: str) -> Pause | None:
        """Return what holds a tenant: its own pause, else its pipeline's."""
        found = self._rows("look_pause", pipeline=pipeline, tenant=tenant)
        return Pause(**found[0]) if found else None

    def decisions(self, pipeline: str, tenant: str, key: str, since: datetime) -> list[dict[str, Any]]:
        """Return what people decided about a record since a time, in order."""
        values = {"pipeline": pipeline, "tenant": tenant, "key": key, "since": since}
        return self._rows("look_decisions", **values, size=MOST_ACTIONS)

    def paused(self, pipeline: str, size: int) -> PausedCount:
        """Return how many tenants are paused, of up to `size`, and whether the pipeline is."""
        (found,) = self._rows("look_paused", pipeline=pipeline, size=size)
        return PausedCount(**found)

    def paused_among(self, pipeline: str, tenants: Collection[str]) -> set[str]:
        """Return which of `tenants` are paused: all, where the whole pipeline is."""
        found = {row["tenant"] for row in self._rows("look_paused_among", pipeline=pipeline, tenants=list(tenants))}
        return {*tenants} if "" in found else found

    def errors(self, pipeline: str, source: str, size: int, limit: int) -> list[dict[str, Any]]:
        """Return what fails, by the kind of error; up to `size` tenants and as many records in quarantine count."""
        return self._rows("look_errors", pipeline=pipeline, source=source, size=size, limit=limit)

    def now(self) -> datetime:
        """Return the time of the server."""
        with limited(self._database) as driver:
            at: datetime = scalar(driver, self._query("look_now"))
        return at

    def _rows(self, name: str, **values: Any) -> list[dict[str, Any]]:
        with limited(self._database) as driver:
            return rows(driver, self._query(name), values)
