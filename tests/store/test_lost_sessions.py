"""A session that ended while it was idle is replaced, and a server without a free session is reported in time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from taskbridge.common.server_errors import translated_errors
from taskbridge.embedded import Servers
from taskbridge.errors import Unavailable
from taskbridge.gate import Keys
from taskbridge.integration.checks import examine
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings
from taskbridge.store import Changes, Cursors, Kind, check_version, connect
from tests.store.pooler import ExhaustedPooler
from tests.store.sweeping import claim, key
from tests.transactions.conftest import producer
from tests.waiting import taking_at_most, wait_until

STATEMENT_TIMEOUT = 0.5
BOUND = STATEMENT_TIMEOUT + 1 + 5
"""Seconds: the limit of a statement, the grace, and what a busy machine takes."""


@pytest.fixture
def administrator(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@contextmanager
def bridge(postgres_url: str, servers: Servers, keys: Keys) -> Iterator[Bridge]:
    settings = Settings(
        postgres_url, servers.redis_url, key_prefix=keys.prefix, statement_timeout=STATEMENT_TIMEOUT, notify_timeout=10
    )
    made = producer(settings)
    try:
        yield made
    finally:
        runtime_of(made.app).close_sessions()


def end_idle_sessions(administrator: psycopg.Connection[Any]) -> None:
    """End all sessions of this database that began after the administrator's."""
    others = (
        "FROM pg_stat_activity WHERE datname = current_database() AND backend_start > "
        "(SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
    )
    assert administrator.execute(f"SELECT pg_terminate_backend(pid) {others}").fetchone() is not None
    wait_until(lambda: administrator.execute(f"SELECT count(*) {others}").fetchone() == (0,), "no idle session")


def test_nobody_notices_that_idle_sessions_were_ended(
    administrator: psycopg.Connection[Any], postgres_url: str, servers: Servers, keys: Keys
) -> None:
    engine = connect(postgres_url, statement_timeout=10)
    cursors, changes = Cursors(engine), Changes(engine)

    def read_in_a_transaction() -> None:
        with cursors.transaction(key()) as transaction:
            transaction.connect().exec_driver_sql("SELECT 1")

    def read_with_sqlalchemy() -> None:
        with engine.connect() as one, engine.connect() as two:
            assert one.exec_driver_sql("SELECT 1").scalar() == two.exec_driver_sql("SELECT 1").scalar()

    with bridge(postgres_url, servers, keys) as made:
        claim(cursors)
        calls: dict[str, Callable[[], object]] = {
            "record": lambda: made.record("acme", "1", {"at": time.monotonic()}, source="invoices"),
            "SQLAlchemy": read_with_sqlalchemy,
            "a handler's transaction": read_in_a_transaction,
            "a run": lambda: cursors.evidence(key()),
            "a pass": lambda: changes.read_page(Kind.POLLER, "invoices", "invoices", 200),
            "a look": lambda: check_version(engine),
        }
        for call in calls.values():
            call()
        for call in calls.values():
            end_idle_sessions(administrator)
            call()
    engine.dispose()


def test_a_pooler_without_a_free_session_is_reported_in_time(postgres_url: str, servers: Servers, keys: Keys) -> None:
    pooler = ExhaustedPooler(postgres_url)
    with bridge(pooler.url, servers, keys) as made:
        looking = runtime_of(made.app)

        def look() -> None:
            with translated_errors():
                check_version(looking.engine)

        reported = r"accepted the connection but has no free session.*: .*default_pool_size"
        for call in (lambda: made.record("acme", "1", {}, source="invoices"), look):
            with taking_at_most(BOUND), pytest.raises(Unavailable, match=reported):
                call()
        with taking_at_most(2 * BOUND):
            (found,) = [one for one in examine(looking) if one.check == "Postgres"]
        assert re.search(reported, f"{found.text}: {found.remedy}")
    pooler.close()
