"""Records that are set aside as a run would do it, and the states that the view gives."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine


def set_aside(
    engine: Engine,
    tenant: str,
    *external_ids: str,
    pipeline: str = "invoices",
    revision: int = 1,
    reason: str = "no customer",
    **columns: Any,
) -> None:
    """Put records into quarantine; further columns as given."""
    names = ["pipeline", "tenant", "external_id", "revision", "reason", *columns]
    with engine.begin() as connection:
        for external_id in external_ids:
            connection.exec_driver_sql(
                f"INSERT INTO quarantine ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",  # noqa: S608
                (pipeline, tenant, external_id, revision, reason, *columns.values()),
            )


def states(engine: Engine, pipeline: str = "invoices") -> dict[tuple[str, str], str]:
    """Return the state of each record, by tenant and external id."""
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT tenant, external_id, state FROM record_states WHERE pipeline = %s", (pipeline,)
        )
        return {(row.tenant, row.external_id): row.state for row in rows}
