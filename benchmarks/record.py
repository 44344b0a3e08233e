"""How many records a second a producer writes, many at once and one by one.

The baseline is an INSERT of the same rows into a table with the same columns, constraints and indexes, without
triggers, from documents that are JSON text already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final

from sqlalchemy import Engine

from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import interleaved, median_ratio
from benchmarks.stage import stage
from taskbridge.store import record, record_many

__all__ = ["RECORD"]

TENANTS: Final = 200
SOURCE: Final = "invoices"
NEW: Final = "record_many, new records"
CHANGED: Final = "record_many, changed records"
SAME: Final = "record_many, unchanged records"
BARE: Final = "INSERT without triggers, new rows"
ONE: Final = "record, its commit included"
BARE_ONE: Final = "INSERT of a row without triggers, its commit included"
AT_ONCE: Final = 1_000

DOCUMENT: Final = {
    "lines": [{"sku": "84029E", "quantity": at, "price": "3.39"} for at in range(10)],
    "country": "France",
}
"""About 500 bytes of JSON."""

Row = tuple[str, str, dict[str, Any]]


def _measure(records: int, singles: int, rounds: int) -> Report:
    """Write `records` many at a time, and `singles` one by one."""
    with stage() as (runtime, _):
        engine = runtime.engine
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE bare (LIKE taskbridge.records INCLUDING ALL)")
            for column, value in {"id": "next_id('bare')", "revision": "next_revision(NULL)"}.items():
                connection.exec_driver_sql(f"ALTER TABLE bare ALTER {column} SET DEFAULT taskbridge.{value}")
            connection.exec_driver_sql("ALTER TABLE bare ALTER xid SET DEFAULT pg_current_xact_id()")
        numbers = count()
        kept = _rows(numbers, records)
        record_many(engine, SOURCE, kept)
        found = interleaved(
            {
                NEW: partial(_written, engine, lambda: _rows(numbers, records)),
                CHANGED: partial(_written, engine, partial(_changed, kept, numbers)),
                SAME: partial(_written, engine, lambda: kept),
                BARE: partial(_bare, engine, numbers, records),
            },
            rounds,
        )
        alone = interleaved(
            {
                ONE: partial(_one_by_one, engine, numbers, singles),
                BARE_ONE: partial(_bare, engine, numbers, singles, 1),
            },
            rounds,
        )
    return Report(
        {"records": records, "singles": singles, "rounds": rounds},
        [
            _table(
                f"{records:,} records of about 500 bytes",
                found,
                BARE,
                f"Each statement writes {AT_ONCE:,} records and is committed.",
            ),
            _table("One by one", alone, BARE_ONE, ""),
        ],
        [
            Target(
                f"{NEW}, records/s",
                1 / median(found[NEW]),
                50_000,
                at_least=True,
            ),
        ],
    )


def _rows(numbers: Iterator[int], size: int) -> list[Row]:
    return [
        (
            f"tenant {number % TENANTS}",
            f"{number:08}",
            {**DOCUMENT, "number": number},
        )
        for number, _ in zip(numbers, range(size), strict=False)
    ]


def _changed(kept: list[Row], numbers: Iterator[int]) -> list[Row]:
    """Return them with another content each time."""
    change = next(numbers)
    return [(tenant, key, {**document, "change": change}) for tenant, key, document in kept]


def _written(engine: Engine, rows: Callable[[], list[Row]]) -> float:
    """Return the seconds for each record."""
    made = rows()
    before = time.perf_counter()
    record_many(engine, SOURCE, made)
    return (time.perf_counter() - before) / len(made)


def _one_by_one(engine: Engine, numbers: Iterator[int], size: int) -> float:
    made = _rows(numbers, size)
    before = time.perf_counter()
    for tenant, key, document in made:
        record(engine, SOURCE, tenant, key, document)
    return (time.perf_counter() - before) / len(made)


def _bare(engine: Engine, numbers: Iterator[int], size: int, at_once: int = AT_ONCE) -> float:
    made = [(tenant, key, json.dumps(document)) for tenant, key, document in _rows(numbers, size)]
    insert = (
        "INSERT INTO bare (source, tenant, key, document) "
        "SELECT %s, n.tenant, n.key, n.document::jsonb FROM unnest(%b::text[], %b::text[], %b::text[]) "
        "n (tenant, key, document)"
    )
    before = time.perf_counter()
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        for start in range(0, size, at_once):
            columns = [[*column] for column in zip(*made[start : start + at_once], strict=True)]
            connection.exec_driver_sql(insert, (SOURCE, *columns))
    return (time.perf_counter() - before) / size


def _table(title: str, found: dict[str, list[float]], baseline: str, note: str) -> Table:
    rows: list[list[Cell]] = [
        [name, 1 / median(took), median_ratio(found[baseline], took)] for name, took in found.items()
    ]
    return Table(title, ("", "records/s", "ratio to INSERT without triggers"), rows, note)


RECORD: Final = Benchmark(
    "record",
    "Records are written in your own transaction, one by one or many at once.",
    "New records per second that one connection stores with `record_many`.",
    "Writes records many at a time and one by one. Some are new, some are changed, and some are the same as before. "
    "The baseline is an INSERT of the same rows into the same table without triggers. Its documents are already JSON "
    "text.",
    _measure,
    (
        Option("records", 20_000, 1, 1_000_000, "Records of a round, written many at a time."),
        Option("singles", 300, 1, 100_000, "Records of a round, one by one."),
        Option("rounds", 7, 1, 1_000, "Rounds."),
    ),
    {"records": 200, "singles": 5, "rounds": 2},
    unmet="On this machine, even the INSERT without triggers stays below the target.",
)
