"""What the workers of a soak run besides `examples.whole_way.shop`.

Each handler notes what it was called with in a file of its process, outside of Postgres; `verification.soak.ledger`
reads it.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path

from taskbridge import Batch, Criterion, DelaySinceLastRun, pipeline

DELETED = 1_000_000_000
"""The version of a row that was deleted."""


@pipeline("goods")
def goods(batch: Batch) -> None:
    """Take changes of the adopted table, and write through the batch's own connection."""
    batch.connection.exec_driver_sql(
        "INSERT INTO soak_totals AS t VALUES (%s, %s) "
        "ON CONFLICT (tenant) DO UPDATE SET taken = t.taken + excluded.taken",
        (batch.tenant.split("-")[0], len(batch)),
    )
    _note(batch)


@pipeline("payments", max_attempts=3)
def payments(batch: Batch) -> None:
    """Fail for some records until their time has come."""
    for record in batch:
        if record.document["fails_until"] > time.time():
            raise ValueError(f"{record.external_id} is not ready")
    _note(batch)


@pipeline(
    "alerts",
    policy=DelaySinceLastRun(
        (
            Criterion("$.level", "ERROR", "$.service", delay=2),
            Criterion("$.level", "WARNING", "$.service", delay=5),
        )
    ),
)
def alerts(batch: Batch) -> None:
    """Take everything that waits for one service."""
    _note(batch)


def _note(batch: Batch) -> None:
    lines = [
        json.dumps(
            [
                batch.pipeline,
                batch.tenant,
                record.external_id,
                record.revision,
                DELETED if record.deleted else record.document["version"],
                time.time(),
            ]
        )
        for record in batch
    ]
    os.write(_file(os.getpid()), "".join(f"{line}\n" for line in lines).encode())


@cache
def _file(pid: int) -> int:
    return os.open(
        Path(os.environ["SOAK_NOTES"]) / f"{pid}-{time.time_ns()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
