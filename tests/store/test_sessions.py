"""No session of Postgres holds a run or its successor for long: neither a silent one nor that of a frozen process."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from taskbridge.common.run_key import RunKey
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import HandlerMistake, Unavailable
from taskbridge.process.time_limit import soft_time_limit
from taskbridge.store import Changes, Claim, Cursors, Kind, Page, Unread, connect, record_invoice, register_pipeline
from taskbridge.store.db import NoAnswer, session_name, within
from taskbridge.store.queries import query
from tests.waiting import wait_until

OLD, NEW, NEWEST = (f"{at:016d}-aaaaaaaaaaaa" for at in (1, 2, 3))
BOUND = 20.0
"""Seconds; the time-outs here are less than two, and machines are slow."""


def key(tenant: str = "acme", token: str = OLD) -> RunKey:
    return RunKey("invoices", tenant, token)


def pid_of(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A server process that does not run, while its socket stays open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def silent(engine: Engine) -> Iterator[None]:
    """The one session of an engine's pool does not answer."""
    with engine.connect() as connection:
        pid = pid_of(connection)
    with stopped(pid):
        yield


def claim(cursors: Cursors, tenant: str = "acme", token: str = OLD, limit: int = 100) -> Page:
    return cursors.claim(Claim(key(tenant, token), limit, events=1, runs=1))


def advance(cursors: Cursors, page: Page, token: str = OLD) -> list[str]:
    with cursors.transaction(key(token=token)) as transaction:
        transaction.advance(transaction.move(page))
    return [record.external_id for record in page.records]


def is_there(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        statement = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        return bool(connection.exec_driver_sql(statement, (pid,)).scalar_one())


@contextmanager
def within_the_bound() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < BOUND


@pytest.mark.parametrize("what", ["claim", "read", "fail", "evidence"])
def test_a_silent_session_ends_what_a_run_asks_and_the_next_call_is_answered(
    engine: Engine, bounded: Engine, what: str
) -> None:
    record_invoice(engine, "acme", "a", {})
    cursors = Cursors(bounded)
    claim(cursors)
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: claim(cursors),
        "read": lambda: cursors.read(key(), 100),
        "fail": lambda: cursors.fail(key(), "ValueError"),
        "evidence": lambda: cursors.evidence(key()),
    }
    errors = (Unread, OperationalError, psycopg.OperationalError)
    with silent(bounded), within_the_bound(), pytest.raises(errors, match=r"has not answered for 1\.5 s|timeout"):
        calls[what]()
    calls[what]()


@pytest.mark.parametrize("writes", [False, True], ids=["alone", "with what the handler wrote"])
def test_an_advance_of_which_nothing_is_known_is_decided_by_the_cursor(
    engine: Engine, bounded: Engine, writes: bool
) -> None:
    for number in "abc":
        record_invoice(engine, "acme", number, {})
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE taken (number text)")
    cursors, seen = Cursors(bounded), []
    page = claim(cursors, limit=2)
    with bounded.connect() as connection:
        pid = pid_of(connection)
    with within_the_bound(), pytest.raises((NoAnswer, DBAPIError)), cursors.transaction(key()) as transaction:  # noqa: PT012
        if writes:
            transaction.connect().exec_driver_sql("INSERT INTO taken VALUES ('a'), ('b')")
        with stopped(pid):
            transaction.advance(transaction.move(page))
    wait_until(lambda: not is_there(engine, pid), "the end of the session")
    # The next claim tells what took effect: all of it, or nothing.
    page = claim(cursors, token=NEW)
    with cursors.transaction(key(token=NEW)) as transaction:
        for record in page.records:
            seen.append(record.external_id)
            transaction.connect().exec_driver_sql("INSERT INTO taken VALUES (%s)", (record.external_id,))
        transaction.advance(transaction.move(page))
    assert seen in (["c"], ["a", "b", "c"])
    with engine.connect() as connection:
        taken = sorted(connection.exec_driver_sql("SELECT number FROM taken").scalars())
    assert taken == (["a", "b", "c"] if writes or len(seen) == 3 else ["c"])


def test_a_success_that_cannot_be_noted_is_no_failure(engine: Engine, bounded: Engine) -> None:
    cursors = Cursors(bounded)
    register_pipeline(engine, "invoices", "invoices")
    cursors.note_success(key())
    with engine.begin() as other:
        other.exec_driver_sql("UPDATE taskbridge.pipelines SET failed = true")
    with engine.connect() as other:
        other.exec_driver_sql("SELECT FROM taskbridge.pipelines FOR UPDATE")
        # Statements of these may take any time.
        Cursors(engine).note_success(key())
    with silent(bounded), within_the_bound():
        cursors.note_success(key())
    cursors.note_success(key())
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT failed FROM taskbridge.pipelines").scalar() is False


def test_a_silent_session_ends_a_round(bounded: Engine) -> None:
    changes = Changes(bounded, seconds=2.0)
    changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    with silent(bounded), within_the_bound(), pytest.raises(NoAnswer, match="for 3 s"):
        # longer than other statements may take
        changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    assert changes.read_page(Kind.POLLER, "invoices", "invoices", 200).waiting == []


def test_a_silent_session_ends_the_handlers_statement_at_the_transactions_limit(bounded: Engine) -> None:
    cursors = Cursors(bounded, transaction_timeout=2.0)
    claim(cursors)
    with cursors.transaction(key()) as transaction:
        connection = transaction.connect()
        # longer than a statement of our own may take
        connection.exec_driver_sql("SELECT pg_sleep(1.6)")
        with stopped(pid_of(connection)), within_the_bound(), pytest.raises(OperationalError, match="for 2 s"):
            connection.exec_driver_sql("SELECT 1")


def test_after_an_interrupted_statement_no_session_of_before_is_lent_again(engine: Engine, bounded: Engine) -> None:
    cursors = Cursors(bounded)
    claim(cursors)
    with bounded.connect() as in_use:
        before = {pid_of(in_use)}
        with bounded.connect() as one, bounded.connect() as two:
            before |= {pid_of(one), pid_of(two)}

        with suppress(SoftTimeLimitExceeded), soft_time_limit(0.3), cursors.transaction(key()) as transaction:
            transaction.connect().exec_driver_sql("SELECT pg_sleep(60)")

        assert pid_of(in_use) in before  # whoever has a session keeps it
    with bounded.connect() as one, bounded.connect() as two, bounded.connect() as three:
        assert not before & {pid_of(one), pid_of(two), pid_of(three)}
        wait_until(lambda: not before & sessions(engine), "the sessions of before closed", BOUND)


def sessions(engine: Engine) -> set[int]:
    """The ids of the server's processes."""
    with engine.connect() as connection:
        return set(connection.exec_driver_sql("SELECT pid FROM pg_stat_activity").scalars())


def test_a_transaction_that_its_process_forgot_ends_by_itself(engine: Engine, bounded: Engine) -> None:
    cursors = Cursors(bounded, transaction_timeout=1.0)
    claim(cursors)
    with cursors.transaction(key()) as transaction:
        pid = pid_of(transaction.connect())
        wait_until(lambda: not is_there(engine, pid), "the end of the idle session")


def test_a_successor_ends_the_session_of_the_run_that_it_replaced_and_no_other(engine: Engine, bounded: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (id int PRIMARY KEY, n int)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (1, 0)")
    cursors, change = Cursors(bounded), "UPDATE stock SET n = n + 1 WHERE id = 1"
    for token in (OLD, NEW):
        claim(cursors, token=token)
    with (
        cursors.transaction(key(token=OLD)) as frozen,
        cursors.transaction(key("globex", OLD)) as neighbour,
        cursors.transaction(key(token=NEWEST)) as later,
        cursors.transaction(key(token=NEW)) as successor,
    ):
        # given a run that wrote a row and goes no further
        frozen.connect().exec_driver_sql(change)
        pid = pid_of(frozen.connect())
        assert [pid_of(one.connect()) for one in (neighbour, later)]
        wait_until(lambda: not is_there(engine, pid), "the end of the replaced run's session, by a later one's")
        # then its successor is not held up by its locks
        successor.connect().exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        successor.connect().exec_driver_sql(change)
        for one in (neighbour, later):
            assert one.connect().exec_driver_sql("SELECT 1").scalar_one() == 1
        with pytest.raises(OperationalError):
            frozen.connect().exec_driver_sql(change)


def test_a_process_that_froze_in_its_claim_does_not_keep_the_cursor(engine: Engine, bounded: Engine) -> None:
    record_invoice(engine, "acme", "a", {})
    counts = {"burst": "", "burst_runs": 1, "burst_events": 1}
    values = {**key()._asdict(), **counts, "limit": 1, "bisecting": True, "session": session_name(key())}
    frozen = connect(engine.url.render_as_string(hide_password=False))
    with frozen.connect() as connection:
        connection.exec_driver_sql(query("claim"), values)
        page = claim(Cursors(bounded), token=NEW)
        connection.invalidate()
    frozen.dispose()
    assert advance(Cursors(bounded), page, NEW) == ["a"]


@pytest.mark.parametrize("used", [False, True])
def test_a_batch_that_is_over_opens_no_transaction_and_ends_no_session(bounded: Engine, used: bool) -> None:
    cursors = Cursors(bounded)
    claim(cursors)
    with cursors.transaction(key()) as over:
        if used:
            over.connect()
    # given that the same run goes on with a trial
    with cursors.transaction(key()) as trial:
        pid = pid_of(trial.connect())
        with pytest.raises(HandlerMistake, match="the batch is over"):
            over.connect()
        assert pid_of(trial.connect()) == pid


def test_the_urls_own_limits_win(engine: Engine) -> None:
    url = engine.url.update_query_dict({"options": "-c statement_timeout=7s", "keepalives_idle": "77"})
    made = connect(url.render_as_string(hide_password=False), statement_timeout=0.5)
    with made.connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "7s"
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.get_parameters()["keepalives_idle"] == "77"
    made.dispose()


@pytest.mark.parametrize("options", ["--Statement-Timeout=20s", "-c statement_timeout=0"])
def test_a_process_waits_as_long_as_the_urls_own_limit_lets_postgres_work(engine: Engine, options: str) -> None:
    url = engine.url.update_query_dict({"options": options})
    made = connect(url.render_as_string(hide_password=False), statement_timeout=0.5)
    with made.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        before = connection.exec_driver_sql("SHOW statement_timeout").scalar_one()
        with within(connection, 5):
            pass
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == before
        # longer than the settings' time-out and the grace
        connection.exec_driver_sql("SELECT pg_sleep(1.7)")
    made.dispose()


def test_dates_and_intervals_are_read_whatever_the_style_of_the_role(engine: Engine) -> None:
    for limit, style in ((None, "iso_8601"), (5, "postgres_verbose")):
        url = engine.url.update_query_dict({"options": f"-c datestyle=German -c intervalstyle={style}"})
        made = connect(url.render_as_string(hide_password=False), statement_timeout=limit)
        with made.connect() as connection:
            now, day = connection.exec_driver_sql("SELECT now(), interval '1 day'").one()
            assert now.tzinfo is not None
            assert day == timedelta(days=1)
            # It may be changed again by what a handler does.
            connection.exec_driver_sql("SET datestyle = 'SQL'")
        made.dispose()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER ROLE {name} CONNECTION LIMIT 0", "no connection left for this role or database.*CONNECTION LIMIT"),
        ("ALTER ROLE {name} NOLOGIN", "does not let this role log in.*ALTER ROLE"),
        ("ALTER DATABASE {name} ALLOW_CONNECTIONS false", "accepts no connections to this database.*ALTER DATABASE"),
        ("ALTER DATABASE {name} CONNECTION LIMIT 0", "no connection left for this role or database.*CONNECTION LIMIT"),
        (
            "REVOKE CONNECT ON DATABASE {name} FROM public",
            "cannot be used .*permission denied for database.*: fix that",
        ),
    ],
)
def test_a_login_that_is_refused_is_told_with_what_the_server_says(engine: Engine, statement: str, said: str) -> None:
    name = f"guest_{secrets.token_hex(4)}"
    committing = engine.execution_options(isolation_level="AUTOCOMMIT")
    made = connect(
        engine.url.set(username=name, password="secret", database=name).render_as_string(hide_password=False)
    )
    with committing.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        try:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
            with made.connect():
                pass
            made.dispose()
            connection.exec_driver_sql(statement.format(name=name))
            with pytest.raises(Unavailable, match=said), translated_errors(), made.connect():
                pass
        finally:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}")
            connection.exec_driver_sql(f"DROP ROLE {name}")
