"""Where a record is: in which sources, of which tenants, and how it stands in each pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskbridge.common.names import key_spellings
from taskbridge.store.db import driving, rows, within
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["document_of", "where_is"]

MOST: Final = 100


def where_is(
    database: Database, key: str, source: str | None = None, tenant: str | None = None
) -> list[dict[str, Any]]:
    """Return the records with a key, up to 100, once for each pipeline that reads them; see `where.sql`.

    A key that is a JSON array is found however it is spelled.
    """
    values = {"keys": key_spellings(key), "source": source, "tenant": tenant, "limit": MOST}
    with driving(database) as driver, within(driver, None):
        return [dict(row) for row in rows(driver, queries(database)("where"), values)]


def document_of(database: Database, source: str, tenant: str, key: str, longest: int) -> tuple[str | None, bool]:
    """Return a record's document as text of up to `longest` characters, and whether it is longer.

    None where there is none: the row of an adopted table has it, or the record is gone.
    """
    values = {"source": source, "tenant": tenant, "key": key, "longest": longest}
    with driving(database) as driver:
        row = driver.execute(queries(database)("record_document"), values).fetchone()
    return (row[0], bool(row[1])) if row else (None, False)
