"""The pipeline that the workers of tests run: slow on demand, and it keeps a ledger outside its transaction."""

from __future__ import annotations

import os
import socket
import time

from sqlalchemy import create_engine

from taskbridge import Batch, Criterion, DelaySinceLastRun, LatencyNeutral, pipeline
from taskbridge.handlers.journal import journal

SECONDS = float(os.environ.get("TEST_HANDLER_SECONDS", "0"))
BATCH_SIZE = int(os.environ.get("TEST_BATCH_SIZE", "500"))

ledger = create_engine(
    os.environ["TASKBRIDGE_POSTGRES_URL"].replace("postgresql://", "postgresql+psycopg://"),
    isolation_level="AUTOCOMMIT",
)


ALERT_DELAYS = {"ERROR": 0.5, "WARNING": 1.5}
ALERTS = DelaySinceLastRun(
    tuple(Criterion("$.level", level, "$.service", delay) for level, delay in ALERT_DELAYS.items())
)


@pipeline("log-alerts", policy=ALERTS)
def alert(batch: Batch) -> None:
    """Write the ledger and the journal."""
    handle(batch)


@pipeline("invoices", policy=LatencyNeutral(), batch_size=BATCH_SIZE)
def handle(batch: Batch) -> None:
    """Write the ledger, work for a while, write the journal."""
    assert {record.tenant for record in batch} == {batch.tenant}
    with ledger.connect() as connection:
        entry = connection.exec_driver_sql(
            "INSERT INTO ledger (host, pid, tenant, token, numbers) VALUES (%s, %s, %s, %s, %s) RETURNING id",
            (socket.gethostname(), os.getpid(), batch.tenant, batch.token, [record.external_id for record in batch]),
        ).scalar_one()
    time.sleep(max(SECONDS, *(record.document.get("seconds", 0) for record in batch)))
    failing = [record for record in batch if record.document.get("fail")]
    if failing:
        raise ValueError(f"{failing[0].external_id} cannot be handled")
    journal(batch)
    with ledger.connect() as connection:
        connection.exec_driver_sql("UPDATE ledger SET ended = clock_timestamp() WHERE id = %s", (entry,))
