"""Which adopted tables still need a backfill, as who only looks can ask it: without SQLAlchemy."""

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
    """A source of which rows may have no record: what is so, and the commands of which one ends it.

    `missed`: changes of rows that have a record may lack one too.
    """

    source: str
    what: str
    remedy: str
    missed: bool


def backfills_due(database: Database) -> Iterator[Due]:
    """Return the adopted tables whose backfill did not begin or did not end, unless somebody chose that."""
    with checked_out(database) as driver:
        found = rows(driver, queries(database)("backfills_due"))
    for one in found:
        tenant, *others = one["columns"]
        command = adopting(one["source"], one["called"], tenant, others[: one["keys"]], others[one["keys"] :])
        if one["backfilled"]:
            what = f"the backfill stopped after {one['backfilled']:,} rows, or is on its way"
            yield Due(one["source"], what, f"if none runs: {command} --backfill", one["again"])
            continue
        what = "rows that were there before the table was adopted have no record until they change"
        if one["again"]:
            what = "changes may have been missed, and no backfill has begun since"
        remedy = f"run: {command} --backfill; with --from-now-on it stays so, and is not told again"
        yield Due(one["source"], what, remedy, one["again"])


def adopting(source: str, table: str, tenant: str, keys: Sequence[str], watched: Sequence[str] = ()) -> str:
    """Return the command that adopts a table."""
    words = ["taskbridge", "adopt", table, "--tenant", tenant]
    for key in keys:
        words += ["--key", key]
    words += ["--source", source]
    if watched:
        words += ["--columns", ",".join(watched)]
    return shlex.join(words)
