"""After a restore into another cluster nobody works before `taskbridge migrate --rebase`, and everybody is told so."""

from __future__ import annotations

from sqlalchemy import Engine

from taskbridge.gate import Keys
from taskbridge.store import record_invoice
from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.deployment import worker_command
from tests.quarantined import states
from tests.store.adopting import Reader, run

REFUSED = "restored into another cluster, where its transaction ids mean nothing: stop all workers and producers"
PRODUCER = """
from taskbridge import record_invoice
from taskbridge.errors import Unavailable
try:
    record_invoice("acme", "new", {})
except Unavailable as error:
    print(type(error).__name__, error)
"""


def test_nobody_works_before_it_and_all_is_as_it_was_after_it(taskbridge: Program, engine: Engine) -> None:
    # given a handled and a pending invoice, as they would lie in another cluster
    record_invoice(engine, "acme", "handled", {})
    Reader(engine, "invoices", "invoices").records("acme")
    record_invoice(engine, "acme", "pending", {})
    run(engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    before = states(engine)
    assert sorted(before.values()) == ["handled", "pending"]
    # then commands, workers and producers refuse
    for command in (("status",), ("up", "--exit-when-idle"), ("prune", "--older-than", "1d")):
        assert_one_clear_line(taskbridge(*command), REFUSED, status=1)
    worker = taskbridge.python(*worker_command()[1:])
    assert (worker.returncode, REFUSED in worker.stderr, "Traceback" in worker.stderr) == (1, True, False)
    assert taskbridge.python("-c", PRODUCER).stdout.startswith("ForeignCluster the database was " + REFUSED)
    assert states(engine) == before
    # a process that is connected is named
    assert f"one more step: the database was {REFUSED}" in taskbridge("migrate").stderr
    engine.dispose()
    with engine.connect() as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        told = taskbridge("migrate", "--rebase", "--yes")
        assert_one_clear_line(told, f"their pids: {pid})", "stop workers", status=1)
    engine.dispose()
    # and it is done once
    done = taskbridge("migrate", "--rebase", "--yes")
    assert (done.status, done.stdout.splitlines()) == (
        0,
        ["rebased 1 cursor and 0 rows", "invoices: 1 pending record will be handled first"],
    )
    assert taskbridge("migrate", "--rebase", "--yes").stdout.endswith("nothing to do\n")
    assert states(engine) == before
    counts = taskbridge("status", "--json").json["pipelines"]["invoices"]["tenants"]["acme"]
    assert (counts["handled"], counts["pending"]) == (1, 1)


def test_a_gate_that_cannot_be_released_is_reported(
    taskbridge: Program, engine: Engine, configured: dict[str, str]
) -> None:
    run(engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
    engine.dispose()
    away = {"TASKBRIDGE_REDIS_URL_ORDERS": "redis://:s3cr3t@127.0.0.1:1/0"}
    ended = taskbridge("migrate", "--rebase", "--yes", **away)
    assert (ended.status, ended.stdout) == (1, "rebased 0 cursors and 0 rows\n")
    key = Keys(configured["TASKBRIDGE_KEY_PREFIX"]).owner
    assert f"`redis-cli DEL {key}` on the server of TASKBRIDGE_REDIS_URL_ORDERS" in ended.stderr
    assert "s3cr3t" not in ended.stderr
