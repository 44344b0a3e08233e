"""A Postgres that lost its last commits in the middle of a pass: their ids are used again, and no record is skipped.

It crashed, and the commits were those of writers with `synchronous_commit = off`; or a replica that lags took over.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskbridge.gate import Keys
from taskbridge.process.runtime import runtime_of
from taskbridge.store import Changes, Kind
from taskbridge.worker.poller import Poller
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

WRITE = "INSERT INTO taskbridge.records (source, tenant, key, document) VALUES ('invoices', {}, '1', '{{}}')"


def poller_of(deployment: Deployment, page: int) -> Poller:
    """Poller of which the first ones are made."""
    runtime = runtime_of(deployment.app)
    runtime.changes = Changes(deployment.engine, page=page)
    poller = Poller(runtime)
    for kind in Kind:
        to_the_end(poller, kind)
    return poller


def page(poller: Poller, kind: Kind) -> bool:
    """Make a page; whether another one follows."""
    state = poller.states["invoices"]
    if kind is Kind.POLLER:
        poller.poll_pages()
        return state.polling is not None
    state.reconciles_at, state.holds_until = 0.0, time.monotonic() + 60
    poller.reconcile_pages()
    return state.reconciling is not None


def to_the_end(poller: Poller, kind: Kind) -> None:
    wait_until(lambda: not page(poller, kind), "the last page")


def stands(deployment: Deployment) -> dict[str, Any]:
    found = deployment.rows("SELECT kind, snapshot::text AS snapshot, stored_at FROM taskbridge.tails")
    return {one.kind: one for one in found}


@pytest.mark.parametrize("kind", [*Kind])
@pytest.mark.parametrize("together", [False, True], ids=["transactions of one record", "one transaction"])
def test_a_round_begins_anew_where_what_its_page_stored_is_lost(
    deployment: Deployment, kind: Kind, together: bool
) -> None:
    poller = poller_of(deployment, page=2)
    with deployment.engine.connect() as connection:
        for tenant in "abcde":
            connection.exec_driver_sql(WRITE.format(f"'{tenant}'"))
            if not together:
                connection.commit()
        connection.commit()
    if kind is Kind.RECONCILER:
        to_the_end(poller, Kind.POLLER)
        deployment.redis.delete(Keys().due("invoices"), *(Keys().runner("invoices", one) for one in "abcde"))
    before = stands(deployment)[kind]
    assert page(poller, kind)
    assert sorted(deployment.gate.active("invoices")) == ["a", "b"]
    # The server is what it was before the page, and the id of a record that this saw is another's.
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE taskbridge.tails SET snapshot = %s::pg_snapshot, stored_at = %s WHERE kind = %s",
            (before.snapshot, before.stored_at, kind.value),
        )
        connection.exec_driver_sql("SET LOCAL taskbridge.keep_ids = 'on'")
        connection.exec_driver_sql("UPDATE taskbridge.records SET tenant = 'victim' WHERE tenant = 'a'")

    to_the_end(poller, kind)
    assert sorted(deployment.gate.active("invoices")) == [*"abcde", "victim"]
