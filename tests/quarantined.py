"""Records that go to quarantine as a run would do it, and the states that the view gives."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

REVISION = """coalesce((
    SELECT r.revision FROM taskbridge.records r
    WHERE r.tenant = %s AND r.key = %s AND r.source = coalesce(
        (SELECT source FROM taskbridge.pipelines WHERE pipeline = %s), %s
    )
), 1)"""


def put_in_quarantine(
    engine: Engine,
    tenant: str,
    *external_ids: str,
    pipeline: str = "invoices",
    reason: str = "no customer",
    **columns: Any,
) -> None:
    """Put records into quarantine as they are now; further columns as given."""
    names = ["pipeline", "tenant", "external_id", "reason", *columns]
    with engine.begin() as connection:
        for external_id in external_ids:
            connection.exec_driver_sql(
                f"INSERT INTO taskbridge.quarantine ({', '.join(names)}, revision) "  # noqa: S608
                f"VALUES ({', '.join(['%s'] * len(names))}, {REVISION})",
                (pipeline, tenant, external_id, reason, *columns.values(), tenant, external_id, pipeline, pipeline),
            )


def states(engine: Engine, pipeline: str = "invoices") -> dict[tuple[str, str], str]:
    """Return the state of each record, by tenant and external id."""
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT tenant, external_id, state FROM taskbridge.record_states WHERE pipeline = %s", (pipeline,)
        )
        return {(row.tenant, row.external_id): row.state for row in rows}
