"""Plans of our statements, as Postgres has run them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine

from taskbridge.store.queries import query
from tests.store.adopting import run

__all__ = ["analyze", "fill", "nodes", "pages", "plan", "scans"]


def fill(engine: Engine, source: str, number: int, tenants: int) -> None:
    """Let so many tenants have so many records, which the pipeline of their source's name has handled."""
    run(
        engine,
        "INSERT INTO taskbridge.records (source, tenant, key, document, changed_at) "  # noqa: S608 - numbers
        f"SELECT '{source}', 'tenant-' || n % {tenants}, n::text, '{{}}', now() - interval '31 days' "
        f"FROM generate_series(1, {number}) n",
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, owner, snapshot, last_run_at) "  # noqa: S608
        f"SELECT '{source}', 'tenant-' || n % {tenants}, 't', pg_current_snapshot(), now() "
        f"FROM generate_series(1, {tenants}) n",
    )


def analyze(engine: Engine, *tables: str) -> None:
    """Vacuum tables, and let Postgres count what is in them."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM ANALYZE {', '.join(f'taskbridge.{table}' for table in tables)}")


def plan(connection: Connection, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Run a statement under EXPLAIN and return its plan."""
    found = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query(name)}", values).scalar_one()
    top: dict[str, Any] = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    return top


def nodes(top: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the parts of a plan that were run."""
    if top["Actual Loops"]:
        yield top
        for below in top.get("Plans", ()):
            yield from nodes(below)


def scans(top: dict[str, Any], *tables: str) -> list[dict[str, Any]]:
    """Return the scans that were run of these tables, or of their partitions."""
    return [node for node in nodes(top) if str(node.get("Relation Name", "")).startswith(tables)]


def pages(top: dict[str, Any]) -> int:
    """Return how many pages were read."""
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
