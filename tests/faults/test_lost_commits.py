"""A Postgres that lost its last commits in the middle of a round: their ids are used again, and no record is skipped.

It crashed, and the commits were those of writers with `synchronous_commit = off`; or a replica that lags took over.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskbridge.embedded import Servers
from taskbridge.gate import Keys
from taskbridge.process.runtime import runtime_of
from taskbridge.store import Kind, Changes, connect, migrate
from taskbridge.testing.servers import open_directory
from taskbridge.worker.poller import Poller
from tests.deployment import Deployment
from tests.waiting import wait_until
from verification.torture.servers import PostgresHere

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
    rounds = poller_of(deployment, page=2)
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


@pytest.fixture
def postgres() -> Iterator[PostgresHere]:
    """A Postgres that writes nothing to its log on its own."""
    with open_directory() as directory:
        server = PostgresHere(directory)
        server.start()
        engine = connect(server.url)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for setting in ("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'", "wal_buffers = '32MB'"):
                connection.exec_driver_sql(f"ALTER SYSTEM SET {setting}")
            connection.exec_driver_sql("ALTER SYSTEM SET autovacuum = off")
            connection.exec_driver_sql("ALTER SYSTEM SET bgwriter_lru_maxpages = 0")
        engine.dispose()
        server.strike(signal.SIGINT)
        server.start()
        yield server
        server.close()


@pytest.mark.slow  # it has a server of its own, and where that writes its log at a bad moment, it shows nothing
def test_a_crash_that_loses_commits_of_a_page_hides_no_record(
    postgres: PostgresHere, servers: Servers, tmp_path: Path
) -> None:
    engine = connect(postgres.url)
    migrate(engine)
    deployment = Deployment(engine, servers.redis_url, tmp_path)
    rounds = poller_of(deployment, page=100)
    time.sleep(3)
    lost, later = (
        f"DO $$ BEGIN FOR i IN 1..{count} LOOP {WRITE.format(name)}; COMMIT; END LOOP; END $$"
        for count, name in ((110, "'lost' || i"), (300, "'later' || i"))
    )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CREATE TABLE all_before_is_written ()")
        connection.exec_driver_sql("SET synchronous_commit = off")
        connection.exec_driver_sql(lost)
        connection.exec_driver_sql("RESET synchronous_commit")
    assert [page(poller, kind) for kind in Kind] == [True, True]
    postgres.strike(signal.SIGQUIT)
    postgres.start()
    engine.dispose()
    assert deployment.rows("SELECT FROM taskbridge.records") == []
    victims = [f"victim{number}" for number in range(20)]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for victim in victims:
            connection.exec_driver_sql(WRITE.format(f"'{victim}'"))
        connection.exec_driver_sql(later)
    for kind in Kind:
        to_the_end(poller, kind)
    assert set(victims) <= set(deployment.gate.active("invoices"))
    deployment.close()
    engine.dispose()
