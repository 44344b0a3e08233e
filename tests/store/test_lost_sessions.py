"""A session that ended while it was idle is replaced, and a server without a free session is reported in time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from taskbridge.common.run_key import RunKey
from taskbridge.common.server_errors import translated_errors
from taskbridge.embedded import Servers
from taskbridge.errors import Unavailable
from taskbridge.gate import Keys
from taskbridge.integration.checks import examine
from taskbridge.process.runtime import runtime_of
from taskbridge.producer.producer import Bridge
from taskbridge.settings import Settings
from taskbridge.store import Changes, Claim, Cursors, Kind, check_version, connect
from tests.store.pooler import ExhaustedPooler
from tests.transactions.conftest import producer
from tests.waiting import wait_until

KEY = RunKey("invoices", "acme", f"{1:016d}-aaaaaaaaaaaa")
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


def end_idle_sessions(administrator: psycopg.Connection[Any], *, at_once: bool) -> None:
    """End all sessions of this database that began after the administrator's, or wait until they have ended."""
    others = (
        "FROM pg_stat_activity WHERE datname = current_database() AND backend_start > "
        "(SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
    )
    assert administrator.execute(f"SELECT count(*) {others}").fetchone() != (0,)
    if at_once:
        administrator.execute(f"SELECT pg_terminate_backend(pid) {others}")
    wait_until(lambda: administrator.execute(f"SELECT count(*) {others}").fetchone() == (0,), "no idle session")


def test_a_producer_does_not_notice_the_servers_idle_session_timeout(
    administrator: psycopg.Connection[Any], postgres_url: str, servers: Servers, keys: Keys
) -> None:
    name = sql.Identifier(administrator.info.dbname)
    administrator.execute(sql.SQL("ALTER DATABASE {} SET idle_session_timeout = '200ms'").format(name))
    with bridge(postgres_url, servers, keys) as made:
        assert made.record("acme", "1", {}, source="invoices")
        for number in "23":
            end_idle_sessions(administrator, at_once=False)
            assert made.record("acme", number, {}, source="invoices")


def test_nobody_notices_that_idle_sessions_were_ended(
    administrator: psycopg.Connection[Any], postgres_url: str, servers: Servers, keys: Keys
) -> None:
    engine = connect(postgres_url, statement_timeout=10)
    cursors, changes = Cursors(engine), Changes(engine)

    def read_in_a_transaction() -> None:
        with cursors.transaction(KEY) as transaction:
            transaction.connect().exec_driver_sql("SELECT 1")

    def read_with_sqlalchemy() -> None:
        with engine.connect() as one, engine.connect() as two:
            assert one.exec_driver_sql("SELECT 1").scalar() == two.exec_driver_sql("SELECT 1").scalar()

    with bridge(postgres_url, servers, keys) as made:
        cursors.claim(Claim(KEY, 1, events=1, runs=1))
        calls: dict[str, Callable[[], object]] = {
            "record": lambda: made.record("acme", "1", {"at": time.monotonic()}, source="invoices"),
            "SQLAlchemy": read_with_sqlalchemy,
            "a handler's transaction": read_in_a_transaction,
            "a run": lambda: cursors.evidence(KEY),
            "a pass": lambda: changes.read_page(Kind.POLLER, "invoices", "invoices", 200),
            "a look": lambda: check_version(engine),
        }
        for call in calls.values():
            call()
        for call in calls.values():
            end_idle_sessions(administrator, at_once=True)
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
            began = time.monotonic()
            with pytest.raises(Unavailable, match=reported):
                call()
            assert time.monotonic() - began < BOUND
        began = time.monotonic()
        (found,) = [one for one in examine(runtime_of(made.app)) if one.check == "Postgres"]
        assert re.search(reported, f"{found.text}: {found.remedy}")
        assert time.monotonic() - began < 2 * BOUND
    pooler.close()
