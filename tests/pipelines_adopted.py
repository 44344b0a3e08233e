"""A pipeline over an adopted table, which notes in the table what it has seen."""

from __future__ import annotations

from taskbridge import Batch, pipeline


@pipeline("orders", source="orders")
def handle(batch: Batch) -> None:
    """Write down what came, and write back into the rows."""
    for record in batch:
        batch.connection.exec_driver_sql(
            "INSERT INTO seen (tenant, key, note, deleted) VALUES (%s, %s, %s, %s)",
            (batch.tenant, record.external_id, record.document.get("note"), record.deleted),
        )
        batch.connection.exec_driver_sql("UPDATE orders SET seen = now() WHERE id::text = %s", (record.external_id,))
