"""A handler that is interrupted inside a statement leaves no session behind that goes on."""

from __future__ import annotations

import os
import signal

import pytest

from taskbridge.declaring.batch import Batch
from taskbridge.store import connect
from tests.failures.drill import Drill

AT_WORK = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
    "AND query LIKE '%%pg_sleep(%%' AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("own", [False, True], ids=["through batch.connection", "through its own engine"])
@pytest.mark.parametrize("deployment", [{}, {"transaction_timeout": 1.0}], indirect=True, ids=["limit", "timeout"])
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


@pytest.mark.parametrize("where", ["in a statement", "before its transaction begins"])
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
