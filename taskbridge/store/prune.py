"""Pruning: old records that every pipeline is done with are deleted, in steps that are short whatever there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine

from taskbridge.store.engine import patiently
from taskbridge.store.queries import query

__all__ = ["PRUNED", "STEP", "Prune", "Step", "prune"]

PRUNED: Final = ("invoices", "records", "quarantine", "deliveries")
"""The tables, in the order in which they are pruned."""

STEP: Final = 1_000
"""Rows that a step looks at, at the most, and so the most that it locks."""


@dataclass(frozen=True, slots=True)
class Prune:
    """What to prune.

    Args:
        older_than: the least age of a record, since it was first recorded.
        readers: the declared pipelines that read invoices; those that have read some are added.
        others: the declared pipelines that do not.
        pipeline: only what this pipeline reads.
        deliveries: the journal as well, by the age of each delivery.
        dry_run: count and delete nothing.
    """

    older_than: timedelta
    readers: frozenset[str]
    others: frozenset[str] = frozenset()
    pipeline: str | None = None
    deliveries: bool = False
    dry_run: bool = False

    @property
    def tables(self) -> Iterable[str]:
        """The tables that are looked at."""
        reads_invoices = self.pipeline is None or self.pipeline in self.readers
        reads_records = self.pipeline is None or self.pipeline in self.others
        asked = {"invoices": reads_invoices, "records": reads_records, "deliveries": self.deliveries}
        return [table for table in PRUNED if asked.get(table, True)]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, committed: rows deleted from `table` and from quarantine, and old records that stay.

    `at` of `end`: how far in the table's ids the step came; 0 of 0 where there are none.
    """

    table: str
    deleted: int
    quarantine: int
    kept: int
    at: int
    end: int


def prune(engine: Engine, what: Prune, size: int = STEP) -> Iterator[Step]:
    """Delete step by step, each in a transaction of its own that looks at `size` rows; yield what each step did.

    An invoice goes when every pipeline that reads invoices has handled or discarded it, a record with a criterion when
    its own has; with them goes what quarantine holds of them, and then rows of quarantine whose record is gone or has
    changed. Nothing pending, quarantined or asked to be tried again goes. Whoever stops asking for steps loses nothing.
    """
    # A row that changes while a step waits for it must be looked at again, whatever the database's default is.
    engine = engine.execution_options(isolation_level="READ COMMITTED")
    with engine.begin() as connection, patiently(connection, None):
        values = _values(connection, what)
        ends = {table: _end(connection, table) for table in what.tables}
    for table, end in ends.items():
        if table == "invoices" and not values["readers"]:
            continue
        after: Any = ["", "", ""] if table == "quarantine" else 0
        more = True
        while more:
            with engine.begin() as connection, patiently(connection, None):
                connection.exec_driver_sql(query("plan_by_lookups"))
                row = connection.exec_driver_sql(
                    query(f"prune_{table}"), {**values, "after": after, "limit": size}
                ).one()
            after, more = row.last, bool(row.more)
            at = after if isinstance(after, int) and more else end
            kept = row.old - row.pruned
            yield Step(table, row.pruned, row.quarantine, kept, at, end)


def _values(connection: Connection, what: Prune) -> dict[str, Any]:
    seconds = {"seconds": what.older_than.total_seconds()}
    found = set(connection.exec_driver_sql(query("invoice_pipelines")).scalars())
    newest = connection.exec_driver_sql(query("newest_records")).scalars() if "records" in what.tables else ()
    return {
        "before": connection.exec_driver_sql(query("prune_before"), seconds).scalar_one(),
        "newest": list(newest),
        "readers": sorted(what.readers | (found - what.others)),
        "pipeline": what.pipeline,
        "dry_run": what.dry_run,
    }


def _end(connection: Connection, table: str) -> int:
    if table == "quarantine":
        return 0
    found = connection.exec_driver_sql(f"SELECT max(id) FROM {table}").scalar_one()  # noqa: S608 - one of PRUNED
    return found or 0
