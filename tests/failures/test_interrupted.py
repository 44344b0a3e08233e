"""A handler that is interrupted inside a statement leaves no session behind that goes on, and no record for ever."""

from __future__ import annotations

import os
import signal

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import Handler
from taskbridge.store import connect
from taskbridge.store.db import driver_of
from tests.failures.drill import Drill

AT_WORK = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
    "AND query LIKE '%%pg_sleep(%%' AND pid <> pg_backend_pid()"
)


TIMEOUT = {"transaction_timeout": 1.0}


@pytest.mark.parametrize(
    ("deployment", "own"),
    [
        pytest.param({}, False, id="limit-through batch.connection", marks=pytest.mark.slow),
        pytest.param(TIMEOUT, True, id="timeout-through its own engine"),
    ],
    indirect=["deployment"],
)
def test_locks_of_an_interrupted_statement_keep_no_other_record_from_being_tried(drill: Drill, own: bool) -> None:
    url = drill.deployment.engine.url.render_as_string(hide_password=False)
    with drill.deployment.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE totals (tenant text PRIMARY KEY, n integer)")
        connection.exec_driver_sql("INSERT INTO totals VALUES ('acme', 0)")
    engine = connect(url, statement_timeout=2.0)

    def count_then_sleep_over_a(batch: Batch) -> None:
        count = "UPDATE totals SET n = n + 1 WHERE tenant = 'acme'"
        if any(record.external_id == "a" for record in batch):
            batch.connection.exec_driver_sql(count)
            batch.connection.exec_driver_sql("SELECT pg_sleep(60)")
        elif own:
            with engine.begin() as connection:
                connection.exec_driver_sql(count)
        else:
            batch.connection.exec_driver_sql(count)

    limit = {} if drill.deployment.settings.transaction_timeout == 1.0 else {"soft_time_limit": 1.0}
    drill.handle(count_then_sleep_over_a, max_attempts=2, **limit)
    drill.save("acme", "a", "b", "c")
    drill.go_on(steps=15)
    engine.dispose()
    assert drill.states() == {"handled": 2, "quarantined": 1}
    assert [number for _, number, *_ in drill.quarantine()] == ["a"]
    assert drill.deployment.rows(AT_WORK) == []


IDLE = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize(
    "where", ["in a statement", pytest.param("before its transaction begins", marks=pytest.mark.slow)]
)
def test_a_server_that_keeps_a_handler_waiting_until_its_time_limit_is_no_fault_of_the_record(
    drill: Drill, where: str
) -> None:
    silences = ["first", "second", "third"]

    def handler(batch: Batch) -> None:
        if batch.tenant == "globex" or not silences:
            return
        silences.pop()
        if where == "in a statement":
            batch.connection.exec_driver_sql("SELECT pg_sleep(60)")
        sessions = [pid for (pid,) in drill.deployment.rows(IDLE)]
        try:
            for pid in sessions:
                os.kill(pid, signal.SIGSTOP)
            batch.connection.exec_driver_sql("SELECT 1")
        finally:
            for pid in sessions:
                os.kill(pid, signal.SIGCONT)

    drill.handle(handler, max_attempts=2, soft_time_limit=0.3)
    drill.save("acme", "a")
    drill.save("globex", "b")
    drill.go_on()
    assert len(drill.errors) == 3
    assert drill.quarantine() == []
    assert drill.states() == {"handled": 2}


def sleep(batch: Batch) -> None:
    batch.connection.exec_driver_sql("SELECT pg_sleep(60)")


def sleep_and_tell(batch: Batch) -> None:
    try:
        sleep(batch)
    except SoftTimeLimitExceeded as error:
        raise ValueError("too slow") from error


def sleep_at_the_commit(batch: Batch) -> None:
    batch.connection.exec_driver_sql(
        "CREATE FUNCTION pg_temp.sleep() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(60); RETURN NULL; END';"
        "CREATE TABLE slow (n integer);"
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION pg_temp.sleep();"
        "INSERT INTO slow VALUES (1)"
    )


def end_its_session(batch: Batch) -> None:
    batch.connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize(
    ("deployment", "handler", "limit"),
    [
        ({}, sleep, 0.1),
        ({}, sleep_and_tell, 0.1),
        ({"transaction_timeout": 1.0}, sleep, None),
        pytest.param({"statement_timeout": 0.5}, sleep_at_the_commit, None, marks=pytest.mark.slow),
        ({}, end_its_session, None),
    ],
    ids=["time limit", "error of its own", "time-out", "commit", "session"],
    indirect=["deployment"],
)
def test_a_record_that_never_gets_an_answer_goes_to_quarantine_also_where_it_is_the_only_one(
    drill: Drill, handler: Handler, limit: float | None
) -> None:
    drill.handle(handler, max_attempts=1, soft_time_limit=limit)
    drill.save("acme", "a")
    drill.go_on(steps=40)
    assert drill.states() == {"quarantined": 1}
    assert len(drill.calls) == 4


@pytest.mark.parametrize(("error", "calls"), [(ValueError("bad"), 2), (ConnectionError("refused"), None)], ids=str)
def test_a_session_with_an_open_stream_says_nothing_of_what_the_handler_raises(
    drill: Drill, error: Exception, calls: int | None
) -> None:
    def handler(batch: Batch) -> None:
        if len(drill.calls) > 12:
            return
        cursor = driver_of(batch.connection).cursor()
        rows = cursor.stream("SELECT generate_series(1, 1000000)")
        next(rows)
        raise error

    drill.handle(handler, max_attempts=2)
    drill.save("acme", "a")
    drill.go_on(steps=40)
    if calls is None:
        assert (drill.quarantine(), drill.states()) == ([], {"handled": 1})
    else:
        assert (len(drill.calls), drill.states()) == (calls, {"quarantined": 1})
