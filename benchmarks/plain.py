"""The baseline: plain Celery, one message for each piece of work, as a competent user writes it.

Each process keeps one connection to Postgres. Nothing is kept of results, messages are JSON, acknowledged early, in
Celery's default queue, with Celery's default prefetch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import psycopg
from celery import Celery, Task
from sqlalchemy import Engine

from benchmarks.marks import mark

__all__ = ["QUEUE", "app", "make_app", "prepare", "write"]

QUEUE: Final = "celery"
SECONDS_PER_RECORD: Final = float(os.environ.get("TASKBRIDGE_BENCH_SECONDS_PER_RECORD", "0"))
SECONDS_PER_CALL: Final = float(os.environ.get("TASKBRIDGE_BENCH_SECONDS_PER_CALL", "0"))

_TABLE: Final = """
CREATE TABLE plain_records (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    document jsonb NOT NULL,
    done_at timestamptz
);
CREATE INDEX ON plain_records (tenant) WHERE done_at IS NULL;
"""
_WRITE: Final = """
INSERT INTO plain_records (tenant, document) SELECT tenant, '{}' FROM unnest(%s::text[]) tenant RETURNING id
"""
_READ: Final = "SELECT id, document FROM plain_records WHERE tenant = %s AND done_at IS NULL ORDER BY id"
_READ_PART: Final = "SELECT id, document FROM plain_records WHERE tenant = %s AND id BETWEEN %s AND %s"
_DONE: Final = "UPDATE plain_records SET done_at = now() WHERE id = ANY(%s)"


def prepare(engine: Engine) -> None:
    """Make the table of records that the tasks read."""
    with engine.begin() as connection:
        connection.exec_driver_sql(_TABLE)


def write(engine: Engine, tenants: Sequence[str]) -> list[int]:
    """Write one record of each tenant and return the ids."""
    with engine.begin() as connection:
        return list(connection.exec_driver_sql(_WRITE, (list(tenants),)).scalars())


def make_app(broker_url: str) -> tuple[Celery, dict[str, Task[Any, Any]]]:
    """Return a Celery app and its tasks by name.

    `nothing` only notes the call; `read` reads a tenant's records; `finish` also marks them as done, and so does
    `import_part` with some of them.
    """
    made = Celery("plain", broker=broker_url, set_as_current=False)
    made.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
    )

    @made.task(name="plain.nothing", shared=False)
    def nothing(tenant: str) -> None:  # noqa: ARG001 - it gets what the others get
        mark()

    @made.task(name="plain.read", shared=False)
    def read(tenant: str) -> None:
        _handle(_connection().execute(_READ, (tenant,)).fetchall())

    @made.task(name="plain.finish", shared=False)
    def finish(tenant: str) -> None:
        rows = _connection().execute(_READ, (tenant,)).fetchall()
        _handle(rows)
        _connection().execute(_DONE, ([number for number, _ in rows],))

    @made.task(name="plain.import_part", shared=False)
    def import_part(tenant: str, first: int, last: int) -> None:
        """Handle one part of a large import: the tenant's records with an id from `first` to `last`."""
        rows = _connection().execute(_READ_PART, (tenant, first, last)).fetchall()
        _wait_for(rows)
        _connection().execute(_DONE, ([number for number, _ in rows],))

    return made, {"nothing": nothing, "read": read, "finish": finish, "import_part": import_part}


def _handle(rows: list[Any]) -> None:
    mark()
    _wait_for(rows)


def _wait_for(rows: list[Any]) -> None:
    if seconds := SECONDS_PER_CALL + SECONDS_PER_RECORD * len(rows):
        time.sleep(seconds)


@cache
def _connection() -> psycopg.Connection[Any]:
    """Return this process's connection; first called in a child of the pool, so none is shared by a fork."""
    return psycopg.connect(os.environ["TASKBRIDGE_POSTGRES_URL"], autocommit=True)


app, _ = make_app(os.environ.get("TASKBRIDGE_REDIS_URL", ""))
