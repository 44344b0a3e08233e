"""Behind a pooler in transaction mode each record is handled once, and no setting of ours reaches its other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy import Engine

from taskbridge.embedded import Servers
from taskbridge.errors import ConfigurationError
from taskbridge.integration import checks
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.store import AsyncPool, Incoming, connect, receive_statement, record_invoice
from taskbridge.store.db import checked_out, in_one_message, parameters_of, rows, scalar, within
from tests.deployment import Deployment
from tests.store.pgbouncer import NEEDS_PGBOUNCER, PgBouncer
from tests.waiting import taking_at_most, wait_until

SIZE = 4
TENANTS = [f"tenant-{number}" for number in range(20)]
# What PgBouncer sets anew for each of its clients.
OF_A_CLIENT = ("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings")
LEFT = """
SELECT (SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings
        WHERE name <> ALL (%s) AND source IN ('session', 'client', 'user', 'database user')),
       (SELECT count(*) FROM pg_prepared_statements),
       (SELECT count(*) FROM pg_listening_channels()),
       (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
"""


@pytest.fixture
def pooler(postgres_url: str, tmp_path: Path) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_url, tmp_path, size=SIZE) as made:
        yield made


@pytest.fixture
def pooled(pooler: PgBouncer) -> Iterator[Engine]:
    made = connect(pooler.url, statement_timeout=10)
    yield made
    made.dispose()


def left_in_sessions(pooler: PgBouncer) -> set[str]:
    """What a foreign client finds in each session of the pooler that differs from a new one."""
    with ExitStack() as stack:
        foreign = [stack.enter_context(psycopg.connect(pooler.url, prepare_threshold=None)) for _ in range(SIZE)]
        # Each keeps a session, since its transaction stays open.
        return {str(one.execute(LEFT, ([*OF_A_CLIENT],)).fetchone()) for one in foreign}


def save(engine: Engine, tenant: str, number: str) -> None:
    """Record as a producer does who tries again where the pooler is away."""

    def is_saved() -> bool:
        try:
            record_invoice(engine, tenant, number, {"number": number})
        except Exception:
            return False
        return True

    wait_until(is_saved, "a record")


@NEEDS_PGBOUNCER
@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_record_is_handled_once_and_nothing_of_ours_is_left(
    pooler: PgBouncer, pooled: Engine, servers: Servers, tmp_path: Path, pool: str
) -> None:
    fresh = left_in_sessions(pooler)
    deployment = Deployment(pooled, servers.redis_url, tmp_path, tail_listens=True)
    numbers = [(TENANTS[number % 20], str(number)) for number in range(300)]
    try:
        with deployment.worker("-P", pool, TASKBRIDGE_PIPELINES="") as worker, ThreadPoolExecutor(8) as threads:
            halves = [threads.submit(save, pooled, *one) for one in numbers[:150]]
            wait_until(lambda: sum(one.done() for one in halves) > 100, "records")
            pooler.restart()
            halves += [threads.submit(save, pooled, *one) for one in numbers[150:]]
            for one in halves:
                one.result()
            with psycopg.connect(pooler.url, prepare_threshold=None) as foreign:
                for tenant in TENANTS:
                    foreign.execute("SELECT taskbridge.record('invoices', %s, 'sql', '{}')", (tenant,))
            expected = sorted([*numbers, *((tenant, "sql") for tenant in TENANTS)])
            wait_until(lambda: len(deployment.deliveries()) >= len(expected), "all handled", 60)
            deployment.wait_until_idle()
            assert sorted(deployment.deliveries()) == expected
            assert "does not LISTEN" in worker.text()
            assert "PreparedStatement" not in worker.text()
        assert left_in_sessions(pooler) == fresh
    finally:
        deployment.close()


@NEEDS_PGBOUNCER
def test_statements_are_limited_by_settings_of_their_transaction(pooler: PgBouncer, pooled: Engine) -> None:
    limit = "SHOW statement_timeout"
    fresh = left_in_sessions(pooler)
    with checked_out(pooled) as driver:
        assert driver.pooled
        assert [scalar(driver, limit) for _ in range(7)] == ["10s"] * 7
        assert [row["statement_timeout"] for row in rows(driver, limit)] == ["10s"]
        assert in_one_message(driver, limit, {}) == [("10s",)]
        with within(driver, 60, 2):
            assert (scalar(driver, limit), scalar(driver, "SHOW lock_timeout")) == ("1min", "2s")
        assert scalar(driver, limit) == "10s"
    with pooled.connect() as connection:
        assert connection.exec_driver_sql(limit).scalar() == "10s"
        with within(connection, 60):
            assert connection.exec_driver_sql(limit).scalar() == "1min"
    with pooled.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert connection.exec_driver_sql(limit).scalar() == "10s"
        with pytest.raises(Exception, match="does not exist"):
            connection.exec_driver_sql("SELECT * FROM nothing")
        assert connection.exec_driver_sql(limit).scalar() == "10s"
    assert left_in_sessions(pooler) == fresh


@NEEDS_PGBOUNCER
def test_an_event_loop_s_transactions_have_limits_and_leave_none(pooler: PgBouncer, pooled: Engine) -> None:
    fresh = left_in_sessions(pooler)
    one = receive_statement(Incoming("orders", None, "acme", "1", None, "{}"))

    async def use() -> None:
        pool = AsyncPool(pooled)
        assert await pool.execute(one) == [[(True, True)]]
        with pooled.connect() as connection, taking_at_most(5):
            connection.exec_driver_sql("SELECT FROM taskbridge.records FOR UPDATE")
            with pytest.raises(LockNotAvailable):
                await pool.execute(one)
        assert await pool.execute(one, one, one, one) != []
        await pool.close()

    asyncio.run(use())
    assert left_in_sessions(pooler) == fresh


@NEEDS_PGBOUNCER
def test_an_idle_connection_holds_no_session_of_the_pooler(postgres_url: str, tmp_path: Path) -> None:
    with PgBouncer(postgres_url, tmp_path, size=1) as pooler:
        engine = connect(pooler.url, statement_timeout=2)
        with checked_out(engine) as first, checked_out(engine) as second:
            for _ in range(200):
                assert [scalar(driver, "SELECT 1") for driver in (first, second)] == [1, 1]
        engine.dispose()


@NEEDS_PGBOUNCER
@pytest.mark.parametrize(
    ("mode", "shows_console", "found"),
    [("transaction", True, "PgBouncer 1"), ("session", True, "PgBouncer 1"), ("transaction", False, "a pooler in ")],
)
def test_doctor_names_the_pooler_and_its_mode(
    postgres_url: str, servers: Servers, tmp_path: Path, mode: str, shows_console: bool, found: str
) -> None:
    with PgBouncer(postgres_url, tmp_path, mode=mode, shows_console=shows_console) as pooler:
        runtime = runtime_of(make_app(Settings(pooler.url, servers.redis_url, tail_listens=True)).app)
        first, second = (one for one in examine(runtime) if one.check in ("pooler", "listening"))
        runtime.close()
    assert first.level == Level.OK
    assert first.text.startswith(found)
    assert f"in {mode} mode: statements are not prepared" in first.text
    assert second.level == Level.PROBLEM
    assert "does not LISTEN through a pooler" in second.text


@NEEDS_PGBOUNCER
def test_a_worker_listens_beside_the_pooler(
    pooler: PgBouncer, pooled: Engine, postgres_url: str, servers: Servers
) -> None:
    with pooled.begin() as connection:
        connection.exec_driver_sql("SELECT taskbridge.announce('invoices')")
    settings = Settings(pooler.url, servers.redis_url, tail_listens=True, listen_url=postgres_url)
    runtime = runtime_of(make_app(settings).app)
    listener = runtime.changes.listen()
    record_invoice(pooled, "acme", "1", {})
    assert [notice.channel for notice in listener.notifies(timeout=10, stop_after=1)] == ["taskbridge"]
    runtime.changes.close()
    assert [one.level for one in examine(runtime) if one.check in ("pooler", "listening")] == [Level.OK] * 2
    runtime.close()


def listening(postgres_url: str, servers: Servers, listen_url: str) -> tuple[Level, str]:
    """What doctor says of the URL at which workers listen."""
    settings = Settings(postgres_url, servers.redis_url, tail_listens=True, listen_url=listen_url)
    runtime = runtime_of(make_app(settings).app)
    (found,) = (one for one in examine(runtime) if one.check == "listening")
    runtime.close()
    return found.level, found.remedy


@NEEDS_PGBOUNCER
def test_doctor_finds_that_workers_listen_at_a_pooler(postgres_url: str, servers: Servers, pooler: PgBouncer) -> None:
    level, remedy = listening(postgres_url, servers, pooler.url)
    assert level == Level.PROBLEM
    assert "set TASKBRIDGE_LISTEN_URL to Postgres itself" in remedy


def test_doctor_announces_something_to_find_whether_workers_hear_it(
    postgres_url: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listening(postgres_url, servers, "") == (Level.OK, "")
    monkeypatch.setattr(checks, "PROBE_SECONDS", 0.2)
    level, remedy = listening(postgres_url, servers, servers.postgres_url)
    assert level == Level.PROBLEM, "that is another database"
    assert "to the same database" in remedy


def test_a_url_says_what_is_prepared(postgres_url: str) -> None:
    seen: list[Any] = []
    for parameter in ("", "?prepare_threshold=none", "?prepare_threshold=7"):
        engine = connect(postgres_url + parameter, statement_timeout=10)
        with checked_out(engine) as driver:
            seen.append((driver.prepare_threshold, driver.pooled, scalar(driver, "SHOW statement_timeout")))
        engine.dispose()
    assert seen == [(5, False, "10s"), (None, True, "10s"), (7, False, "10s")]
    with pytest.raises(ConfigurationError, match="does not take"):
        parameters_of("postgresql://host/database?prepare_threshold=often")
