"""Passes of the change poller and of the reconciler that were made a while ago."""

from __future__ import annotations

from sqlalchemy import Engine


def stood(engine: Engine, kind: str, seconds: int) -> None:
    """Let the last round of the pipeline invoices have been so many seconds ago."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.tails (pipeline, kind, snapshot, stored_at) "
            "VALUES ('invoices', %(kind)s, pg_current_snapshot(), now() - %(seconds)s * interval '1 s') "
            "ON CONFLICT (pipeline, kind) DO UPDATE SET stored_at = excluded.stored_at",
            {"kind": kind, "seconds": seconds},
        )
