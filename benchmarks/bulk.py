"""How long it takes from the commit of a change of many rows of an adopted table until runs have them.

The clock starts just before the COMMIT is sent. Two times are measured: until the poller has seen the change, and until
a handler has each row. The second one depends on how fast the worker's processes read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from sqlalchemy import Engine

from benchmarks.report import Benchmark, Cell, Option, Report, Table, Target
from benchmarks.rounds import Summary, summary
from benchmarks.stage import stage, wait_until, worker
from taskbridge.store import adopt, adoption

__all__ = ["BULK", "SEEN", "SOURCE"]

SOURCE: Final = "bench_bulk"
SEEN: Final = "TASKBRIDGE_BENCH_SEEN"
"""The variable that names the file with a line for each batch: time, tenant, rows."""
HANDLERS: Final = "benchmarks.bulk_handlers"
TENANTS: Final = 100
LONGEST: Final = 120.0
"""A round that takes longer has lost rows."""
PARTS: Final = 2
REST: Final = 0.5
LIMIT_MS: Final = 500.0

STORED: Final = """
SELECT extract(epoch FROM stored_at) FROM taskbridge.tails
WHERE pipeline = %(pipeline)s AND kind = 'tail' AND pg_visible_in_snapshot(%(xid)s::xid8, snapshot)
"""

COPY: Final = "COPY"
INSERT: Final = "one INSERT of many rows"
UPDATE: Final = "UPDATE ... FROM"
PARTITION: Final = "moves between partitions"
TENANT: Final = "moves between tenants"
DELETE: Final = "DELETE"
ONE: Final = "INSERT of one row"


class _Measured(NamedTuple):
    """Milliseconds from the commit: until the poller has seen it, and until a handler has each row."""

    seen: list[float]
    each: list[float]


class _Shop:
    """The adopted table, of which rows are changed."""

    def __init__(self, engine: Engine, seen: Path) -> None:
        self._engine = engine
        self._seen = seen
        self._next = 0
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE {SOURCE} (id bigint, part int, customer text NOT NULL, total numeric(10, 2), note text, "
                "PRIMARY KEY (id, part)) PARTITION BY LIST (part)"
            )
            for part in range(PARTS):
                connection.exec_driver_sql(f"CREATE TABLE {SOURCE}_{part} PARTITION OF {SOURCE} FOR VALUES IN ({part})")
        # Both make one record of a row that moves between partitions.
        adopt(engine, adoption(engine, SOURCE, "customer", ["id", "part"]))

    def copy(self, rows: int) -> _Measured:
        """COPY new rows."""
        first = self._ids(rows)

        def change(cursor: Any) -> None:
            with cursor.copy(f"COPY {SOURCE} (id, part, customer, total, note) FROM STDIN") as copy:
                for at in range(first, first + rows):
                    copy.write_row((at, 0, f"customer-{at % TENANTS}", "19.90", "please ring twice"))

        return self._timed(change, rows)

    def insert(self, rows: int) -> _Measured:
        """Insert new rows by one statement, as `bulk_create` of Django does."""
        first = self._ids(rows)
        statement = (
            f"INSERT INTO {SOURCE} SELECT n, 0, 'customer-' || n %% {TENANTS}, 19.90, 'please ring twice' "  # noqa: S608
            "FROM generate_series(%s::bigint, %s::bigint) n"
        )
        return self._timed(lambda cursor: cursor.execute(statement, (first, first + rows - 1)), rows)

    def statement(self, text: str, rows: int, records: int) -> _Measured:
        """Insert rows, wait until they are handled, and change them by a statement with their first and last id."""
        self.insert(rows)
        first, last = self._next - rows, self._next - 1
        return self._timed(lambda cursor: cursor.execute(text, (first, last)), records)

    def _ids(self, rows: int) -> int:
        first, self._next = self._next, self._next + rows
        return first

    def _timed(self, change: Any, records: int) -> _Measured:
        """Change rows, and measure."""
        time.sleep(REST)
        before = len(self._lines())
        # A shop's own connections have no time limit of ours.
        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            change(cursor)
            ((xid,),) = cursor.execute("SELECT pg_current_xact_id()::text").fetchall()
            committed = time.time()
            connection.commit()
        seen = (self._seen_at(xid) - committed) * 1000
        wait_until(lambda: sum(rows for *_, rows in self._lines()[before:]) >= records, "all is read", LONGEST)
        each = list[float]()
        for at, _, rows in self._lines()[before:]:
            each += [(at - committed) * 1000] * rows
        return _Measured([seen], each)

    def _seen_at(self, xid: str) -> float:
        """Wait until the poller has stored a snapshot in which a transaction is visible; return when that was."""
        with self._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            until = time.time() + LONGEST
            while time.time() < until:
                found = connection.exec_driver_sql(STORED, {"pipeline": SOURCE, "xid": xid}).scalar()
                if found is not None:
                    return float(found)
                time.sleep(0.002)
        raise AssertionError(f"the poller did not see transaction {xid}")

    def _lines(self) -> list[tuple[float, str, int]]:
        if not self._seen.exists():
            return []
        # The last line may be half written.
        whole, _, _ = self._seen.read_text(encoding="ascii").rpartition("\n")
        lines = (line.split() for line in whole.splitlines())
        return [(float(at), tenant, int(rows)) for at, tenant, rows in lines]


def _measure(rows: int, changed: int, rounds: int, copies: int, concurrency: int) -> Report:
    """Measure a COPY of `rows`, and the other changes of `changed` rows each, with one worker."""

    def times(name: str) -> int:
        return copies if name == COPY else rounds

    where = "FROM generate_series(%s::bigint, %s::bigint) n WHERE o.id = n"
    changes = {
        UPDATE: (f"UPDATE {SOURCE} o SET note = 'paid' {where}", changed),  # noqa: S608 - our name
        PARTITION: (f"UPDATE {SOURCE} o SET part = 1 {where}", 2 * changed),  # noqa: S608
        TENANT: (f"UPDATE {SOURCE} o SET customer = 'new-' || n %% {TENANTS} {where}", 2 * changed),  # noqa: S608
        DELETE: (f"DELETE FROM {SOURCE} o USING generate_series(%s::bigint, %s::bigint) n WHERE o.id = n", changed),  # noqa: S608
    }
    found: dict[str, _Measured] = {}
    with stage() as (runtime, directory):
        seen = directory / "seen"
        shop = _Shop(runtime.engine, seen)
        options = ("--concurrency", str(concurrency))
        with worker(runtime, directory, *options, pipelines=HANDLERS, **{SEEN: str(seen)}):
            shop.insert(changed)
            for _ in range(rounds):
                _add(found, ONE, shop.insert(1))
                _add(found, INSERT, shop.insert(changed))
                for name, (text, records) in changes.items():
                    _add(found, name, shop.statement(text, changed, records))
            for _ in range(copies):
                _add(found, COPY, shop.copy(rows))
    sizes = {COPY: rows, ONE: 1}
    by_tail = {name: _summary(one.seen) for name, one in found.items()}
    columns = ("", "rows", "median ms", "p99 ms", "longest ms")

    def lines(of: Mapping[str, Summary]) -> list[list[Cell]]:
        return [[name, sizes.get(name, changed), *one] for name, one in of.items()]

    return Report(
        {"rows": rows, "changed": changed, "rounds": rounds, "copies": copies, "concurrency": concurrency},
        [
            Table(
                "From a commit until the poller has seen it",
                columns,
                lines(by_tail),
                f"The rows belong to {TENANTS} tenants. The table is partitioned, so its triggers are called for each "
                "row.",
            ),
            Table(
                "From a commit until a handler has each row",
                (*columns, "records/s"),
                [
                    [*line, len(one.each) / (max(one.each) * times(name)) * 1000]
                    for line, (name, one) in zip(
                        lines({name: _summary(one.each) for name, one in found.items()}), found.items(), strict=True
                    )
                ],
                f"The handler does nothing, and {concurrency} processes share the runs. With many rows, this is mostly "
                "the speed at which these processes read.",
            ),
        ],
        [Target(f"{name}: p99 until the poller has seen it, ms", one.p99, LIMIT_MS) for name, one in by_tail.items()],
    )


def _add(found: dict[str, _Measured], name: str, measured: _Measured) -> None:
    for so_far, one in zip(found.setdefault(name, _Measured([], [])), measured, strict=True):
        so_far.extend(one)


def _summary(values: list[float]) -> Summary:
    return summary(values) if len(values) > 1 else Summary(values[0], values[0], values[0])


BULK: Final = Benchmark(
    "bulk",
    "Bulk changes of an adopted table are found as soon as single ones.",
    "Milliseconds from the commit of one row until the poller has seen it, in 99 of 100 cases.",
    "Changes many rows of an adopted table without sending an event. Measures the time from the commit until the "
    "poller has seen the change, and until a handler has each row.",
    _measure,
    (
        Option("rows", 100_000, TENANTS, 10_000_000, "Rows of the COPY."),
        Option("changed", 1_000, TENANTS, 1_000_000, "Rows of each other change."),
        Option("rounds", 5, 1, 1_000, "Times that each other change is made."),
        Option("copies", 3, 1, 1_000, "Times that rows are copied."),
        Option("concurrency", 2, 1, 64, "Processes of the worker."),
    ),
    {"rows": 200, "changed": 100, "rounds": 1, "copies": 1, "concurrency": 1},
)
