"""After a restore into another cluster nobody works before `taskbridge migrate --rebase`, and everybody is told so."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.store import Claim, Cursors, record_invoice
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.deployment import worker_command

REFUSED = "restored into another cluster, where its transaction ids mean nothing: stop all workers and run `taskbridge"


def rows(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    """Ask, and stay connected no longer than that."""
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.exec_driver_sql(statement)]
    engine.dispose()
    return found


def states(engine: Engine) -> dict[str, str]:
    return dict(rows(engine, "SELECT external_id, state FROM taskbridge.record_states"))


@pytest.fixture
def foreign(taskbridge: Program, engine: Engine) -> Program:
    """Servers with a handled and a pending invoice, as they would lie in another cluster."""
    for number in ("handled", "pending"):
        record_invoice(engine, "acme", number, {})
    key = RunKey("invoices", "acme", "0000000000000001-aaaaaaaaaaaa")
    page = Cursors(engine).claim(Claim(key, 1, events=1, runs=1))
    with Cursors(engine).transaction(key) as transaction:
        transaction.advance(transaction.move(page))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    return taskbridge


def test_commands_that_work_with_records_refuse(foreign: Program, engine: Engine) -> None:
    for command in (("status",), ("up", "--exit-when-idle"), ("prune", "--older-than", "1d")):
        assert_one_clear_line(foreign(*command), REFUSED, status=1)
    assert states(engine) == {"handled": "handled", "pending": "pending"}


def test_a_worker_does_not_start(foreign: Program) -> None:
    ended = foreign.python(*worker_command()[1:])
    assert ended.returncode == 1
    assert REFUSED in ended.stderr
    assert "Traceback" not in ended.stderr


PRODUCER = """
from taskbridge import record_invoice
from taskbridge.errors import Unavailable
try:
    record_invoice("acme", "new", {})
except Unavailable as error:
    print(type(error).__name__, error)
"""


def test_a_producer_is_refused_with_an_error_that_it_catches_already(foreign: Program, engine: Engine) -> None:
    ended = foreign.python("-c", PRODUCER)
    assert ended.stdout.startswith("ForeignCluster the database was " + REFUSED)
    assert "new" not in states(engine)


def test_it_is_done_once_and_all_is_as_it_was(foreign: Program, engine: Engine) -> None:
    before = states(engine)
    assert f"one more step: the database was {REFUSED}" in foreign("migrate").stderr
    done = foreign("migrate", "--rebase", "--yes")
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines() == [
        "rebased 1 cursor and 0 rows",
        "invoices: 1 pending record will be handled first",
    ]
    assert foreign("migrate", "--rebase", "--yes").stdout.endswith("nothing to do\n")
    assert states(engine) == before
    assert foreign("doctor", "--json").json["findings"][2]["level"] == "ok"
    counts = foreign("status", "--json").json["pipelines"]["invoices"]["tenants"]["acme"]
    assert (counts["handled"], counts["pending"]) == (1, 1)


def test_a_process_that_is_connected_is_named(foreign: Program, engine: Engine) -> None:
    with engine.connect() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        assert_one_clear_line(foreign("migrate", "--rebase", "--yes"), f"their pids: {pid})", "stop workers", status=1)
    assert rows(engine, "SELECT system_identifier FROM taskbridge.taskbridge_cluster") == [(1,)]
