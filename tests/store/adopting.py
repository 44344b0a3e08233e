"""Adopted tables of tests: how one is made a source, and what a batch of it holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Record
from taskbridge.store import Adopted, Claim, Cursors, Page, adopt, adoption, backfill

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10, 2), note text)"


def run(engine: Engine, *statements: str) -> None:
    """Run statements, each committed."""
    for statement in statements:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement.replace("%", "%%"))


def rows(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    """Ask something."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(statement.replace("%", "%%"))]


def adopted(engine: Engine, table: str = "orders", tenant: str = "customer", *keys: str, **options: Any) -> Adopted:
    """Adopt a table, by `id` unless keys are named."""
    found = adoption(engine, table, tenant, keys or ("id",), **options)
    assert adopt(engine, found, timeout=5)
    return found


def backfilled(engine: Engine, found: Adopted, pages: int | None = None, size: int = 3) -> list[int]:
    """The rows after each page; with `pages`, as of a process that ends after so many."""
    return [page.rows for page in islice(backfill(engine, found, size), pages)]


class Reader:
    """Takes the batches of a source, as the runs of one worker do."""

    def __init__(self, engine: Engine, source: str = "orders", pipeline: str = "orders") -> None:
        self.cursors = Cursors(engine, source)
        self.pipeline = pipeline

    def who(self, tenant: str = "acme") -> RunKey:
        return RunKey(self.pipeline, tenant, "0000000000000001-aaaaaaaaaaaa")

    def claim(self, tenant: str = "acme", limit: int = 1000, *, died: bool = False) -> Page:
        """A batch; after a death it comes without documents."""
        return self.cursors.claim(Claim(self.who(tenant), limit, events=1, runs=1, died=died))

    def handle(self, tenant: str, page: Page, *statements: str) -> None:
        """Advance past a page, with what its handler writes through `batch.connection`."""
        with self.cursors.transaction(self.who(tenant)) as transaction:
            for statement in statements:
                transaction.connect().exec_driver_sql(statement)
            transaction.advance(transaction.move(page))

    def records(self, tenant: str, limit: int = 1000) -> list[Record]:
        """One batch, handled."""
        page = self.claim(tenant, limit)
        self.handle(tenant, page)
        return list(page.decoded)

    def keys(self, tenant: str) -> list[str]:
        """The keys of one batch, sorted; those of deleted rows with a minus before them."""
        return sorted(f"{'-' if one.deleted else ''}{one.external_id}" for one in self.records(tenant))

    def seen(self, tenants: Sequence[str] = ("acme", "bolt")) -> dict[str, list[str]]:
        """The keys of one batch of each tenant that has any."""
        found = {tenant: self.keys(tenant) for tenant in tenants}
        return {tenant: keys for tenant, keys in found.items() if keys}
