"""A batch that cannot be read is a failure as any other: told, tried again, smaller each time."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine

from taskbridge.handlers.journal import journal
from tests.failures.drill import SOON, Drill

M_MMAP_THRESHOLD = -3
"""Of mallopt(3)."""


@contextmanager
def memory_left(count: int) -> Iterator[None]:
    """Let this process take so many bytes more at the most."""
    libc = ctypes.CDLL(None)
    # What earlier tests freed would serve: large blocks are given back to the system, now and from now on.
    libc.mallopt(M_MMAP_THRESHOLD, 1_000_000)
    libc.malloc_trim(0)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def insert_long(engine: Engine, first: int, last: int, length: int) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.records (source, tenant, key, document) "
            "SELECT 'invoices', 'acme', n::text, jsonb_build_object('a', repeat('x', %s::int)) "
            "FROM generate_series(%s::int, %s::int) n",
            (length, first, last),
        )


@SOON
def test_a_read_that_takes_too_long_is_written_down_for_a_new_tenant_too_and_the_next_is_smaller(drill: Drill) -> None:
    drill.handle(journal, batch_size=80)
    drill.save("acme", *map(str, range(200)))
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        drill.go_on(until=lambda: len(drill.times) == 2)
        ((failures, error, limit, attempts, runs),) = drill.deployment.rows(
            "SELECT failures, last_error, batch_limit, attempts, runs FROM taskbridge.sync_cursors"
        )
    assert (failures, limit, attempts, runs) == (2, 20, 0, 2)
    assert "could not be read: QueryCanceled" in error
    drill.go_on()
    assert drill.states() == {"handled": 200}
    assert [len(numbers) for _, numbers in drill.calls[:3]] == [20, 40, 80], "it grows again"


def test_a_record_that_cannot_be_read_alone_goes_to_quarantine_and_its_tenant_goes_on(drill: Drill) -> None:
    drill.handle(journal, max_attempts=3)
    insert_long(drill.deployment.engine, 1, 1, 70_000_000)
    insert_long(drill.deployment.engine, 2, 6, 10)
    drill.deployment.notify_event.delay("acme")
    with memory_left(150_000_000):
        drill.go_on(steps=40)
    assert drill.states() == {"handled": 5, "quarantined": 1}
    ((_, number, cause, reason, attempts),) = drill.quarantine()
    assert (number, cause, attempts) == ("1", "failed", 3)
    assert "could not be read" in reason
