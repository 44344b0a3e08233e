"""What runs do at the store, as tests do it by hand: claim a cursor, deliver a batch to nobody, advance."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import Claim, Cursors, Page, record_invoice
from tests.store.adopting import rows

__all__ = ["IN_ONE_DATABASE", "NEW", "NEWEST", "OLD", "advance", "batch", "claim", "key", "sweep", "waiting", "write"]

OLD, NEW, NEWEST = (f"{at:016d}-aaaaaaaaaaaa" for at in (1, 2, 3))
"""Tokens of three runs, each of which replaces the one before it."""
WAITING: Final = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


IN_ONE_DATABASE: Final = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
"""Of tests that draw many examples: all of them use the database of the one test."""


def key(tenant: str = "acme", token: str = OLD, pipeline: str = "invoices") -> RunKey:
    return RunKey(pipeline, tenant, token)


def claim(cursors: Cursors, limit: int = 100, **who: str) -> Page:
    return cursors.claim(Claim(key(**who), limit, events=1, runs=1))


def advance(cursors: Cursors, page: Page, **who: str) -> list[str]:
    """Advance past a page; return the keys of what it held."""
    with cursors.transaction(key(**who)) as transaction:
        transaction.advance(transaction.move(page))
    return [record.external_id for record in page.records]


def batch(cursors: Cursors, limit: int = 100, **who: str) -> list[str]:
    """Claim and advance past one batch; return the keys of what it held."""
    return advance(cursors, claim(cursors, limit, **who), **who)


def sweep(cursors: Cursors, limit: int = 100, **who: str) -> list[Page]:
    """Claim, then read and advance until nothing is left; return all pages that moved the cursor."""
    page, pages = claim(cursors, limit, **who), []
    while True:
        if page.moves_cursor:
            advance(cursors, page, **who)
            pages.append(page)
        if page.finished:
            return pages
        page = cursors.read(key(**who), limit)


def write(engine: Engine, *numbers: str, tenant: str = "acme", version: int = 1) -> None:
    for number in numbers:
        record_invoice(engine, tenant, number, {"version": version})


def waiting(engine: Engine) -> int:
    """How many sessions of this database wait for a lock."""
    return int(rows(engine, WAITING)[0][0])
