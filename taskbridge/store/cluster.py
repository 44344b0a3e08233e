"""The cluster whose transaction ids the records and cursors hold.

A transaction id means something in one cluster only, and a dump carries ids over as values. So the cluster's system
identifier is stored beside them: where it is another, triggers refuse to write records, and processes refuse to start,
until a rebase (`rebasing.py`) has put the ids of this cluster in place of the former ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.server_errors import FOREIGN_CLUSTER
from taskbridge.errors import ForeignCluster
from taskbridge.store.db import driving, rows, scalar
from taskbridge.store.queries import queries, query, schema_of

if TYPE_CHECKING:
    from taskbridge.store.db import Database

__all__ = ["check_cluster", "deployment", "in_its_cluster"]


def in_its_cluster(database: Database) -> bool:
    """Say whether the database is in the cluster whose transaction ids it holds; the schema must be the newest."""
    with driving(database) as driver:
        return bool(scalar(driver, queries(database)("in_its_cluster")))


def deployment(database: Database) -> tuple[str, str]:
    """Return what tells this database and schema from all others, without spaces, and what people call them."""
    schema = schema_of(database)
    with driving(database) as driver:
        (found,) = rows(driver, query("deployment"))
    return f"{found['cluster']}/{found['oid']}/{schema}", f"database {found['name']}, schema {schema}"


def check_cluster(database: Database) -> None:
    """Raise ForeignCluster, saying what to run, unless the database is in the cluster whose ids it holds."""
    if not in_its_cluster(database):
        raise ForeignCluster(FOREIGN_CLUSTER)
