"""The named queries: one `.sql` file each, whose comment says what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["INVOICE_ROWS", "RECORD_ROWS", "Source", "query"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a pipeline's rows are read: a relation with the columns id, xid, tenant, external_id, revision and so on.

    `of_pipeline` picks the pipeline's rows where several share the table.
    """

    rows: str
    of_pipeline: str = ""


INVOICE_ROWS: Final = Source(
    "(SELECT id, xid, tenant, number AS external_id, revision, document, recorded_at, changed_at FROM invoices)"
)
RECORD_ROWS: Final = Source(
    "(SELECT id, xid, pipeline, tenant, message_id AS external_id, revision, payload AS document, recorded_at, "
    "changed_at FROM records)",
    "i.pipeline = c.pipeline AND",
)


@cache
def query(name: str, source: Source | None = None) -> str:
    """Return the text of `sql/{name}.sql`, with psycopg's `%(name)s` placeholders, and `source` filled in."""
    text = files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    if source is None:
        return text
    return text.replace("{rows}", source.rows).replace("{of_pipeline}", source.of_pipeline)
