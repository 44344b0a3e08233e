"""No session of Postgres holds a run or its successor for long: neither a silent one nor that of a frozen process."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psycopg
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import HandlerMistake, Unavailable
from taskbridge.process.time_limit import soft_time_limit
from taskbridge.store import Changes, Cursors, Kind, Unread, connect, register_pipeline
from taskbridge.store.db import NoAnswer, session_name, within
from taskbridge.store.queries import query
from tests.store.adopting import rows, run
from tests.store.sweeping import NEW, NEWEST, OLD, advance, batch, claim, key, write
from tests.waiting import taking_at_most, wait_until

BOUND = 20.0
"""Seconds; the time-outs here are less than two, and machines are slow."""


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


def is_there(engine: Engine, pid: int) -> bool:
    return pid in sessions(engine)


def test_a_silent_session_ends_what_a_run_asks_and_the_next_call_is_answered(engine: Engine, bounded: Engine) -> None:
    write(engine, "a")
    cursors = Cursors(bounded)
    claim(cursors)
    calls: list[Callable[[], object]] = [
        lambda: claim(cursors),
        lambda: cursors.read(key(), 100),
        lambda: cursors.fail(key(), "ValueError"),
        lambda: cursors.evidence(key()),
    ]
    errors = (Unread, OperationalError, psycopg.OperationalError)
    for call in calls:
        with silent(bounded), taking_at_most(BOUND), pytest.raises(errors, match=r"not answered for 1\.5 s|timeout"):
            call()
        call()


@pytest.mark.parametrize("writes", [False, True], ids=["alone", "with what the handler wrote"])
def test_an_advance_of_which_nothing_is_known_is_decided_by_the_cursor(
    engine: Engine, bounded: Engine, writes: bool
) -> None:
    write(engine, *"abc")
    run(engine, "CREATE TABLE taken (number text)")
    cursors = Cursors(bounded)
    page = claim(cursors, limit=2)
    with bounded.connect() as connection:
        pid = pid_of(connection)
    with taking_at_most(BOUND), pytest.raises((NoAnswer, DBAPIError)), cursors.transaction(key()) as transaction:  # noqa: PT012
        if writes:
            transaction.connect().exec_driver_sql("INSERT INTO taken VALUES ('a'), ('b')")
        with stopped(pid):
            transaction.advance(transaction.move(page))
    wait_until(lambda: not is_there(engine, pid), "the end of the session")
    # The next claim tells what took effect: all of it, or nothing.
    seen = batch(cursors, token=NEW)
    taken = [number for (number,) in rows(engine, "SELECT number FROM taken ORDER BY 1")]
    assert (seen, taken) in ((["c"], ["a", "b"] if writes else []), (["a", "b", "c"], []))


def test_a_success_that_cannot_be_noted_is_no_failure(engine: Engine, bounded: Engine) -> None:
    cursors = Cursors(bounded)
    register_pipeline(engine, "invoices", "invoices")
    cursors.note_success(key())
    run(engine, "UPDATE taskbridge.pipelines SET failed = true")
    with engine.connect() as other:
        other.exec_driver_sql("SELECT FROM taskbridge.pipelines FOR UPDATE")
        # Statements of these may take any time.
        Cursors(engine).note_success(key())
    with silent(bounded), taking_at_most(BOUND):
        cursors.note_success(key())
    cursors.note_success(key())
    assert rows(engine, "SELECT failed FROM taskbridge.pipelines") == [(False,)]


def test_a_silent_session_ends_a_round(bounded: Engine) -> None:
    changes = Changes(bounded, seconds=2.0)
    changes.read_page(Kind.POLLER, "invoices", "invoices", 200)
    with silent(bounded), taking_at_most(BOUND), pytest.raises(NoAnswer, match="for 3 s"):
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
        with stopped(pid_of(connection)), taking_at_most(BOUND), pytest.raises(OperationalError, match="for 2 s"):
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
    return {pid for (pid,) in rows(engine, "SELECT pid FROM pg_stat_activity")}


def test_a_transaction_that_its_process_forgot_ends_by_itself(engine: Engine, bounded: Engine) -> None:
    cursors = Cursors(bounded, transaction_timeout=1.0)
    claim(cursors)
    with cursors.transaction(key()) as transaction:
        pid = pid_of(transaction.connect())
        wait_until(lambda: not is_there(engine, pid), "the end of the idle session")


def test_a_successor_ends_the_session_of_the_run_that_it_replaced_and_no_other(engine: Engine, bounded: Engine) -> None:
    run(engine, "CREATE TABLE stock (id int PRIMARY KEY, n int)", "INSERT INTO stock VALUES (1, 0)")
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
    write(engine, "a")
    counts = {"burst": "", "burst_runs": 1, "burst_events": 1}
    values = {**key()._asdict(), **counts, "limit": 1, "bisecting": True, "session": session_name(key())}
    frozen = connect(engine.url.render_as_string(hide_password=False))
    with frozen.connect() as connection:
        connection.exec_driver_sql(query("claim"), values)
        page = claim(Cursors(bounded), token=NEW)
        connection.invalidate()
    frozen.dispose()
    assert advance(Cursors(bounded), page, token=NEW) == ["a"]


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


@pytest.mark.parametrize("own", ["--Statement-Timeout=20s", "-c statement_timeout=0"])
def test_the_urls_own_limits_win_and_a_process_waits_as_long_as_they_let_postgres_work(
    engine: Engine, own: str
) -> None:
    url = engine.url.update_query_dict({"options": own, "keepalives_idle": "77"})
    made = connect(url.render_as_string(hide_password=False), statement_timeout=0.5)
    with made.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.get_parameters()["keepalives_idle"] == "77"
        before = connection.exec_driver_sql("SHOW statement_timeout").scalar_one()
        with within(connection, 5):
            pass
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == before in ("20s", "0")
        # longer than the settings' time-out and the grace
        connection.exec_driver_sql("SELECT pg_sleep(1.7)")
    made.dispose()


def test_dates_and_intervals_are_read_whatever_the_style_of_the_role(engine: Engine) -> None:
    for limit, style in ((None, "iso_8601"), (5, "postgres_verbose")):
        url = engine.url.update_query_dict({"options": f"-c datestyle=German -c intervalstyle={style}"})
        made = connect(url.render_as_string(hide_password=False), statement_timeout=limit)
        ((now, day),) = rows(made, "SELECT now(), interval '1 day'")
        assert now.tzinfo is not None
        assert day == timedelta(days=1)
        made.dispose()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("ALTER ROLE {name} CONNECTION LIMIT 0", "no connection left for this role or database.*CONNECTION LIMIT"),
        ("ALTER ROLE {name} NOLOGIN", "does not let this role log in.*ALTER ROLE"),
        ("ALTER DATABASE {name} ALLOW_CONNECTIONS false", "accepts no connections to this database.*ALTER DATABASE"),
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
