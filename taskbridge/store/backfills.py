"""Which adopted tables still need a backfill, for read-only processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from taskbridge.store.db import checked_out, rows
from taskbridge.store.queries import queries

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["Due", "adopting", "backfills_due"]


class Due(NamedTuple):
    """A source whose rows may have no records: the problem, and the commands, one of which fixes it.

    `missed`: changes of rows with a record may have been missed too.
    """

    source: str
    what: str
    remedy: str
    missed: bool


def backfills_due(database: Database) -> Iterator[Due]:
    """Return the adopted tables whose backfill has not begun or not ended, unless that was chosen."""
    with checked_out(database) as driver:
        tables = rows(driver, queries(database)("backfills_due"))
    for table in tables:
        source, keys, again = table["source"], table["keys"], table["again"]
        tenant, *others = table["columns"]
        command = adopting(source, table["called"], tenant, others[:keys], others[keys:])
        if table["backfilled"]:
            what = f"the backfill stopped after {table['backfilled']:,} rows, or is still running"
            yield Due(source, what, f"if none is running: {command} --backfill", again)
            continue
        what = "rows that existed before the table was adopted have no record until they change"
        if again:
            what = "changes may have been missed, and no backfill has been started since"
        remedy = f"run: {command} --backfill; or use --from-now-on to leave it so and hide this message"
        yield Due(source, what, remedy, again)


def adopting(source: str, table: str, tenant: str, keys: Sequence[str], watched: Sequence[str] = ()) -> str:
    """Return the command that adopts a table."""
    words = ["taskbridge", "adopt", table, "--tenant", tenant]
    for key in keys:
        words += ["--key", key]
    words += ["--source", source]
    if watched:
        words += ["--columns", ",".join(watched)]
    return shlex.join(words)
